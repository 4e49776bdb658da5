// A worker of a queue in Redis. Jobs of one customer never run at the same time, those of others do.
//
//   REDIS_URL=redis://127.0.0.1:6379 node worker.mjs
//
// A job is a JSON text `{"id", "customer", …}` in the list `jobs`. A job that fails is tried again, without limit.
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'

import { Redis } from 'ioredis'
import { RLockClient } from 'rlock-redis'

const CONCURRENCY = 10
const PAUSE = 1000 // After an error, so that a job that always fails keeps no processor busy.

export class Worker {
  #running = true
  #id = randomUUID()
  #redis
  #locks
  #loops

  /** `work(job, { token, signal })`; the signal aborts if the lock is lost. */
  constructor(url, work) {
    this.#redis = new Redis(url)
    this.#locks = new RLockClient(this.#redis, { lease: 10_000 })
    this.#loops = Array.from({ length: CONCURRENCY }, () => this.#loop(new Redis(url), work))
  }

  async #loop(queue, work) {
    const mine = `jobs:of:${this.#id}` // Jobs in work: what a crash leaves there can be put back.
    while (this.#running) {
      let text = null
      try {
        // This call blocks its connection, so each loop has one. Waiting for a lock does not.
        text = await queue.blmove('jobs', mine, 'RIGHT', 'LEFT', 0.5)
        if (text === null) continue
        await this.#run(JSON.parse(text), work)
        await queue.lrem(mine, 1, text)
      } catch (error) {
        console.error(text === null ? 'the queue cannot be read:' : `goes back to the queue: ${text}:`, error.message)
        await sleep(PAUSE) // In this order: another loop would take the job at once.
        if (text !== null) await this.#putBack(queue, mine, text)
      }
    }
    queue.disconnect()
  }

  async #run(job, work) {
    await this.#locks.lock(`customer:${job.customer}`, { session: 1000, note: `job ${job.id}` }).using(
      // Rejects also if the lock was lost on the way: the job is not done then.
      (hold, signal) => work(job, { token: hold.token, signal }),
      { timeout: 60_000 },
    )
  }

  async #putBack(queue, mine, text) {
    try {
      await queue.multi().lrem(mine, 1, text).lpush('jobs', text).exec()
    } catch (error) {
      console.error(`stays in ${mine}: ${text}:`, error.message)
    }
  }

  /** Ends after the jobs in work. */
  async close() {
    this.#running = false
    await Promise.all(this.#loops)
    await this.#locks.close()
    this.#redis.disconnect()
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const worker = new Worker(process.env.REDIS_URL ?? 'redis://127.0.0.1:6379', async (job, { token, signal }) => {
    const response = await fetch(job.url, { method: 'POST', headers: { 'x-fencing-token': token }, signal })
    if (!response.ok) throw new Error(`${job.url}: ${response.status}`)
  })
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => worker.close())
}
