import type { Grant } from './acquisition.js'
import { believed, Pauses, type Stopwatch, within } from './clock.js'
import { firstKey, integer, nextRequest, type Target, tokenOption, words } from './commands.js'
import type { Core } from './core.js'
import { LockLost, Unavailable } from './errors.js'
import { translate } from './translate.js'
import { checkMs, type HoldOptions } from './options.js'

// Timers stand still while the machine is suspended, so the clock is read this often.
const LOOK_MS = 500

/** What became of a release; `unreached` if the server has not answered. @internal */
export type Released = 'released' | 'lost' | 'unreached'

/** `await using` looks for this symbol, which Node has since 20.5. */
const asyncDispose: typeof Symbol.asyncDispose =
  (Symbol as { asyncDispose?: typeof Symbol.asyncDispose }).asyncDispose ??
  (Symbol.for('Symbol.asyncDispose') as unknown as typeof Symbol.asyncDispose)

/** A hold on the server, which several acquisitions of a named owner may share. @internal */
export class Holding {
  /** How many {@link Hold}s share it. */
  count = 1
  readonly #controller = new AbortController()
  readonly #pauses = new Pauses()
  readonly #period: number
  /** The deadline is `#valid` milliseconds after `#since`. */
  #since: Stopwatch
  #valid: number
  #renewed: Stopwatch
  #timer: NodeJS.Timeout | undefined
  #renewing = false
  #over = false
  #released: Promise<Released> | undefined

