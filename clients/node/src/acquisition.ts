import { believed, type Stopwatch, MAX_TIMER_MS, Pauses, within } from './clock.js'
import { firstKey, grant, integer, nextId, option, type Request, tokenOption, translate, words } from './commands.js'
import type { Core } from './core.js'
import { LockError, LockLost, LockTimeout, Unavailable } from './errors.js'
import { Holding } from './hold.js'
import { sessionLease } from './options.js'

const CLAIM_MS = 2000
const ASK_AGAIN_MS = 30_000
const LOOK_MS = 1000
// The server says when the time is up. This is how long its message may be on its way.
const PATIENCE_MS = 500

/** A hold that the server has confirmed. @internal */
export interface Grant {
  /** That of the request. The next one is that of the RELEASE. */
  readonly id: number
  readonly tokens: number[]
  /** Before the request was sent that the server answered. */
  readonly since: Stopwatch
  /** The milliseconds that the lease lasts from `since`. */
  readonly lease: number
}

/** One attempt to acquire, with all its requests. @internal */
export class Acquisition {
  readonly channel: string
  readonly #key: string
  readonly #started: Stopwatch
  // For a message, and after a failure.
  readonly #silence = new Pauses()
  readonly #pauses = new Pauses()
  /** The id of the request. The next one is that of its RELEASE, which is below all later acquisitions. */
  #id = 0
  #since: Stopwatch
  /** Resolves when everything that was sent has an answer, or never will. */
  #asked = Promise.resolve()
  #message: string | undefined
  /** The node that has the subscription. */
  #home = ''
  #awake = false
  #unsure = false
  #lease: number
  /** Why the server did not serve the request; undefined if it did at last. */
  #failure: LockError | undefined
  #stopped: Error | undefined
  #reject: ((error: Error) => void) | undefined

