import type { Core } from './core.js'
import { hashTag, slotOf, type Subscriber } from './driver.js'
import { Unavailable } from './errors.js'

interface Link {
  readonly subscriber: Promise<Subscriber>
  readonly channels: Map<string, Promise<unknown>>
  /** Channels whose subscription is being ended. Libraries confuse it with a new one that overlaps. */
  readonly leaving: Map<string, Promise<unknown>>
  /** Ends subscriptions that have no answer: ioredis 5 never answers one that the server redirects. */
  readonly drops: Set<() => void>
  /** Closes the connection. */
  readonly end: AbortController
}

/** The subscriptions of a client: one connection, in a cluster one for each node that is waited on. @internal */
export class Subscriptions {
  readonly #links = new Map<string, Link>()
  readonly #uses = new Map<string, number>()

  constructor(private readonly core: Core) {}

  /** The channel for waits on a key. In a cluster it has the slot of the key. */
  channel(key: string): string {
    if (!this.core.driver.cluster) return `rlock:${this.core.id}`
    let tag = hashTag(key)
    // The few keys that contain braces but no hash tag cannot be put between braces.
    if (/[{}]/.test(tag)) {
      const slot = slotOf(key)
      for (let n = 0; slotOf((tag = String(n))) !== slot; n++);
    }
    return `rlock:${this.core.id}:{${tag}}`
  }

  /** Resolves with the node that serves the key when it has the subscription. With `probe` asks the connection. */
  async ready(key: string, channel: string, probe: boolean): Promise<string> {
    const { driver, commandTimeout, schedule } = this.core
    const late = () => new Unavailable(`the subscriber got no answer within ${commandTimeout} ms`)
    let name = ''
    let link: Link | undefined
    try {
      name = driver.node(key)
      link = this.#links.get(name) ?? this.#open(name, key)
      const subscriber = await schedule.within(link.subscriber, commandTimeout, late)
      const known = link.channels.get(channel)
      const confirmed = known ?? this.#subscribe(link, subscriber, channel)
      link.channels.set(channel, confirmed)
      await schedule.within(confirmed, commandTimeout, late)
      if (probe && known) await schedule.within(subscriber.ping(), commandTimeout, late)
      if (this.#links.get(name) !== link) throw new Unavailable('the subscriber has lost its connection')
      return name
    } catch (error) {
      if (link) this.#drop(name, link)
      // A command for the key makes the library look for the node that serves it now.
      if (driver.cluster) driver.send(key, ['RLOCK.PTTL', key]).catch(() => undefined)
      throw error
    }
  }

  async #subscribe(link: Link, subscriber: Subscriber, channel: string): Promise<void> {
    await link.leaving.get(channel)
    let drop = () => {}
    const dropped = new Promise<void>((resolve) => link.drops.add((drop = resolve)))
    await Promise.race([subscriber.subscribe(channel), dropped]).finally(() => link.drops.delete(drop))
  }

  #open(name: string, key: string): Link {
    const { driver } = this.core
    const end = new AbortController()
    const subscriber = driver.subscriber(
      key,
      (text) => this.core.heard(text),
      () => this.#drop(name, link),
      end.signal,
    )
    const link: Link = { subscriber, channels: new Map(), leaving: new Map(), drops: new Set(), end }
    this.#links.set(name, link)
    return link
  }

  /** Counts the waits that use a channel. */
  use(channel: string): void {
    this.#uses.set(channel, (this.#uses.get(channel) ?? 0) + 1)
  }

  /** The opposite of {@link use}. In a cluster there are too many channels to keep those without a wait. */
  free(channel: string): void {
    const left = (this.#uses.get(channel) ?? 1) - 1
    if (left > 0) {
      this.#uses.set(channel, left)
      return
    }
    this.#uses.delete(channel)
    if (!this.core.driver.cluster) return
    for (const link of this.#links.values()) {
      if (!link.channels.delete(channel)) continue
      const left = link.subscriber.then((subscriber) => subscriber.unsubscribe(channel)).catch(() => undefined)
      link.leaving.set(channel, left)
      void left.then(() => link.leaving.delete(channel))
    }
  }

  close(): void {
    for (const [name, link] of this.#links) this.#drop(name, link)
  }

  #drop(name: string, link: Link): void {
    if (this.#links.get(name) !== link) return
    this.#links.delete(name)
    for (const drop of link.drops) drop()
    link.end.abort()
    this.core.lost(link.channels)
  }
}
