import { randomBytes } from 'node:crypto'

import type { Acquisition } from './acquisition.js'
import { backOff, type Clock, Schedule, type Stopwatch, stopwatch } from './clock.js'
import { firstKey, type Request, translate, words } from './commands.js'
import type { Driver } from './driver.js'
import { Closed, Unavailable } from './errors.js'
import type { Holding } from './hold.js'
import { leaseOf } from './options.js'
import { Subscriptions } from './subscriptions.js'

const MAX_SETTLEMENTS = 1000
const CLOSE_MS = 5000

/** What the locks of a client share. @internal */
export class Core {
  readonly id = randomBytes(16).toString('hex')
  readonly schedule = new Schedule()
  readonly subscriptions = new Subscriptions(this)
  readonly holdings = new Set<Holding>()
  /** By the `REQ` id of the request that waits. */
  readonly waits = new Map<number, Acquisition>()
  /** What named owners hold or release, by owner, key and kind, and what they acquire, by owner and key. */
  readonly named = new Map<string, Holding | Promise<unknown>>()
  /** Every acquisition that has not ended. */
  readonly acquisitions = new Set<Acquisition>()
  /** How often a connection of the application's client was lost. */
  losses = 0
  /** How many owner names were made. A name is never used again. */
  owners = 0
  closing: Promise<void> | undefined
  /** Nothing is repeated any more. */
  ended = false
  readonly #background = new Set<Promise<unknown>>()
  #settling = 0
  readonly #unwatch: () => void

  constructor(
    readonly driver: Driver,
    readonly clock: Clock,
    readonly commandTimeout: number,
    readonly warn: (message: string, error?: unknown) => void,
  ) {
    this.#unwatch = driver.watch((up) => {
      if (!up) this.losses++
      else for (const holding of this.holdings) holding.connected()
      // Waits end with the connection that asked.
      if (up && this.losses > 0) for (const wait of this.waits.values()) wait.wake()
    })
  }

  now(): Stopwatch {
    return stopwatch(this.clock)
  }

  /** Sends a command; rejects with a {@link LockError}, after `timeout` at the latest. `open` has it until its answer. */
  async send(key: string, command: string[], timeout = this.commandTimeout, open?: Set<Promise<unknown>>) {
    const sent = (async () => await this.driver.send(key, command))()
    const end = () => open?.delete(sent)
    if (open?.add(sent)) sent.then(end, end)
    const late = () => new Unavailable(`no answer to ${String(command[0])} within ${Math.ceil(timeout)} ms`)
    try {
      return await this.schedule.within(sent, timeout, late)
    } catch (error) {
      throw translate(error)
    }
  }

  /** Removes entries of {@link named}, unless they have become others. */
  unname(names: readonly string[], entry: Holding | Promise<unknown>): void {
    for (const name of names) if (this.named.get(name) === entry) this.named.delete(name)
  }

  /** Keeps {@link close} from returning before a promise has settled, for a while. */
  background(task: Promise<unknown>): void {
    const kept = task.catch(() => undefined).finally(() => this.#background.delete(kept))
    this.#background.add(kept)
  }

  /** Cancels a request whose outcome is unknown, whether it waits or was granted. */
  async settle(request: Request, id: number, open: Set<Promise<unknown>>): Promise<void> {
    if (this.#settling >= MAX_SETTLEMENTS) return
    this.#settling++
    // On the way to another node, the request could arrive after its CANCEL.
    if (this.driver.cluster) await Promise.allSettled(open)
    const since = this.now()
    const cancel = [...words('CANCEL', request), 'REQ', String(id)]
    for (let n = 0; since() <= leaseOf(request.options) && !this.ended; n++) {
      const failure = await this.send(firstKey(request), cancel).catch((error: unknown) => error)
      if (!(failure instanceof Unavailable)) break
      await this.schedule.pause(backOff(n))
    }
    this.#settling--
  }

  /** Ends waits, releases holds, settles what is pending and closes the subscribers. */
  close(): Promise<void> {
    return (this.closing ??= this.#close())
  }

  async #close(): Promise<void> {
    const since = this.now()
    for (const acquisition of this.acquisitions) acquisition.stop(new Closed('the client was closed'))
    for (const holding of this.holdings) void holding.release(undefined, new Closed('the client was closed'))
    // The acquisitions settle before this.
    await new Promise(setImmediate)
    while (this.#background.size > 0 && since() < CLOSE_MS) {
      const late = () => new Unavailable('the server did not answer')
      await this.schedule.within(Promise.all(this.#background), CLOSE_MS - since(), late).catch(() => undefined)
    }
    this.ended = true
    this.#unwatch()
    this.subscriptions.close()
  }

  /** A message: granted ID TOKEN… | nil ID | error ID CODE TEXT. */
  heard(text: string): void {
    this.waits.get(Number(text.split(' ', 2)[1]))?.wake(text)
  }

  /** The subscription to these channels is lost. */
  lost(channels: ReadonlyMap<string, unknown>): void {
    for (const wait of this.waits.values()) if (channels.has(wait.channel)) wait.wake()
  }
}
