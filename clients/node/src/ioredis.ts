import { type Driver, type Emitter, listen, slotOf, type Subscriber } from './driver.js'

/** A `Redis` or `Cluster` of ioredis. */
export interface IoredisClient {
  call(command: string, ...args: string[]): Promise<unknown>
  readonly options: object
}

interface Node extends Emitter, IoredisClient {
  readonly options: { keyPrefix?: unknown; host?: string; port?: number }
  duplicate(options: object): SubscribingNode
  // Of a cluster only:
  readonly isCluster?: boolean
  readonly slots?: string[][]
  nodes?(role: 'master'): Node[]
}

type Send = (channel: string) => Promise<unknown>

interface SubscribingNode extends Emitter, Record<'subscribe' | 'unsubscribe' | 'ssubscribe' | 'sunsubscribe', Send> {
  readonly stream?: { unref?(): void }
  connect(): Promise<unknown>
  disconnect(): void
  ping(): Promise<unknown>
}

const nameOf = (node: Node) => `${String(node.options.host)}:${String(node.options.port)}`

/** A driver on ioredis: a single server, Sentinel or a cluster. @internal */
export class IoredisDriver implements Driver {
  readonly cluster: boolean
  readonly keyPrefix: string

  private readonly client: Node

  constructor(client: IoredisClient) {
    this.client = client as Node
    this.cluster = this.client.isCluster === true
    // `call` prefixes only the keys of commands that ioredis knows.
    this.keyPrefix = String(this.client.options.keyPrefix ?? '')
  }

  async send(key: string, [command = '', ...args]: string[]): Promise<unknown> {
    if (!this.cluster) return await this.client.call(command, ...args)
    // A cluster client sends a command that it does not know to any node, and follows the redirection. That
    // costs a round trip and the order of the commands for a key, so it is for redirections only. It also repeats
    // a command after a while that has failed otherwise: too late, if it is an ACQUIRE that was settled meanwhile.
    const node = this.#master(key)
    try {
      if (node) return await node.call(command, ...args)
    } catch (error) {
      if (!/^(MOVED|ASK) /.test((error as Error).message)) throw error
    }
    return await this.client.call(command, ...args)
  }

  node(key: string): string {
    return this.cluster ? nameOf(this.#known(key)) : ''
  }

  #known(key: string): Node {
    const node = this.#master(key)
    if (!node) throw new Error('the slots of the cluster are not known yet')
    return node
  }

  #master(key: string): Node | undefined {
    const name = this.client.slots?.[slotOf(key)]?.[0]
    return this.client.nodes?.('master').find((node) => nameOf(node) === name)
  }

  async subscriber(
    key: string,
    onMessage: (text: string) => void,
    onLost: () => void,
    signal: AbortSignal,
  ): Promise<Subscriber> {
    const { cluster } = this
    const base = cluster ? this.#known(key) : this.client
    const own = { keyPrefix: '', lazyConnect: true, retryStrategy: null, autoResubscribe: false, readOnly: false }
    const node = base.duplicate({ ...own, enableAutoPipelining: false, monitor: false })
    const message = (_: string, text: string) => onMessage(text)
    // `moved` and some of the errors mean that a subscription has ended, for which there is no event.
    listen(node, { message, smessage: message, error: onLost, close: onLost, end: onLost, moved: onLost })
    signal.addEventListener('abort', () => node.disconnect())
    await node.connect()
    node.stream?.unref?.()
    return {
      subscribe: (channel) => (cluster ? node.ssubscribe(channel) : node.subscribe(channel)),
      unsubscribe: (channel) => (cluster ? node.sunsubscribe(channel) : node.unsubscribe(channel)),
      ping: () => node.ping(),
    }
  }

  watch(listener: (up: boolean) => void): () => void {
    const up = () => listener(true)
    const down = () => listener(false)
    // A node that was lost comes back as another one. Commands for it are queued until it is connected.
    if (this.cluster) return listen(this.client, { '+node': up, '-node': down, 'node error': down })
    return listen(this.client, { ready: up, close: down })
  }
}
