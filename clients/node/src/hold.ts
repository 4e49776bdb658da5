import type { Grant } from './acquisition.js'
import { believed, Pauses, type Stopwatch, within } from './clock.js'
import { firstKey, integer, option, type Request, tokenOption, translate, words } from './commands.js'
import type { Core } from './core.js'
import { LockLost, Unavailable } from './errors.js'
import { checkMs, sessionLease } from './options.js'

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
  /** Set once it is known that the hold has ended otherwise than by its release. */
  lost: LockLost | undefined
  readonly #controller = new AbortController()
  readonly signal: AbortSignal = this.#controller.signal
  readonly #pauses = new Pauses()
  readonly #period: number
  readonly #span: number
  /** The deadline is `#valid` milliseconds after `#since`. */
  #since: Stopwatch
  #valid: number
  /** The next renewal is due `#wait` milliseconds after `#tried`. */
  #tried: Stopwatch
  #wait: number
  #renewing = false
  #timer: NodeJS.Timeout | undefined
  #over = false
  #released: Promise<boolean> | undefined
  /** The RELEASE of a hold that was lost. */
  #settling: Promise<boolean> | undefined

  constructor(
    readonly core: Core,
    readonly request: Request,
    readonly grant: Grant,
  ) {
    const { fixedLease, session } = request.options
    this.#since = this.#tried = grant.since
    this.#span = sessionLease(request.options, grant.lease)
    this.#valid = believed(this.#span)
    const isKept = fixedLease === undefined || session !== undefined
    this.#wait = this.#period = isKept ? this.#span / 3 : Infinity
    core.holdings.add(this)
    for (const name of request.names) core.named.set(name, this)
    this.#watch()
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
    this.#wait = 0
    this.#watch()
  }

  /** Ends the belief, with a reason if the application did not ask for it, and sends RELEASE. */
  release(keep?: number, reason?: Error): Promise<boolean> {
    return (this.#released ??= this.#release(keep, reason))
  }

  async #release(keep: number | undefined, reason: Error | undefined): Promise<boolean> {
    const { core } = this
    if (!this.look()) {
      this.#replace(this.#settling)
      return false
    }
    this.#end(reason)
    const sending = this.#send(keep)
    core.background(sending)
    this.#replace(sending)
    // The caller does not wait for a server that is silent.
    const late = () => new Unavailable('no answer')
    return await within(sending, core.commandTimeout, late).catch(() => false)
  }

  /** The next request of a named owner is sent after the RELEASE has ended, so that they cannot be confused. */
  #replace(sending: Promise<boolean> | undefined): void {
    const { core, request } = this
    core.unname(request.names, this)
    if (!sending) return
    for (const name of request.names) core.named.set(name, sending)
    void sending.then(() => core.unname(request.names, sending))
  }

  async #send(keep: number | undefined, pause = 0): Promise<boolean> {
    const { core, request, grant } = this
    const id = String(grant.id + 1)
    const command = [...words('RELEASE', request), 'REQ', id, ...option('KEEP', keep)]
    command.push(...tokenOption(request, grant.tokens))
    const { losses } = core
    // A late renewal may have extended a lost hold, and an open connection keeps a session.
    const { fixedLease, session } = request.options
    const wasLost = this.lost !== undefined
    const outlasts = session !== undefined || (wasLost && fixedLease === undefined)
    const released = core.now()
    const left = () => (outlasts ? grant.lease - released() : this.#left())
    if (pause > 0) await this.#pauses.wait(pause)
    let repeated = false
    let failure
    do {
      try {
        await core.send(firstKey(request), command)
        return true
      } catch (error) {
        failure = translate(error)
        // A newer request of this owner has the hold.
        if (failure.code === 'STALE') return true
        if (failure.code !== undefined && GONE.has(failure.code)) {
          // ioredis repeats by itself what a lost connection has not answered.
          if ((repeated || core.losses !== losses) && this.#left() > 0) return true
          this.lost ??= new LockLost(failure.message, failure.code)
          // MRELEASE releases no key if it cannot release one of them.
          const one = (token: number, n: number) => {
            const key = request.keys[n] ?? ''
            return core.send(key, ['RLOCK.RELEASE', key, request.owner, 'REQ', id, 'TOKEN', String(token)])
          }
          if (request.many) await Promise.allSettled(grant.tokens.map(one))
          return false
        }
        if (!(failure instanceof Unavailable)) break
        repeated ||= failure.code === undefined
      }
      await this.#pauses.backOff(Math.max(0, left()))
    } while (left() > 0 && !core.ended)
    if (!wasLost)
      core.warn(`the release of ${request.keys.join(', ')} did not reach the server; the lease ends it`, failure)
    return false
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

  #lose(why: string, isOnServer: boolean): void {
    if (this.#over) return
    this.lost = new LockLost(`the lock on ${this.request.keys.join(', ')} was lost: ${why}`)
    this.#end(this.lost)
    if (!isOnServer) return
    // The work stops in the meantime.
    this.#settling = this.#send(undefined, Math.min(this.#span / 100, 1000))
    this.core.background(this.#settling)
  }

  // The deadline depends on the clock alone: no answer, connection or renewal can keep this from being called.
  readonly #watch = (): void => {
    clearTimeout(this.#timer)
    if (!this.look()) return
    const due = this.#wait - this.#tried()
    this.#timer = setTimeout(this.#watch, Math.min(this.#left(), LOOK_MS, due > 0 ? due : Infinity))
    if (due <= 0 && !this.#renewing) void this.#renew()
  }

  async #renew(): Promise<void> {
    const { core, request, grant } = this
    const isFixed = request.options.fixedLease !== undefined
    // Of a fixed lease only the session is renewed.
    const lease = isFixed ? Math.max(1, Math.floor(grant.lease - grant.since())) : grant.lease
    const command = [...words('RENEW', request), ...option('PX', isFixed ? lease : undefined)]
    command.push(...tokenOption(request, grant.tokens))
    this.#renewing = true
    const since = core.now()
    const timeout = Math.min(this.#period, core.commandTimeout, this.#left())
    try {
      const left = integer(await core.send(firstKey(request), command, timeout)) ?? lease
      const span = Math.min(left, lease, this.#span, core.longestLease ?? Infinity)
      // An answer that arrives after the deadline prolongs nothing.
      if (this.remaining() > 0) [this.#since, this.#valid] = [since, believed(span)]
      // The server shortens the lease if it allows less by now.
      ;[this.#tried, this.#wait] = [since, isFixed ? this.#period : span / 3]
      this.#pauses.reset()
    } catch (error) {
      const failure = translate(error)
      if (failure.code === 'NOTOWNER') this.#lose(failure.message, request.many === true)
      ;[this.#tried, this.#wait] = [core.now(), this.#pauses.next()]
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
  /**
   * Aborts with {@link LockLost} when the lock is lost, at the deadline at the latest and whatever the network
   * does; with {@link Closed} when the client is closed. A release does not abort it.
   */
  readonly signal: AbortSignal
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
    this.signal = holding.signal
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
    this.signal.throwIfAborted()
    if (this.holding.lost) throw this.holding.lost
  }

  #release(keep?: number): Promise<boolean> {
    if (this.#released) return this.#released
    const { holding } = this
    const isLast = --holding.count <= 0
    return (this.#released = isLast ? holding.release(keep) : Promise.resolve(holding.look()))
  }
}
