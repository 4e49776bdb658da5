import { backOff, believed, type Stopwatch } from './clock.js'
import { answer, firstKey, nextId, option, type Request, translate, words } from './commands.js'
import type { Core } from './core.js'
import { LockError, LockTimeout, Unavailable } from './errors.js'
import { Holding } from './hold.js'
import { claimOf, leaseOf, renewalOf } from './options.js'

const ASK_AGAIN_MS = 30_000
const LOOK_MS = 1000
// The server says when the time is up. This is how long its message may be on its way.
const PATIENCE_MS = 500
// Made once, because the trace of an error costs more than the rest of an acquisition.
const ENDED = new LockError('the acquisition has ended')

/** A hold, as the server has granted it. @internal */
export interface Grant {
  /** That of the request. */
  readonly id: number
  readonly tokens: number[]
  /** Before the request was sent from which the server counts. */
  readonly since: Stopwatch
  /** The milliseconds that the hold lasts from `since`. */
  readonly ms: number
  /** From when a fixed lease counts. */
  readonly start: Stopwatch
}

/** One attempt to acquire, with all its requests. @internal */
export class Acquisition {
  readonly channel: string
  readonly #key: string
  readonly #started: Stopwatch
  #id = 0
  /** A copy of the request was lost. */
  #lost = false
  /** Before the first request with this id was sent. */
  #first: Stopwatch | undefined
  /** The requests that have no answer yet. */
  readonly #open = new Set<Promise<unknown>>()
  #message: string | undefined
  /** The node that has the subscription. */
  #home = ''
  #awake = false
  /** Ends the pause for a message, or after a failure. */
  #cut: (() => void) | undefined
  #failures = 0
  #unsure = false
  /** Why the server did not serve the request; undefined if it did at last. */
  #failure: LockError | undefined
  #stopped: Error | undefined
  #reject: ((error: Error) => void) | undefined

