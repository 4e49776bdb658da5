import { type Driver, type Emitter, listen, slotOf, type Subscriber } from './driver.js'

/** A client or a cluster of node-redis. */
export interface NodeRedisClient {
  sendCommand(...args: never[]): Promise<unknown>
  duplicate(...args: never[]): unknown
  readonly isOpen: boolean
}

interface Shard {
  readonly master: { readonly address: string }
}

interface Cluster extends Emitter {
  readonly _keyPrefix?: unknown
  readonly slots: readonly (Shard | undefined)[]
  sendCommand(firstKey: string, isReadonly: boolean, args: string[], options: object): Promise<unknown>
  nodeClient(node: object): Promise<Node>
}

interface Node extends Emitter {
  readonly isReady: boolean
  readonly options?: { keyPrefix?: unknown; socket?: object }
  sendCommand(args: string[], options: object): Promise<unknown>
  duplicate(overrides: object): SubscribingNode
}

type Listen = (channel: string, listener: (text: string) => void) => Promise<unknown>
type Leave = (channel: string) => Promise<unknown>

interface SubscribingNode
  extends Emitter, Record<'subscribe' | 'sSubscribe', Listen>, Record<'unsubscribe' | 'sUnsubscribe', Leave> {
  connect(): Promise<unknown>
  destroy(): void
  unref(): void
  ping(): Promise<unknown>
}

// Replies in their plain types, whatever mapping the application has chosen for its client.
const PLAIN = { typeMapping: {} }

/** A driver on node-redis: a single server or a cluster. @internal */
export class NodeRedisDriver implements Driver {
  readonly cluster: boolean
  readonly keyPrefix: string
  readonly #client: Node | Cluster

  constructor(client: NodeRedisClient) {
    this.#client = client as unknown as Node | Cluster
    this.cluster = 'slots' in this.#client
    // `sendCommand` prefixes nothing. The cluster client has its prefix only here.
    const prefix = 'slots' in this.#client ? this.#client._keyPrefix : this.#client.options?.keyPrefix
    this.keyPrefix = String(prefix ?? '')
  }

  async send(key: string, words: string[]): Promise<unknown> {
    const client = this.#client
    return await ('slots' in client ? client.sendCommand(key, false, words, PLAIN) : client.sendCommand(words, PLAIN))
  }

  node(key: string): string {
    return 'slots' in this.#client ? this.#master(this.#client, key).address : ''
  }

  #master(cluster: Cluster, key: string): Shard['master'] {
    const shard = cluster.slots[slotOf(key)]
    if (!shard) throw new Error('the slots of the cluster are not known yet')
    return shard.master
  }

  async subscriber(
    key: string,
    onMessage: (text: string) => void,
    onLost: () => void,
    signal: AbortSignal,
  ): Promise<Subscriber> {
    const client = this.#client
    const { cluster } = this
    const base = 'slots' in client ? await client.nodeClient(this.#master(client, key)) : client
    const socket = { ...base.options?.socket, reconnectStrategy: false }
    const node = base.duplicate({ socket, commandOptions: undefined, disableOfflineQueue: false })
    listen(node, { error: onLost, end: onLost, 'sharded-channel-moved': onLost })
    signal.throwIfAborted()
    signal.addEventListener('abort', () => {
      try {
        node.destroy()
      } catch {
        // It is closed already.
      }
    })
    await node.connect()
    node.unref()
    return {
      subscribe: (channel) => (cluster ? node.sSubscribe(channel, onMessage) : node.subscribe(channel, onMessage)),
      unsubscribe: (channel) => (cluster ? node.sUnsubscribe(channel) : node.unsubscribe(channel)),
      ping: () => node.ping(),
    }
  }

  watch(listener: (up: boolean) => void): () => void {
    const client = this.#client
    const up = () => listener(true)
    const down = () => listener(false)
    // A cluster tells that it connects to a node anew, not when it has. Commands are queued until then.
    if ('slots' in client) return listen(client, { 'node-error': down, 'node-reconnecting': up, 'node-ready': up })
    return listen(client, { ready: up, end: down, error: () => client.isReady || down() })
  }
}