  constructor(
    private readonly core: Core,
    private readonly request: Request,
  ) {
    const { options, wait } = request
    this.#key = firstKey(request)
    this.#started = this.#since = core.now()
    this.#lease = options.fixedLease ?? options.lease
    this.channel = wait === undefined ? '' : core.subscriptions.channel(this.#key)
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
      const time = wait === undefined ? limit : limit + PATIENCE_MS
      const granted = time > MAX_TIMER_MS ? await outcome : await within(outcome, time, late)
      if (granted instanceof Holding) return granted
      if (this.#stopped) throw this.#stopped
      return granted && new Holding(core, request, granted)
    } catch (error) {
      if (this.#unsure) core.settle(request, this.#id, this.#lease, this.#asked)
      throw error
    } finally {
      this.stop(new LockError('the acquisition has ended'))
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
      if (busy instanceof Holding) return this.#reenter(busy)
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
    if (holding.remaining() <= 0) throw new LockLost(`the owner ${owner} has lost ${keys.join(', ')}`)
    holding.count++
    return holding
  }

  /** Ends the acquisition with an error. */
  stop(error: Error): void {
    this.#stopped ??= error
    this.#reject?.(error)
    this.#silence.cut()
    this.#pauses.cut()
    this.core.waits.delete(this.#id)
  }

  /** A message for this wait. Without one, it may have been lost, or the server has forgotten the wait. */
  wake(message?: string): void {
    this.#message ??= message
    this.#awake = true
    this.#silence.cut()
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
    let tokens: number[] | null | undefined
    let silent = false
    for (;;) {
      if (this.#stopped) throw this.#stopped
      try {
        if (tokens) {
          const grant = await this.#confirm(tokens)
          if (this.#isValid(grant)) return grant
          continue
        }
        const answer = await this.#ask(silent)
        if (answer === 'WAITING') {
          this.#failure = undefined
          await this.#listen()
          silent = this.#message === undefined
          tokens = this.#read()
          if (tokens === null) return null
        } else {
          if (answer === null) return null
          const grant = { id: this.#id, tokens: answer, since: this.#since, lease: this.#lease }
          if (this.#isValid(grant)) return grant
          // The answer took too long to arrive, or the process slept.
          tokens = answer
        }
        this.#pauses.reset()
      } catch (error) {
        const failure = translate(error)
        if (tokens && failure.code === 'NOTOWNER') {
          // The claim has expired, and with it the place in the queue.
          tokens = undefined
          this.#renumber()
          continue
        }
        // The longest lease may have been lowered since it was read.
        const longest = () => this.core.maxLease(this.#key, this.#timeout(), true).catch(() => Infinity)
        if (failure.code === 'ERR' && (await longest()) < this.#lease) continue
        if (!(failure instanceof Unavailable)) {
          if (!tokens && failure.code !== undefined) this.#unsure = false
          throw failure
        }
        if (this.request.wait === undefined && failure.code !== undefined) throw failure
        if (!this.#failure) this.core.warn(`retrying to acquire ${this.request.keys.join(', ')}`, failure)
        this.#failure = failure
        await this.#pauses.backOff()
      }
    }
  }

  /** Sends the request, the first time or again. */
  async #ask(probe: boolean): Promise<number[] | null | 'WAITING'> {
    const { core, request } = this
    const { options, wait } = request
    this.#awake = false
    this.#lease = Math.min(this.#lease, await core.maxLease(this.#key, this.#timeout()))
    // ONCE: a hold of this owner whose settlement has not arrived yet is not counted twice.
    const command = [...words('ACQUIRE', request), 'PX', String(this.#lease), 'ONCE', 'REQ', String(this.#id)]
    if (wait !== undefined) {
      if (this.#stopped) throw this.#stopped
      core.waits.set(this.#id, this)
      this.#home = await core.subscriptions.ready(this.#key, this.channel, probe)
      command.push(...option('BLOCK', wait === Infinity ? 0 : Math.max(1, Math.ceil(this.#left()))))
      command.push('NOTIFY', this.channel, ...option('CLAIM', Math.min(CLAIM_MS, this.#lease)))
      command.push(...option('GRACE', options.grace))
    }
    command.push(...option('SESSION', options.session), ...option('NOTE', options.note))
    if (this.#stopped) throw this.#stopped
    this.#unsure = true
    this.#since = core.now()
    const onSent = (sent: Promise<unknown>) => {
      this.#asked = Promise.allSettled([this.#asked, sent]).then(() => undefined)
    }
    const answer = grant(request, await core.send(this.#key, command, this.#timeout(), onSent))
    if (answer === null) this.#unsure = false
    return answer
  }

  /** Waits for a message, or until it is time to ask again. */
  async #listen(): Promise<void> {
    const { driver } = this.core
    let left = Math.min(ASK_AGAIN_MS, this.#left() + PATIENCE_MS)
    for (let slice; left > 0 && !this.#stopped && !this.#awake && this.#message === undefined; left -= slice) {
      slice = driver.cluster ? Math.min(left, LOOK_MS) : left
      await this.#silence.wait(slice)
      // A node that became a replica still accepts subscriptions, but its master does not see them, and undoes
      // the grants that it publishes.
      if (this.#home !== driver.node(this.#key)) return
    }
  }

  /** What the message says: tokens, null if the time is up, undefined if there is none. */
  #read(): number[] | null | undefined {
    const [what, , ...rest] = this.#message?.split(' ') ?? []
    this.#message = undefined
    if (what === undefined) return undefined
    if (what === 'granted') return grant(this.request, this.request.many ? rest : rest[0]) as number[]
    if (what === 'nil') {
      this.#unsure = false
      return null
    }
    const failure = translate(rest.join(' '))
    // A server that steps down may have granted the lock; the same request is answered so. Otherwise the
    // number is used up.
    if (failure.code !== 'UNBLOCKED') this.#renumber()
    throw failure
  }

  /** A grant that came as a message expires soon unless it is claimed, and may have expired already. */
  async #confirm(tokens: number[]): Promise<Grant> {
    const since = this.core.now()
    const renew = [...words('RENEW', this.request), ...tokenOption(this.request, tokens)]
    const left = integer(await this.core.send(this.#key, renew, this.#timeout()))
    return { id: this.#id, tokens, since, lease: Math.min(this.#lease, left ?? this.#lease) }
  }

  #isValid({ since, lease }: Grant): boolean {
    return since() < believed(sessionLease(this.request.options, lease))
  }

  #renumber(): void {
    this.core.waits.delete(this.#id)
    this.#id = nextId()
    this.#unsure = false
  }
}
