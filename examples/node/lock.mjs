// Locks for Node, on a server with rlock. Thousands of waiters share one connection and one subscription.
//
//     import { onIoredis } from './lock.mjs'          // or onNodeRedis
//     const locks = await onIoredis(new Redis())
//     await locks.held('orders:42', { leaseMs: 30_000, waitMs: 5_000 }, async (hold, lost) => {
//       await writeToTheDatabase({ fencingToken: hold.token, signal: lost })
//     })
//
// `held` throws NotGranted when the wait is over. The lease is renewed while the function runs; the AbortSignal `lost` says if the lock was
// lost all the same.

import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'

// A message may be lost with the connection that it was for. So whoever waits asks again so often, with the same number: that keeps its place.
const ASK_AGAIN_MS = 2000

export class NotGranted extends Error {}

/** On ioredis. It subscribes by a connection of its own. */
export async function onIoredis (client) {
  const subscriber = client.duplicate()
  const send = (...words) => client.call(...words)
  return new Locks(send, () => subscriber.disconnect()).start(async (channel, hear) => {
    subscriber.on('message', (_, text) => hear(text))
    await subscriber.subscribe(channel)
  })
}

/** On node-redis. It subscribes by a connection of its own. */
export async function onNodeRedis (client) {
  const subscriber = client.duplicate()
  subscriber.on('error', () => {}) // It connects anew by itself.
  await subscriber.connect()
  const send = (...words) => client.sendCommand(words.map(String))
  return new Locks(send, () => subscriber.destroy()).start((channel, hear) => subscriber.subscribe(channel, hear))
}

// The first word of an error says what it is. What has no such word is of the connection, and may pass.
const word = (error) => /^[A-Z]+ /.exec(error.message ?? '')?.[0].trim()

class Locks {
  channel = `rlock:${randomUUID()}`
  lastId = 0 // Unique on the channel.
  waiting = new Map()

  constructor (send, close) {
    Object.assign(this, { send, close })
  }

  async start (subscribe) {
    await subscribe(this.channel, (text) => {
      const [, what, id, rest] = /^(\S+) (\d+) ?(.*)$/.exec(text) // granted ID TOKEN | nil ID | error ID CODE TEXT
      this.waiting.get(Number(id))?.([what, rest])
    })
    return this
  }

  /** A hold, or null when the wait is over. */
  async acquire (key, { leaseMs = 30_000, waitMs = 0, signal } = {}) {
    // A name for this one acquisition: nothing that is repeated for it can become a second hold.
    const hold = { key, leaseMs, owner: randomUUID(), token: 0 }
    let superseded = false
    try {
      hold.token = await this.#token(hold, waitMs, signal)
    } catch (error) {
      superseded = word(error) === 'SUPERSEDED' // A newer request in this owner's name goes on.
      throw error
    } finally {
      if (!hold.token && !superseded) await this.#settle(hold) // Leaves neither a waiter nor a hold behind.
    }
    return hold.token ? hold : null
  }

  async #token ({ key, leaseMs, owner }, waitMs, signal) {
    const deadline = performance.now() + waitMs
    const request = ['RLOCK.ACQUIRE', key, owner, 'PX', leaseMs, 'ONCE', 'REQ']
    let id = ++this.lastId
    for (let left; (left = Math.floor(deadline - performance.now())) > 0;) {
      signal?.throwIfAborted()
      const message = new Promise((resolve) => this.waiting.set(id, resolve))
      const pause = new AbortController()
      signal?.addEventListener('abort', () => pause.abort(), { signal: pause.signal })
      try {
        // WAITING: the answer comes on the channel.
        const answer = await this.send(...request, id, 'BLOCK', left, 'NOTIFY', this.channel)
        if (answer !== 'WAITING') return answer ?? 0
        const silence = sleep(Math.min(ASK_AGAIN_MS, left), [], { signal: pause.signal }).catch(() => [])
        const [what, text] = await Promise.race([message, silence])
        if (what === 'granted') return Number(text)
        this.waiting.delete(id)
        if (what) id = ++this.lastId // This number is used up.
        if (what === 'error' && !text.startsWith('UNBLOCKED')) throw new Error(text)
      } catch (error) {
        if (word(error)) throw error
        await sleep(100)
      } finally {
        pause.abort()
        this.waiting.delete(id)
      }
    }
    return await this.send(...request, id) ?? 0 // Ends the wait, or is granted.
  }

  async #settle ({ key, owner }) {
    try {
      await this.send('RLOCK.CANCEL', key, owner)
      await this.send('RLOCK.RELEASE', key, owner)
    } catch {} // NOTOWNER as a rule. If the server cannot be reached, the lease ends what there is.
  }

  renew = (hold) => this.#isMine('RLOCK.RENEW', hold, 'PX', hold.leaseMs)

  /** False if the lock had been lost, or if an earlier RELEASE was carried out whose reply was lost. */
  release = (hold) => this.#isMine('RLOCK.RELEASE', hold)

  async #isMine (command, { key, owner, token }, ...options) {
    try {
      await this.send(command, key, owner, 'TOKEN', token, ...options)
      return true
    } catch (error) {
      if (word(error) !== 'NOTOWNER') throw error
      return false
    }
  }

  async held (key, options, work) {
    const hold = await this.acquire(key, options)
    if (!hold) throw new NotGranted(key)
    const [done, lost] = [new AbortController(), new AbortController()]
    const renewal = this.#keep(hold, done.signal, lost)
    try {
      return await work(hold, lost.signal)
    } finally {
      done.abort()
      await renewal
      await this.release(hold)
    }
  }

  /** Renews at a third of the lease. What was granted before a command was sent ends no earlier than a lease after that. */
  async #keep (hold, done, lost) {
    let safeUntil = performance.now() + hold.leaseMs * 2 / 3
    while (performance.now() < safeUntil) {
      await sleep(hold.leaseMs / 3, null, { signal: done }).catch(() => {})
      if (done.aborted) return
      const sent = performance.now()
      try {
        if (!await this.renew(hold)) break
        safeUntil = sent + hold.leaseMs
      } catch (error) {
        if (word(error)) break // What is of the connection may pass before the lease ends.
      }
    }
    lost.abort(new Error(`the lock on ${hold.key} was lost`))
  }
}
