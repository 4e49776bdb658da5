import { Acquisition } from './acquisition.js'
import { integer, option, type Target } from './commands.js'
import type { Core } from './core.js'
import { Closed, LockTimeout } from './errors.js'
import { asyncDispose, Hold } from './hold.js'
import type { AcquireOptions, HoldOptions, LockOptions, SemaphoreOptions } from './options.js'
import { checkMs, checkPermits, LEAST_LEASE_MS, merge, YEAR_MS } from './options.js'

/** A lock. Made by {@link RLockClient}; making one costs nothing and tells the server nothing. */
export class Lock<Options extends LockOptions = LockOptions> {
  /** @internal */
  constructor(
    protected readonly core: Core,
    protected readonly target: Target,
    /** The keys, without the prefix of the application's client. */
    readonly keys: readonly string[],
    private readonly options: HoldOptions,
  ) {}

  /**
   * Waits until the lock is granted, in the order of arrival. Survives lost connections and failovers.
   *
   * A cancelled wait rejects with the reason of the signal at once, and the request is withdrawn in the
   * background, so nothing stays behind on the server.
   *
   * @throws {@link LockTimeout} when `timeout` is over, {@link Deadlock}, {@link Superseded},
   * {@link Refused}, {@link ModuleMissing}, {@link ModuleTooOld}, {@link Closed}
   */
  async acquire(options: AcquireOptions & Options = {} as AcquireOptions & Options): Promise<Hold> {
    const { timeout = Infinity, signal, ...rest } = options
    const unlimited = timeout > YEAR_MS
    if (!unlimited) checkMs('timeout', timeout, 0)
    const hold = await this.#acquire(unlimited ? Infinity : timeout || undefined, rest, signal)
    if (hold) return hold
    throw new LockTimeout(`the lock on ${this.keys.join(', ')} was not granted within ${String(timeout)} ms`)
  }

  /**
   * Asks once. Resolves to null if the lock is not free.
   *
   * @throws {@link Unavailable} if the server cannot answer now, and the errors of {@link acquire}
   */
  async tryAcquire(options: Options = {} as Options): Promise<Hold | null> {
    return await this.#acquire(undefined, options, undefined)
  }

  /**
   * Acquires the lock, runs `work` and releases the lock. Resolves or rejects as `work` does, unless `work` has
   * resolved under a lock that was lost. `signal` tells `work` of the loss.
   *
   * @throws what {@link acquire} and `work` throw; otherwise {@link LockLost} if the hold ended before its release,
   * and {@link Closed} if the client was closed
   */
  async using<T>(
    work: (hold: Hold, signal: AbortSignal) => T | Promise<T>,
    options?: AcquireOptions & Options,
  ): Promise<T> {
    const hold = await this.acquire(options)
    let result: T
    try {
      result = await work(hold, hold.signal)
    } catch (error) {
      await hold.release()
      throw error
    }
    await hold[asyncDispose]()
    return result
  }

  async #acquire(wait: number | undefined, own: LockOptions, signal: AbortSignal | undefined): Promise<Hold | null> {
    const { core } = this
    const options = merge(this.options, own)
    const { target } = this
    const { permits = target.permits } = own as SemaphoreOptions
    checkMs('lease', options.lease, LEAST_LEASE_MS)
    checkMs('fixedLease', options.fixedLease, LEAST_LEASE_MS)
    checkMs('session', options.session, LEAST_LEASE_MS)
    checkMs('grace', options.grace, 0)
    checkPermits(permits)
    signal?.throwIfAborted()
    if (core.closing) throw new Closed('the client is closed')
    const { owner = `${core.id}:${++core.owners}` } = options
    const kind = `${target.family} ${target.mode ?? ''}`
    const keys = options.owner === undefined ? [] : target.keys
    const names = keys.map((key) => JSON.stringify([owner, key, kind]))
    const turns = keys.map((key) => JSON.stringify([owner, key]))
    const acquisition = new Acquisition(core, { ...target, permits, owner, options, wait, names, turns })
    const cancel = () => acquisition.stop(signal?.reason as Error)
    signal?.addEventListener('abort', cancel)
    try {
      const holding = await acquisition.run()
      return holding && new Hold(holding, this.keys)
    } finally {
      signal?.removeEventListener('abort', cancel)
    }
  }
}

/** A counting semaphore. It has to be made with {@link init} before it is used. */
export class Semaphore extends Lock<SemaphoreOptions> {
  /**
   * Makes the semaphore with a number of permits; of an existing one it changes only the idle time.
   *
   * @param permits a whole number, 1 or more
   * @param idle the server deletes the semaphore when it was unused for so many milliseconds; 0: never
   * @returns true if it was made, false if it existed
   * @throws {@link Unavailable}, {@link Refused}, {@link ModuleMissing}, {@link ModuleTooOld}
   */
  async init(permits: number, { idle }: { idle?: number } = {}): Promise<boolean> {
    checkMs('idle', idle, 0)
    checkPermits(permits)
    const key = this.target.keys[0] ?? ''
    const command = ['RSEMAPHORE.INIT', key, String(permits), ...option('IDLE', idle)]
    return integer(await this.core.send(key, command)) === 1
  }
}
