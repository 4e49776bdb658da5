// rlock without a dedicated client: its commands with ioredis.
//
// `block`: each client has a connection, on which it waits with BLOCK.
// `notify`: all clients share one connection, and wait for messages on one channel, over a second
// one.
//
// As in docs/clients.md, each acquisition has its own owner and says ONCE, so ioredis may repeat
// requests after a broken connection. With `notify` each request also has a number, with which a
// waiter repeats it, because a message may be lost.

import { randomUUID } from 'node:crypto'
import { Redis } from 'ioredis'

const ASK_AGAIN_MS = 2000
const FAMILIES = { mutex: 'RLOCK', fair: 'RFAIRLOCK', read: 'RRWLOCK', write: 'RRWLOCK', semaphore: 'RSEMAPHORE' }

function open ({ host, port }) {
  const redis = new Redis(port, host)
  redis.on('error', () => {}) // It reconnects by itself.
  return redis
}

export async function connect (options) {
  const family = FAMILIES[options.lock]
  const mode = family === 'RRWLOCK' ? [options.lock.toUpperCase()] : []
  // Frees the lock when the connection of a killed holder closes.
  const request = ['PX', options.leaseMs, ...(options.hold ? ['SESSION', 0] : []), 'ONCE']
  const made = new Set()

  const ask = options.variant === 'notify' ? await byNotify(options) : byBlock
  const shared = options.variant === 'notify' && open(options)
  return (number) => {
    const redis = shared || open(options)
    return async (key, waitMs) => {
      if (family === 'RSEMAPHORE' && !made.has(key)) {
        await redis.call('RSEMAPHORE.INIT', key, options.permits)
        made.add(key)
      }
      const held = [key, randomUUID(), ...mode]
      const token = await ask(redis, [`${family}.ACQUIRE`, ...held, ...request], waitMs)
      const ends = performance.now() + options.leaseMs
      return token && (() => redis.call(`${family}.RELEASE`, ...held, 'TOKEN', token).catch((error) => {
        // ioredis has sent it twice after a lost answer, because the lease has not expired.
        if (!error.message.startsWith('NOTOWNER ') || performance.now() > ends) throw error
      }))
    }
  }
}

const byBlock = (redis, request, waitMs) => redis.call(...request, 'BLOCK', waitMs)

async function byNotify (options) {
  const channel = `rlock:${randomUUID()}`
  const waiting = new Map() // From the number of a request to the handler of its message.
  let last = 0
  const subscriber = open(options)
  subscriber.on('message', (_, text) => { // granted ID TOKEN | nil ID | error ID CODE TEXT
    const [what, id] = text.split(' ', 2)
    waiting.get(id)?.([what, text.slice(what.length + id.length + 2)])
  })
  await subscriber.subscribe(channel)

  return async (redis, request, waitMs) => {
    const deadline = performance.now() + waitMs
    const id = String(++last) // Unique per acquisition, because the owner is too.
    let silence
    try {
      for (let left; (left = Math.ceil(deadline - performance.now())) > 0;) {
        // Before the request, because the message may arrive before the answer.
        const message = new Promise((resolve) => {
          waiting.set(id, resolve)
          silence = setTimeout(resolve, Math.min(ASK_AGAIN_MS, left), [])
        })
        const answer = await redis.call(...request, 'REQ', id, 'BLOCK', left, 'NOTIFY', channel)
        if (answer !== 'WAITING') return answer
        const [what, text] = await message
        if (what === 'granted') return Number(text)
        if (what === 'error') throw new Error(text)
        if (what === 'nil') return null
        clearTimeout(silence)
      }
      return null
    } finally {
      clearTimeout(silence)
      waiting.delete(id)
    }
  }
}
