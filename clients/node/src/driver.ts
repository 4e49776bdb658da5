/** A connection that subscribes. It is never repaired: when it is lost, the package opens another one. */
export interface Subscriber {
  /** Subscribes to a channel, in a cluster to a shard channel. Resolves when the server has confirmed it. */
  subscribe(channel: string): Promise<unknown>
  /** Ends the subscription to a channel. */
  unsubscribe(channel: string): Promise<unknown>
  /** Resolves if the connection is alive. */
  ping(): Promise<unknown>
}

/**
 * The functions of a Redis library that the package needs. {@link RLockClient} makes one for the clients of ioredis and
 * node-redis; implement it to use another library.
 */
export interface Driver {
  /** True for a client of a cluster. */
  readonly cluster: boolean
  /** What the library puts before each key, or an empty string. */
  readonly keyPrefix: string
  /**
   * Sends a command over the application's connection, to the master that serves `key`. Commands for one key
   * reach the server in the order of the calls. `words` contain the key with its prefix. Rejects with the
   * server's error, or with any other error if the outcome is unknown.
   */
  send(key: string, words: string[]): Promise<unknown>
  /** A name for the node that serves `key`, the same for all keys outside a cluster. Throws if unknown. */
  node(key: string): string
  /**
   * Opens a subscriber to the node that serves `key`, with the address, user, password and TLS of the
   * application's client. It must not keep the process alive. `onMessage` gets the text of each message;
   * `onLost` is called when the connection or one of its subscriptions is lost. `signal` closes the connection,
   * also while it is being opened.
   */
  subscriber(
    key: string,
    onMessage: (text: string) => void,
    onLost: () => void,
    signal: AbortSignal,
  ): Promise<Subscriber>
  /**
   * Calls `listener(false)` when a connection of the application's client is lost and `listener(true)` when
   * one is established. Returns a function that ends this.
   */
  watch(listener: (up: boolean) => void): () => void
}

/** The part of Node's EventEmitter that the drivers use. @internal */
export interface Emitter {
  on(event: string, listener: (...args: never[]) => void): unknown
  off(event: string, listener: (...args: never[]) => void): unknown
}

/** Adds listeners and returns a function that removes them. @internal */
export function listen(emitter: Emitter, listeners: Record<string, (...args: never[]) => void>): () => void {
  for (const [event, listener] of Object.entries(listeners)) emitter.on(event, listener)
  return () => {
    for (const [event, listener] of Object.entries(listeners)) emitter.off(event, listener)
  }
}

/** The part of a key that decides about its slot in a cluster. @internal */
export function hashTag(key: string): string {
  const start = key.indexOf('{')
  const end = key.indexOf('}', start + 1)
  return start < 0 || end < 0 || end === start + 1 ? key : key.slice(start + 1, end)
}

/** The slot of a key in a cluster: CRC-16/XMODEM modulo 16384. @internal */
export function slotOf(key: string): number {
  let crc = 0
  for (const byte of Buffer.from(hashTag(key))) {
    crc ^= byte << 8
    for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1
    crc &= 0xffff
  }
  return crc & 16383
}
