// redlock, with one Redis and one connection that all clients share, as documented. It retries
// after 200 ms ± 100 ms, its default. The default limit of ten tries is lifted, because clients
// here wait until they have the lock.

import { Redis } from 'ioredis'
import Redlock from 'redlock'

export async function connect ({ host, port, leaseMs }) {
  const redis = new Redis(port, host)
  redis.on('error', () => {}) // It reconnects by itself.
  const redlock = new Redlock([redis], { retryCount: -1 })
  redlock.on('clientError', () => {}) // It counts as a failed attempt, and the next one follows.
  return () => async (key) => {
    const lock = await redlock.lock(key, leaseMs) // It has no timeout. The program abandons it.
    return () => lock.unlock()
  }
}
