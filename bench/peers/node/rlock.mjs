// rlock without a client of its own: its commands over ioredis.
//
// `block`: each client has a connection, on which it waits by BLOCK.
// `notify`: all share one connection, and wait for messages on one channel, which come over a second one.
//
// As docs/clients.md has it: an owner for each acquisition and ONCE, so that ioredis may send again what a broken connection has cut off. With `notify` a
// number as well, by which whoever waits asks again, since a message may be lost.

import { randomUUID } from 'node:crypto'
import { Redis } from 'ioredis'

const ASK_AGAIN_MS = 2000
const FAMILIES = { mutex: 'RLOCK', fair: 'RFAIRLOCK', read: 'RRWLOCK', write: 'RRWLOCK', semaphore: 'RSEMAPHORE' }

function open ({ host, port }) {
  const redis = new Redis(port, host)
  redis.on('error', () => {}) // It connects anew by itself.
  return redis
}

export async function connect (options) {
  const family = FAMILIES[options.lock]
  const mode = family === 'RRWLOCK' ? [options.lock.toUpperCase()] : []
  // A process that is killed while it holds is noticed by the end of its connection.
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
        // ioredis has sent it twice, since the first answer was lost: the lease has not ended.
        if (!error.message.startsWith('NOTOWNER ') || performance.now() > ends) throw error
      }))
    }
  }
}

const byBlock = (redis, request, waitMs) => redis.call(...request, 'BLOCK', waitMs)

async function byNotify (options) {
  const channel = `rlock:${randomUUID()}`
  const waiting = new Map() // From the number of a request to what its message is for.
  let last = 0
  const subscriber = open(options)
  subscriber.on('message', (_, text) => { // granted ID TOKEN | nil ID | error ID CODE TEXT
    const [what, id] = text.split(' ', 2)
    waiting.get(id)?.([what, text.slice(what.length + id.length + 2)])
  })
  await subscriber.subscribe(channel)

  return async (redis, request, waitMs) => {
    const deadline = performance.now() + waitMs
    const id = String(++last) // Of this acquisition, whose owner is nobody else's.
    let silence
    try {
      for (let left; (left = Math.ceil(deadline - performance.now())) > 0;) {
        // Before it asks: the message may come before the answer.
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
