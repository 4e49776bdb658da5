// redis-semaphore's Mutex and Semaphore, over one connection that all clients share, as documented.
// It retries every 10 ms, its default, and renews what is held.

import { Redis } from 'ioredis'
import { Mutex, Semaphore } from 'redis-semaphore'

export async function connect ({ host, port, lock, leaseMs, permits }) {
  const redis = new Redis(port, host)
  redis.on('error', () => {}) // It reconnects by itself.
  return () => async (key, waitMs) => {
    const settings = { lockTimeout: leaseMs, acquireTimeout: waitMs, onLockLost () {} } // A lost lock needs no release.
    const held = lock === 'semaphore' ? new Semaphore(redis, key, permits, settings) : new Mutex(redis, key, settings)
    return await held.tryAcquire() ? () => held.release() : null
  }
}
