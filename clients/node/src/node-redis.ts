import { type Driver, type Emitter, listen, slotOf, type Subscriber } from './driver.js'

/** What the package uses of the client of node-redis. */
export interface NodeRedisClient extends Emitter {
  sendCommand(args: string[], options?: never): Promise<unknown>
  duplicate(overrides?: never): unknown
  readonly isReady: boolean
}

/** What the package uses of the cluster client of node-redis. */
export interface NodeRedisCluster extends Emitter {
  sendCommand(firstKey: string, isReadonly: boolean, args: string[], options?: never): Promise<unknown>
  duplicate(overrides?: never): unknown
  readonly slots: unknown[]
  readonly masters: unknown[]
  nodeClient(node: never): unknown
}

interface SlotNode {
  readonly address: string
}

interface Node extends Emitter {
  readonly options?: { keyPrefix?: unknown; socket?: object }
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
const PLAIN = { typeMapping: {} } as never

/** A driver on node-redis: a single server or a cluster. @internal */
export class NodeRedisDriver implements Driver {
  readonly cluster: boolean
  readonly keyPrefix: string

  constructor(private readonly client: NodeRedisClient | NodeRedisCluster) {
    this.cluster = 'masters' in client
    // `sendCommand` prefixes nothing. The cluster client has its prefix only here.
    const { options, _keyPrefix } = client as unknown as Partial<Node> & { _keyPrefix?: unknown }
    this.keyPrefix = String(options?.keyPrefix ?? _keyPrefix ?? '')
  }

  async send(key: string, words: string[]): Promise<unknown> {
    if ('masters' in this.client) return await this.client.sendCommand(key, false, words, PLAIN)
    return await this.client.sendCommand(words, PLAIN)
  }

  node(key: string): string {
    return 'masters' in this.client ? this.#master(this.client, key).address : ''
  }

  #master(cluster: NodeRedisCluster, key: string): SlotNode {
    const shard = cluster.slots[slotOf(key)] as { master: SlotNode } | undefined
    if (!shard) throw new Error('the slots of the cluster are not known yet')
    return shard.master
  }

  async subscriber(key: string, onMessage: (text: string) => void, onLost: () => void): Promise<Subscriber> {
    const { cluster, client } = this
    const base = ('masters' in client ? await client.nodeClient(this.#master(client, key) as never) : client) as Node
    const socket = { ...base.options?.socket, reconnectStrategy: false }
    const node = base.duplicate({ socket, commandOptions: undefined, disableOfflineQueue: false })
    listen(node, { error: onLost, end: onLost, 'sharded-channel-moved': onLost })
    const close = () => {
      try {
        node.destroy()
      } catch {
        // It is closed already.
      }
    }
    try {
      await node.connect()
    } catch (error) {
      close()
      throw error
    }
    node.unref()
    return {
      subscribe: (channel) => (cluster ? node.sSubscribe(channel, onMessage) : node.subscribe(channel, onMessage)),
      unsubscribe: (channel) => (cluster ? node.sUnsubscribe(channel) : node.unsubscribe(channel)),
      ping: () => node.ping(),
      close,
    }
  }

  watch(listener: (up: boolean) => void): () => void {
    const { client } = this
    const up = () => listener(true)
    const down = () => listener(false)
    // A cluster tells that it connects to a node anew, not when it has. Commands are queued until then.
    if ('masters' in client) return listen(client, { 'node-error': down, 'node-reconnecting': up, 'node-ready': up })
    return listen(client, { ready: up, end: down, error: () => client.isReady || down() })
  }
}
