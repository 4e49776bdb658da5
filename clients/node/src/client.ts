import { systemClock } from './clock.js'
import { Core } from './core.js'
import type { Target } from './commands.js'
import type { Driver } from './driver.js'
import type { Hold } from './hold.js'
import { IoredisDriver, type IoredisClient } from './ioredis.js'
import { Lock, Semaphore } from './lock.js'
import { type NodeRedisClient, NodeRedisDriver } from './node-redis.js'
import type { AcquireOptions, ClientOptions, FairLockOptions, LockOptions, SemaphoreOptions } from './options.js'
import { checkMs, LEAST_LEASE_MS, merge } from './options.js'

/** A client of ioredis or node-redis, of a single server or a cluster. */
export type RedisClient = IoredisClient | NodeRedisClient

/**
 * Locks over an application's connection. One client serves a whole program: thousands of waits share the
 * connection and one subscriber, which is opened at the first wait. An idle client does not keep the process
 * alive; a hold does, because it is renewed.
 */
export class RLockClient {
  readonly #core: Core
  readonly #lease: number

  /**
   * @param client the application's client, connected, or a {@link Driver} for another library. It stays the
   * application's: the package neither closes it nor changes its options.
   */
  constructor(client: RedisClient | Driver, options: ClientOptions = {}) {
    const { lease = 30_000, commandTimeout = 5000, clock = systemClock } = options
    checkMs('lease', lease, LEAST_LEASE_MS)
    checkMs('commandTimeout', commandTimeout, 1)
    const emit = (message: string, error?: unknown) =>
      process.emitWarning(error instanceof Error ? `${message}: ${error.message}` : message, 'RLockWarning')
    const warn = (message: string, error?: unknown) => {
      try {
        ;(options.onWarning ?? emit)(message, error)
      } catch (thrown) {
        emit('onWarning has thrown', thrown)
      }
    }
    this.#lease = lease
    this.#core = new Core(driverOf(client), clock, commandTimeout, warn)
  }

  /** A mutex. */
  lock(key: string, options: LockOptions = {}): Lock {
    return this.#lock({ family: 'RLOCK', keys: [key] }, options)
  }

  /** A mutex whose queue the server saves and replicates, so that the order survives restarts and failovers. */
  fairLock(key: string, options: FairLockOptions = {}): Lock<FairLockOptions> {
    return this.#lock({ family: 'RFAIRLOCK', keys: [key] }, options)
  }

  /** The shared side of a read-write lock. */
  readLock(key: string, options: LockOptions = {}): Lock {
    return this.#lock({ family: 'RRWLOCK', keys: [key], mode: 'READ' }, options)
  }

  /** The exclusive side of a read-write lock. */
  writeLock(key: string, options: LockOptions = {}): Lock {
    return this.#lock({ family: 'RRWLOCK', keys: [key], mode: 'WRITE' }, options)
  }

  /** A semaphore, of which each acquisition takes `permits`. */
  semaphore(key: string, { permits = 1, ...options }: SemaphoreOptions = {}): Semaphore {
    const target = this.#target({ family: 'RSEMAPHORE', keys: [key], permits })
    return new Semaphore(this.#core, target, [key], merge({ lease: this.#lease }, options))
  }

  /** Several mutexes that are acquired in one step, all or none. In a cluster they need a common hash tag. */
  multiLock(keys: readonly string[], options: LockOptions = {}): Lock {
    if (keys.length === 0) throw new RangeError('multiLock needs a key')
    return this.#lock({ family: 'RLOCK', keys, many: true }, options)
  }

  /**
   * Takes part in the election of a leader: waits for the mutex `key` and calls `lead` with its hold; if the
   * hold is lost, takes part again as soon as `lead` has ended. Ends when `lead` ends while it is the leader, or
   * when `signal` of the options is aborted. That aborts the signal of `lead` as well; once `lead` has ended, the
   * lock is released.
   *
   * @throws what `lead` throws, the reason of the signal, and the errors of {@link Lock.acquire}
   */
  async leader(
    key: string,
    lead: (hold: Hold, signal: AbortSignal) => void | Promise<void>,
    options: Omit<AcquireOptions, 'timeout'> = {},
  ): Promise<void> {
    const { signal: stop } = options
    for (;;) {
      const hold = await this.lock(key).acquire(options)
      const controller = new AbortController()
      const end = () => controller.abort(hold.signal.aborted ? hold.signal.reason : stop?.reason)
      hold.signal.addEventListener('abort', end)
      stop?.addEventListener('abort', end)
      if (hold.signal.aborted || stop?.aborted) end()
      try {
        await lead(hold, controller.signal)
        stop?.throwIfAborted()
        if (hold.held) return
      } catch (error) {
        // Libraries that are given a signal throw its reason, or an error with that cause.
        const { reason } = hold.signal as { reason: unknown }
        if (!hold.signal.aborted || (error !== reason && (error as Error).cause !== reason)) throw error
      } finally {
        stop?.removeEventListener('abort', end)
        await hold.release()
      }
    }
  }

  /**
   * Ends all waits with {@link Closed}, releases all holds, withdraws what is pending, for at most 5 s, and
   * closes the subscriber. The application's client stays open.
   */
  async close(): Promise<void> {
    await this.#core.close()
  }

  #lock<O extends LockOptions>(target: Target, options: O): Lock<O> {
    return new Lock<O>(this.#core, this.#target(target), target.keys, merge({ lease: this.#lease }, options))
  }

  #target(target: Target): Target {
    const { keyPrefix } = this.#core.driver
    return { ...target, keys: target.keys.map((key) => keyPrefix + key) }
  }
}

function driverOf(client: RedisClient | Driver): Driver {
  if ('subscriber' in client && 'watch' in client && 'keyPrefix' in client) return client
  if ('call' in client) return new IoredisDriver(client)
  return new NodeRedisDriver(client)
}
