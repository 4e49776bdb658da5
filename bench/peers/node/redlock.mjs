// redlock, over one Redis and one connection that all clients share, as its documentation has it. It asks again after 200 ms ± 100 ms, its default; the
// default of ten tries is lifted, since everybody here waits until it has the lock.

import { Redis } from 'ioredis'
import Redlock from 'redlock'

export async function connect ({ host, port, leaseMs }) {
  const redis = new Redis(port, host)
  redis.on('error', () => {}) // It connects anew by itself.
  const redlock = new Redlock([redis], { retryCount: -1 })
  redlock.on('clientError', () => {}) // The try counts as one that failed, and is followed by the next.
  return () => async (key) => {
    const lock = await redlock.lock(key, leaseMs) // It has no limit of time. The program abandons it.
    return () => lock.unlock()
  }
}
