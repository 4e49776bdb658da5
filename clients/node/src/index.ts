/**
 * Locks on Redis and Valkey servers that run the rlock module.
 *
 * @packageDocumentation
 */
export { RLockClient, type RedisClient } from './client.js'
export { Lock, Semaphore } from './lock.js'
export type { Hold } from './hold.js'
export type { Clock } from './clock.js'
export type { Driver, Subscriber } from './driver.js'
export type { AcquireOptions, ClientOptions, FairLockOptions, LockOptions, SemaphoreOptions } from './options.js'
export * from './errors.js'
