// redis-semaphore's Mutex and Semaphore, over one connection that all clients share, as its documentation has it. It asks again every 10 ms, its default,
// and keeps what is held alive while it is held.

import { Redis } from 'ioredis'
import { Mutex, Semaphore } from 'redis-semaphore'

export async function connect ({ host, port, lock, leaseMs, permits }) {
  const redis = new Redis(port, host)
  redis.on('error', () => {}) // It connects anew by itself.
  return () => async (key, waitMs) => {
    const settings = { lockTimeout: leaseMs, acquireTimeout: waitMs, onLockLost () {} } // Who lost it finds nothing to free.
    const held = lock === 'semaphore' ? new Semaphore(redis, key, permits, settings) : new Mutex(redis, key, settings)
    return await held.tryAcquire() ? () => held.release() : null
  }
}
