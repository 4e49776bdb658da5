// The package rlock-redis, on one connection of ioredis that all clients share, with one subscriber.

import { Redis } from 'ioredis'
import { LockTimeout, RLockClient } from 'rlock-redis'

const SESSION_MS = 200 // How long a hold outlives the connection of a process that was killed.
const FACTORIES = { mutex: 'lock', fair: 'fairLock', read: 'readLock', write: 'writeLock', semaphore: 'semaphore' }

export async function connect ({ host, port, lock, leaseMs, permits, hold }) {
  const redis = new Redis(port, host)
  redis.on('error', () => {}) // It reconnects by itself.
  const rlock = new RLockClient(redis, { lease: leaseMs })
  const made = new Map()
  const make = async (key) => {
    const one = rlock[FACTORIES[lock]](key, hold ? { session: SESSION_MS } : {})
    if (lock === 'semaphore') await one.init(permits)
    return one
  }
  return () => async (key, timeout) => {
    if (!made.has(key)) made.set(key, make(key))
    const one = await made.get(key)
    try {
      const held = await one.acquire({ timeout })
      return () => held.release()
    } catch (error) {
      if (error instanceof LockTimeout) return null
      throw error
    }
  }
}
