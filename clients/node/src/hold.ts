import type { Grant } from './acquisition.js'
import { backOff, believed, type Stopwatch, type Task } from './clock.js'
import { firstKey, integer, option, type Request, tokenOption, translate, words } from './commands.js'
import type { Core } from './core.js'
import { LockLost, Unavailable } from './errors.js'
import { checkMs, leaseOf, renewalOf } from './options.js'

// Timers stand still while the machine is suspended, so the clock is read this often.
const LOOK_MS = 500

// What RELEASE says of a hold that has ended: also if the key was overwritten or deleted.
const GONE = new Set(['NOTOWNER', 'WRONGTYPE', 'NOSEMAPHORE'])

/** `await using` looks for this symbol, which Node has since 20.5. @internal */
export const asyncDispose: typeof Symbol.asyncDispose =
  (Symbol as { asyncDispose?: typeof Symbol.asyncDispose }).asyncDispose ??
  (Symbol.for('Symbol.asyncDispose') as unknown as typeof Symbol.asyncDispose)

/** A hold on the server, which several acquisitions of a named owner may share. @internal */
export class Holding {
  /** How many {@link Hold}s share it. */
  count = 1
  /** Why it ended, if its release was not asked for or came too late. */
  reason: Error | undefined
  #controller: AbortController | undefined
  /** The deadline is `#valid` milliseconds after `#since`, the next renewal is due `#next` milliseconds after it. */
  #since: Stopwatch
  #valid: number
  #next: number
  #renewing = false
  #failures = 0
  #task: Task | undefined
  #over = false
  #released: Promise<boolean> | undefined

  constructor(
    readonly core: Core,
    readonly request: Request,
    readonly grant: Grant,
  ) {
    this.#since = grant.since
    this.#valid = believed(grant.ms)
    this.#next = this.#since() + Math.min(renewalOf(request.options), this.#left() / 3)
    core.holdings.add(this)
    for (const name of request.names) core.named.set(name, this)
    this.#watch()
  }

  get signal(): AbortSignal {
    this.#controller ??= new AbortController()
    if (this.reason) this.#controller.abort(this.reason)
    return this.#controller.signal
  }

  /** The milliseconds until the deadline; 0 after it, and once the release has begun. */
  remaining(): number {
    return this.#over ? 0 : this.#left()
  }

  /** Whether it is held. Tells of the loss if the timer is late. */
  look(): boolean {
    if (this.remaining() <= 0) this.#lose('its lease has expired', true)
    return !this.#over
  }

  /** A connection of the application's client is established, and is to keep the session. */
  connected(): void {
    if (this.request.options.session === undefined) return
    this.#next = 0
    this.#watch()
  }

  /** Ends the belief, with a reason if the application did not ask for it, and sends RELEASE. */
  release(keep?: number, reason?: Error): Promise<boolean> {
    return (this.#released ??= this.#release(keep, reason))
  }

  async #release(keep: number | undefined, reason: Error | undefined): Promise<boolean> {
    if (!this.look()) return false
    const { core } = this
    this.#end(reason)
    // The caller does not wait for a server that is silent.
    const late = () => new Unavailable('no answer')
    return await core.schedule.within(this.#settle(keep), core.commandTimeout, late).catch(() => false)
  }

  /** The next request of a named owner is sent after the RELEASE has ended, so that they cannot be confused. */
  #settle(keep?: number, pause?: number): Promise<boolean> {
    const { core, request } = this
    const sending = this.#send(keep, pause)
    core.background(sending)
    for (const name of request.names) core.named.set(name, sending)
    void sending.then(() => core.unname(request.names, sending))
    return sending
  }

  async #send(keep: number | undefined, pause = 0): Promise<boolean> {
    const { core, request, grant } = this
    const { losses } = core
    // Permits are counted, and another client may use the name, so the server has to know a late copy.
    const number = request.permits !== undefined || request.names.length > 0 ? grant.id + 1 : undefined
    const command = [...words('RELEASE', request), ...option('REQ', number), ...option('KEEP', keep)]
    command.push(...tokenOption(request, grant.tokens), ...(request.many ? ['EACH'] : []))
    const wasLost = this.reason instanceof LockLost
    // A late renewal may have extended a lost hold, and an open connection keeps a session.
    const [released, lease] = [core.now(), this.#lease()]
    if (pause > 0) await core.schedule.pause(pause)
    let repeated = false
    let failure
    for (let n = 0; n === 0 || (released() < lease && !core.ended); n++) {
      try {
        const left = await core.send(firstKey(request), command)
        if (!(Array.isArray(left) && left.includes(null))) return true
        // The other keys are released.
        const done = (repeated || core.losses !== losses) && this.#left() > 0
        if (!done) this.reason ??= new LockLost('this owner does not hold all of the keys', 'NOTOWNER')
        return done
      } catch (error) {
        failure = translate(error)
        // A newer request of this owner has the hold.
        if (failure.code === 'STALE') return true
        if (failure.code !== undefined && GONE.has(failure.code)) {
          // ioredis repeats by itself what a lost connection has not answered.
          if ((repeated || core.losses !== losses) && this.#left() > 0) return true
          this.reason ??= new LockLost(failure.message, failure.code)
          // MRELEASE releases no key if one of them holds something else.
          const one = (token: number, n: number) => {
            const key = request.keys[n] ?? ''
            return core.send(key, ['RLOCK.RELEASE', key, request.owner, 'TOKEN', String(token)])
          }
          if (request.many) await Promise.allSettled(grant.tokens.map(one))
          return false
        }
        if (!(failure instanceof Unavailable)) break
        repeated ||= failure.code === undefined
      }
      await core.schedule.pause(backOff(n))
    }
    if (!wasLost)
      core.warn(`the release of ${request.keys.join(', ')} did not reach the server; the lease ends it`, failure)
    return false
  }

  #left(): number {
    return Math.max(0, this.#valid - this.#since())
  }

  /** The lease to ask for: what is left of a fixed one. */
  #lease(): number {
    const { lease, fixedLease } = this.request.options
    return fixedLease === undefined ? lease : Math.max(1, Math.floor(fixedLease - this.grant.start()))
  }