  constructor(
    readonly core: Core,
    readonly target: Target,
    readonly owner: string,
    readonly options: HoldOptions,
    readonly grant: Grant,
    /** Its entries in `core.named`. */
    private readonly names: readonly string[],
  ) {
    this.#since = this.#renewed = grant.since
    this.#valid = believed(grant.lease)
    this.#period = Math.min(grant.lease, options.session || grant.lease) / 3
    core.holdings.add(this)
    for (const name of names) core.named.set(name, this)
    this.#look()
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  /** The milliseconds until the deadline; 0 after it, and once the release has begun. */
  remaining(): number {
    return this.#over ? 0 : this.#left()
  }

  /** A connection of the application's client was lost, or is established. */
  connection(up: boolean): void {
    const { session } = this.options
    if (session === undefined) return
    const grace = Math.min(session, this.grant.lease)
    if (up) void this.#renew()
    else if (this.#left() > grace) {
      this.#since = this.core.now()
      this.#valid = grace
      this.#look()
    }
  }

  /** Ends the belief, with a reason if the application did not ask for it, and sends RELEASE. */
  release(keep?: number, reason?: Error): Promise<Released> {
    return (this.#released ??= this.#release(keep, reason))
  }

  async #release(keep: number | undefined, reason: Error | undefined): Promise<Released> {
    const { core, names } = this
    if (this.remaining() <= 0) {
      this.#lose('its lease has expired')
      core.unname(names, this)
      return 'lost'
    }
    this.#end(reason)
    const sending = this.#send(keep)
    core.background(sending)
    // The next request of a named owner is sent after this one has ended, so that they cannot be confused.
    for (const name of names) core.named.set(name, sending)
    void sending.then(() => core.unname(names, sending))
    // The caller does not wait for a server that is silent.
    const late = () => new Unavailable('no answer')
    return await within(sending, core.commandTimeout, late).catch((): Released => 'unreached')
  }

  async #send(keep: number | undefined): Promise<Released> {
    const { core, target } = this
    const kept = keep === undefined ? [] : ['KEEP', String(keep)]
    const command = [...words('RELEASE', target, this.owner), 'REQ', nextRequest(), ...kept]
    command.push(...tokenOption(target, this.grant.tokens))
    const { losses } = core
    const pauses = this.#pauses
    pauses.reset()
    let repeated = false
    let failure
    do {
      try {
        await core.send(firstKey(target), command)
        return 'released'
      } catch (error) {
        failure = translate(error)
        // ioredis repeats by itself what a lost connection has not answered.
        if (failure.code === 'NOTOWNER') return repeated || core.losses !== losses ? 'released' : 'lost'
        if (!(failure instanceof Unavailable)) break
        repeated ||= failure.code === undefined
      }
      await pauses.backOff(this.#left())
    } while (this.#left() > 0)
    core.warn(`the release of ${target.keys.join(', ')} did not reach the server; the lease ends it`, failure)
    return 'unreached'
  }

  #left(): number {
    return Math.max(0, this.#valid - this.#since())
  }

  #end(reason?: Error): void {
    this.#over = true
    clearTimeout(this.#timer)
    this.#pauses.cut()
    this.core.holdings.delete(this)
    if (reason) this.#controller.abort(reason)
  }

  #lose(why: string): void {
    if (!this.#over) this.#end(new LockLost(`the lock on ${this.target.keys.join(', ')} was lost: ${why}`))
  }

  // The deadline depends on the clock alone: no answer, connection or renewal can keep this from being called.
  readonly #look = (): void => {
    clearTimeout(this.#timer)
    if (this.#over) return
    const left = this.#left()
    if (left <= 0) {
      this.#lose('its lease has expired')
      return
    }
    let wait = Math.min(left, LOOK_MS)
    if (this.options.fixedLease === undefined && !this.#renewing) {
      const due = this.#period - this.#renewed()
      if (due <= 0) void this.#renew()
      else wait = Math.min(wait, due)
    }
    this.#timer = setTimeout(this.#look, wait)
  }

  async #renew(): Promise<void> {
    this.#pauses.cut()
    if (this.#renewing || this.#over) return
    this.#renewing = true
    this.#pauses.reset()
    const { core, target, grant, options } = this
    while (this.remaining() > 0) {
      const since = core.now()
      const command = [...words('RENEW', target, this.owner)]
      let { lease } = grant
      if (options.fixedLease !== undefined) {
        // Binds the hold to the new connection, and restores the end that the loss of the old one brought nearer.
        lease = Math.max(1, Math.floor(lease - grant.since()))
        command.push('PX', String(lease))
      }
      command.push(...tokenOption(target, grant.tokens))
      try {
        const timeout = Math.min(this.#period, core.commandTimeout, this.#left())
        const left = integer(await core.send(firstKey(target), command, timeout))
        // An answer that arrives after the deadline prolongs nothing.
        if (this.remaining() <= 0) break
        this.#since = this.#renewed = since
        this.#valid = believed(Math.min(lease, left ?? lease))
        break
      } catch (error) {
        const failure = translate(error)
        if (failure.code === 'NOTOWNER') this.#lose(failure.message)
        else await this.#pauses.backOff(this.#left())
      }
    }
    this.#renewing = false
    this.#look()
  }
}

/** A lock that is held. */
export class Hold implements AsyncDisposable {
  #released: Promise<Released> | undefined

  /** @internal */
  constructor(
    private readonly holding: Holding,
    /** The keys, without the prefix of the application's client. */
    readonly keys: readonly string[],
  ) {}

  /** The fencing token; of several keys that of the first one. Higher than that of every hold before it. */
  get token(): number {
    return this.holding.grant.tokens[0] ?? 0
  }

  /** The fencing tokens of all keys, in their order. */
  get tokens(): readonly number[] {
    return this.holding.grant.tokens
  }

  /** The name of the owner. */
  get owner(): string {
    return this.holding.owner
  }

  /**
   * Aborts with {@link LockLost} when the lock is lost, at the deadline at the latest and whatever the network
   * does; with {@link Closed} when the client is closed. A release does not abort it.
   */
  get signal(): AbortSignal {
    return this.holding.signal
  }

  /** True until the deadline, the loss or the release. Reads the clock, so it is right even if timers are late. */
  get held(): boolean {
    return this.remaining > 0
  }

  /** The milliseconds until the deadline, unless a renewal extends it; 0 if the lock is not held. */
  get remaining(): number {
    return this.#released ? 0 : this.holding.remaining()
  }

  /**
   * Releases the lock. Resolves to true when the server has confirmed it, to false if the lock was lost before
   * or the server did not answer within the command timeout; then the release is repeated in the background
   * until the lease ends. Never rejects. Further calls return the first one's result. Of a named owner that
   * holds several times only the last release is sent.
   */
  async release(): Promise<boolean> {
    return (await this.#release()) === 'released'
  }

  /**
   * Ends the hold and keeps the lock closed for `ms` milliseconds, for work that must happen at most once per
   * period. Only of mutexes and fair locks, and not while the owner holds several times. Resolves as
   * {@link release} does.
   *
   * @throws TypeError for other locks, RangeError unless `ms` is a whole number above 0
   */
  async releaseAndKeep(ms: number): Promise<boolean> {
    checkMs('ms', ms, 1)
    const { family, many } = this.holding.target
    if (many || (family !== 'RLOCK' && family !== 'RFAIRLOCK')) {
      throw new TypeError('only a mutex or a fair lock can be kept closed')
    }
    if (this.holding.count > 1) throw new TypeError('the owner holds the lock several times')
    return (await this.#release(ms)) === 'released'
  }

  /**
   * Releases the lock at the end of an `await using` scope.
   *
   * @throws {@link LockLost} if the lock was lost before. If the scope ended with an error as well, the
   * language wraps both in a SuppressedError; {@link Lock.using} does not.
   */
  async [asyncDispose](): Promise<void> {
    if ((await this.#release()) !== 'lost') return
    const { reason } = this.signal as { reason: unknown }
    throw reason instanceof LockLost ? reason : new LockLost(`the lock on ${this.keys.join(', ')} was lost`)
  }

  #release(keep?: number): Promise<Released> {
    if (this.#released) return this.#released
    const { holding } = this
    if (--holding.count <= 0) return (this.#released = holding.release(keep))
    return (this.#released = Promise.resolve(holding.remaining() > 0 ? 'released' : 'lost'))
  }
}