  constructor(
    private readonly core: Core,
    private readonly request: Request,
  ) {
    this.#key = firstKey(request)
    this.#started = core.now()
    this.channel = request.wait === undefined ? '' : core.subscriptions.channel(this.#key)
  }

  /** The hold, or null if the lock was not granted. Leaves nothing on the server otherwise. */
  async run(): Promise<Holding | null> {
    const { core, request } = this
    const { wait, turns } = request
    core.acquisitions.add(this)
    if (wait !== undefined) core.subscriptions.use(this.channel)
    let end: (() => void) | undefined
    const ended = new Promise<void>((resolve) => (end = resolve))
    try {
      const stopped = new Promise<never>((_, reject) => (this.#reject = reject))
      const outcome = Promise.race([this.#enter(ended), stopped])
      const limit = wait ?? core.commandTimeout
      const late = () => {
        const failure = this.#failure ?? new Unavailable(`no answer within ${limit} ms`)
        if (wait === undefined) return failure
        // The server says when the time is up, unless it was not asked because the owner was busy.
        const cause = this.#id ? failure : undefined
        return new LockTimeout(`not granted within ${limit} ms`, cause?.code, cause)
      }
      const granted = await core.schedule.within(outcome, wait === undefined ? limit : limit + PATIENCE_MS, late)
      if (granted instanceof Holding) return granted
      if (this.#stopped) throw this.#stopped
      return granted && new Holding(core, request, granted)
    } catch (error) {
      if (this.#unsure) core.background(core.settle(request, this.#id, this.#open))
      throw error
    } finally {
      this.stop(ENDED)
      core.acquisitions.delete(this)
      if (wait !== undefined) core.subscriptions.free(this.channel)
      core.unname(turns, ended)
      end?.()
    }
  }

  /** Waits until the owner has ended its other acquisitions and its release, or finds that it holds already. */
  async #enter(ended: Promise<void>): Promise<Grant | Holding | null> {
    const { named } = this.core
    const { names, turns } = this.request
    for (let busy; (busy = [...names, ...turns].map((name) => named.get(name)).find(Boolean)); await busy) {
      if (this.#stopped) break
      if (busy instanceof Holding && busy.look()) return this.#reenter(busy)
    }
    if (this.#stopped) throw this.#stopped
    this.#renumber()
    for (const turn of turns) named.set(turn, ended)
    return await this.#obtain()
  }

  /** Re-entry is counted here, so that a lost answer cannot leave a second hold on the server. */
  #reenter(holding: Holding): Holding {
    const { permits, keys, owner } = holding.request
    if (permits !== this.request.permits || keys.join() !== this.request.keys.join()) {
      throw new TypeError(`the owner ${owner} holds ${keys.join(', ')} already, but not the same`)
    }
    holding.count++
    return holding
  }

  /** Ends the acquisition with an error. */
  stop(error: Error): void {
    this.#stopped ??= error
    this.#reject?.(error)
    this.#cut?.()
    this.core.waits.delete(this.#id)
  }

  /** A message for this wait. Without one, it may have been lost, or the server has forgotten the wait. */
  wake(message?: string): void {
    this.#message ??= message
    this.#awake = true
    this.#cut?.()
  }

  async #pause(ms: number): Promise<void> {
    await this.core.schedule.pause(ms, (cut) => (this.#cut = cut))
  }

  #left(): number {
    const { wait = this.core.commandTimeout } = this.request
    return wait - this.#started()
  }

  // Of a wait without a limit, and one that is about to end, requests have time to be answered.
  #timeout(): number {
    return Math.min(this.core.commandTimeout, this.#left() + PATIENCE_MS)
  }

  async #obtain(): Promise<Grant | null> {
    let silent = false
    for (;;) {
      if (this.#stopped) throw this.#stopped
      try {
        let granted = await this.#ask(silent)
        if (granted === 'WAITING') {
          this.#failure = undefined
          await this.#listen()
          silent = this.#message === undefined
          granted = this.#read()
        }
        // Otherwise the answer took too long to arrive, or the process slept. The answer to the same request says it again.
        if (granted !== undefined) return granted
        this.#failures = 0
      } catch (error) {
        const failure = translate(error)
        if (!(failure instanceof Unavailable)) {
          if (failure.code !== undefined) this.#unsure = false
          throw failure
        }
        this.#lost ||= failure.code === undefined
        if (this.request.wait === undefined && failure.code !== undefined) throw failure
        if (!this.#failure) this.core.warn(`retrying to acquire ${this.request.keys.join(', ')}`, failure)
        this.#failure = failure
        await this.#pause(backOff(this.#failures++))
      }
    }
  }

  /** Sends the request, the first time or again. A hold that is not believed is undefined. */
  async #ask(probe: boolean): Promise<Grant | null | 'WAITING' | undefined> {
    const { core, request } = this
    const { options, wait } = request
    this.#awake = false
    this.#message = undefined
    const command = [...words('ACQUIRE', request), 'PX', String(leaseOf(options)), 'CLAIM', String(claimOf(options))]
    command.push('REQ', String(this.#id), 'TIMED')
    // A hold of this owner whose CANCEL has not arrived yet is not counted twice.
    if (request.names.length > 0) command.push('ONCE')
    if (wait !== undefined) {
      this.#home = await core.subscriptions.ready(this.#key, this.channel, probe)
      command.push(...option('BLOCK', wait === Infinity ? 0 : Math.max(1, Math.ceil(this.#left()))))
      command.push('NOTIFY', this.channel, ...option('GRACE', options.grace))
    }
    command.push(...option('SESSION', options.session), ...option('NOTE', options.note))
    if (this.#stopped) throw this.#stopped
    core.waits.set(this.#id, this)
    this.#unsure = true
    const since = core.now()
    this.#first ??= since
    const granted = answer(request, await core.send(this.#key, command, this.#timeout(), this.#open))
    if (granted === null) this.#unsure = false
    if (granted === null || granted === 'WAITING') return granted
    const ms = Math.min(granted.ms, leaseOf(options), options.session ?? Infinity)
    return since() < believed(ms) ? { ...granted, id: this.#id, since, ms, start: since } : undefined
  }

  /** Waits for a message, or until it is time to ask again. */
  async #listen(): Promise<void> {
    const { driver } = this.core
    let left = Math.min(ASK_AGAIN_MS, this.#left() + PATIENCE_MS)
    for (let slice; left > 0 && !this.#stopped && !this.#awake; left -= slice) {
      slice = driver.cluster ? Math.min(left, LOOK_MS) : left
      await this.#pause(slice)
      // A node that became a replica still accepts subscriptions, but its master does not see them, and undoes
      // the grants that it publishes.
      if (this.#home !== driver.node(this.#key)) return
    }
  }

  /** What the message says: the hold, null if the time is up, undefined if the server has to be asked. */
  #read(): Grant | null | undefined {
    const [what, , ...rest] = this.#message?.split(' ') ?? []
    this.#message = undefined
    if (what === undefined) return undefined
    if (what === 'nil') {
      this.#unsure = false
      return null
    }
    if (what === 'granted') return this.#believe(rest.filter((word) => word !== 'for'))
    const failure = translate(rest.join(' '))
    // A server that steps down may have granted the lock; the same request is answered so. Otherwise the
    // number is used up.
    if (failure.code !== 'UNBLOCKED') this.#renumber()
    throw failure
  }

  /**
   * The server counts the time of a published grant from its receipt of the first request with this id, so no
   * delay of the message can make the belief outlast the hold.
   */
  #believe(words: string[]): Grant | undefined {
    const { options } = this.request
    const granted = answer(this.request, words) as { tokens: number[]; ms: number }
    const [since, start] = [this.#first ?? this.#started, this.core.now()]
    // It does not show that the connection of a session exists. A request that has no answer may begin another hold.
    if (options.session !== undefined || this.#open.size > 0 || this.#lost) return undefined
    const isInTime = since() + renewalOf(options) < believed(granted.ms)
    return isInTime ? { ...granted, id: this.#id, since, start } : undefined
  }

  #renumber(): void {
    this.core.waits.delete(this.#id)
    this.#id = nextId()
    this.#first = undefined
    this.#lost = false
    this.#unsure = false
  }
}
