import { Acquisition } from './acquisition.js'
import { MAX_TIMER_MS, within } from './clock.js'
import { integer, type Target } from './commands.js'
import type { Core } from './core.js'
import { Closed, LockLost, LockTimeout } from './errors.js'
import { Hold, Holding } from './hold.js'
import {
  type AcquireOptions,
  checkMs,
  type HoldOptions,
  type LockOptions,
  merge,
  type SemaphoreOptions,
} from './options.js'

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
   * {@link Refused}, {@link ModuleMissing}, {@link ModuleTooOld}, {@link Closed}; for a named owner
   * {@link LockLost} if it has lost the lock and not released it yet
   */
  async acquire(options: AcquireOptions & Options = {} as AcquireOptions & Options): Promise<Hold> {
    const { timeout = Infinity, signal, ...rest } = options
    if (timeout !== Infinity) checkMs('timeout', timeout, 0)
    const hold = await this.#acquire(timeout > 0 ? timeout : undefined, rest, signal)
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
   * Acquires the lock, runs `work` and releases the lock. Resolves or rejects as `work` does, even if the lock
   * was lost meanwhile: `signal` tells `work` of the loss.
   *
   * @throws what {@link acquire} and `work` throw
   */
  async using<T>(
    work: (hold: Hold, signal: AbortSignal) => T | Promise<T>,
    options?: AcquireOptions & Options,
  ): Promise<T> {
    const hold = await this.acquire(options)
    try {
      return await work(hold, hold.signal)
    } finally {
      await hold.release()
    }
  }

  async #acquire(wait: number | undefined, own: LockOptions, signal: AbortSignal | undefined): Promise<Hold | null> {
    const { core } = this
    const options = merge(this.options, own)
    const permits = (own as SemaphoreOptions).permits ?? this.target.permits
    const target = permits === undefined ? this.target : { ...this.target, permits }
    checkMs('lease', options.lease, 1)
    checkMs('fixedLease', options.fixedLease, 1)
    checkMs('session', options.session, 0)
    checkMs('grace', options.grace, 0)
    signal?.throwIfAborted()
    if (core.closed) throw new Closed('the client is closed')
    const { owner } = options
    if (owner === undefined) return await this.#request(target, core.freshOwner(), options, wait, signal, [])

    const kind = `${target.family} ${target.mode ?? ''}`
    const names = target.keys.map((key) => JSON.stringify([owner, kind, key]))
    const since = core.now()
    const left = () => (wait ?? core.commandTimeout) - since.elapsed()
    // Until what this owner holds, acquires or releases under these keys has been taken into account.
    for (let busy; (busy = names.map((name) => core.named.get(name)).find((entry) => entry !== undefined));) {
      if (busy instanceof Holding) return this.#reenter(busy, target)
      const late = () => new LockTimeout(`an earlier request of the owner ${owner} has not ended in time`)
      await cancellable(within(busy, Math.min(left(), MAX_TIMER_MS), late), signal)
    }
    const pending = this.#request(target, owner, options, wait === undefined ? wait : left(), signal, names)
    const ended = pending.catch(() => undefined)
    for (const name of names) if (!core.named.has(name)) core.named.set(name, ended)
    return await pending
  }

  /** Re-entry is counted here, so that a lost answer cannot leave a second hold on the server. */
  #reenter(holding: Holding, target: Target): Hold {
    if (holding.target.permits !== target.permits || holding.target.keys.join('\0') !== target.keys.join('\0')) {
      throw new TypeError(`the owner ${holding.owner} holds ${holding.target.keys.join(', ')} in another way`)
    }
    if (holding.remaining() <= 0) throw new LockLost(`the owner ${holding.owner} has lost the lock`)
    holding.count++
    return new Hold(holding, this.keys)
  }

  async #request(
    target: Target,
    owner: string,
    options: HoldOptions,
    wait: number | undefined,
    signal: AbortSignal | undefined,
    names: readonly string[],
  ): Promise<Hold | null> {
    const { core } = this
    const acquisition = new Acquisition(core, target, owner, options, wait)
    const cancel = () => {
      acquisition.stop(signal?.reason as Error)
    }
    signal?.addEventListener('abort', cancel, { once: true })
    let holding: Holding | undefined
    try {
      const grant = await acquisition.run()
      if (grant) holding = new Holding(core, target, owner, options, grant, names)
      return holding ? new Hold(holding, this.keys) : null
    } finally {
      signal?.removeEventListener('abort', cancel)
      for (const name of names) {
        if (holding) core.named.set(name, holding)
        else core.named.delete(name)
      }
    }
  }
}

/** A counting semaphore. It has to be made with {@link init} before it is used. */
export class Semaphore extends Lock<SemaphoreOptions> {
  /**
   * Makes the semaphore with a number of permits; of an existing one it changes only the idle time.
   *
   * @param idle the server deletes the semaphore when it was unused for so many milliseconds
   * @returns true if it was made, false if it existed
   * @throws {@link Unavailable}, {@link Refused}, {@link ModuleMissing}, {@link ModuleTooOld}
   */
  async init(permits: number, { idle }: { idle?: number } = {}): Promise<boolean> {
    checkMs('idle', idle, 0)
    const key = this.target.keys[0] ?? ''
    const command = ['RSEMAPHORE.INIT', key, String(permits), ...(idle === undefined ? [] : ['IDLE', String(idle)])]
    return integer(await this.core.send(key, command)) === 1
  }
}

/** Settles as the promise does, or rejects with the reason of the signal. */
async function cancellable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return await promise
  let cancel: (() => void) | undefined
  const cancelled = new Promise<never>((_, reject) => {
    cancel = () => {
      reject(signal.reason as Error)
    }
    signal.addEventListener('abort', cancel, { once: true })
  })
  try {
    return await Promise.race([promise, cancelled])
  } finally {
    if (cancel) signal.removeEventListener('abort', cancel)
  }
}