  #end(reason?: Error): void {
    this.#over = true
    if (this.#task) this.core.schedule.cancel(this.#task)
    this.core.holdings.delete(this)
    this.reason = reason
    if (reason) this.#controller?.abort(reason)
  }

  #lose(why: string, isOnServer: boolean): void {
    if (this.#over) return
    const { core, request } = this
    this.#end(new LockLost(`the lock on ${request.keys.join(', ')} was lost: ${why}`))
    // The work stops in the meantime.
    if (isOnServer) void this.#settle(undefined, Math.min(leaseOf(request.options) / 100, 1000))
    else core.unname(request.names, this)
  }

  // The deadline depends on the clock alone: no answer, connection or renewal can keep this from being called.
  readonly #watch = (): void => {
    const { schedule } = this.core
    if (this.#task) schedule.cancel(this.#task)
    if (!this.look()) return
    const due = this.#next - this.#since()
    if (due <= 0 && !this.#renewing) void this.#renew()
    this.#task = schedule.after(Math.min(this.#left(), LOOK_MS, due > 0 ? due : Infinity), this.#watch)
  }

  async #renew(): Promise<void> {
    const { core, request, grant } = this
    const { fixedLease, session = Infinity } = request.options
    const lease = this.#lease()
    const command = [...words('RENEW', request), 'PX', String(lease), 'TIMED', ...tokenOption(request, grant.tokens)]
    this.#renewing = true
    const since = core.now()
    try {
      const timeout = Math.min(core.commandTimeout, this.#left() / 2)
      const left = integer(await core.send(firstKey(request), command, timeout)) ?? 0
      const ms = Math.min(left, lease, session)
      // Nothing is left to ask for if the server has granted all of a fixed lease.
      const next = fixedLease !== undefined && ms >= lease ? Infinity : ms / 3
      // An answer that arrives after the deadline prolongs nothing.
      if (this.remaining() > 0) [this.#since, this.#valid, this.#next] = [since, believed(ms), next]
      this.#failures = 0
    } catch (error) {
      const failure = translate(error)
      if (failure.code === 'NOTOWNER') this.#lose(failure.message, request.many === true)
      this.#next = this.#since() + backOff(this.#failures++)
    }
    this.#renewing = false
    this.#watch()
  }
}

/** A lock that is held. */
export class Hold implements AsyncDisposable {
  /** The fencing token; of several keys that of the first one. Higher than that of every hold before it. */
  readonly token: number
  /** The fencing tokens of all keys, in their order. */
  readonly tokens: readonly number[]
  /** The name of the owner. */
  readonly owner: string
  #released: Promise<boolean> | undefined

  /** @internal */
  constructor(
    private readonly holding: Holding,
    /** The keys, without the prefix of the application's client. */
    readonly keys: readonly string[],
  ) {
    this.tokens = holding.grant.tokens
    this.token = this.tokens[0] ?? 0
    this.owner = holding.request.owner
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
    return await this.#release()
  }

  /**
   * Ends the hold and keeps the lock closed for `ms` milliseconds, for work that must happen at most once per
   * period; 0 is a {@link release}. Only of mutexes and fair locks, and not while the owner holds several times. Resolves as
   * {@link release} does.
   *
   * @throws TypeError for other locks, RangeError unless `ms` is a whole number, at most 365 days
   */
  async releaseAndKeep(ms: number): Promise<boolean> {
    checkMs('ms', ms, 0)
    const { family, many } = this.holding.request
    if (many || (family !== 'RLOCK' && family !== 'RFAIRLOCK')) {
      throw new TypeError('only a mutex or a fair lock can be kept closed')
    }
    if (this.holding.count > 1) throw new TypeError('the owner holds the lock several times')
    return await this.#release(ms)
  }

  /**
   * Releases the lock at the end of an `await using` scope.
   *
   * @throws {@link LockLost} if the lock was lost before, {@link Closed} if the client was closed. If the scope
   * ended with an error as well, the language wraps both in a SuppressedError; {@link Lock.using} does not.
   */
  async [asyncDispose](): Promise<void> {
    await this.#release()
    if (this.holding.reason) throw this.holding.reason
  }

  #release(keep?: number): Promise<boolean> {
    if (this.#released) return this.#released
    const { holding } = this
    const isLast = --holding.count <= 0
    return (this.#released = isLast ? holding.release(keep) : Promise.resolve(holding.look()))
  }
}
