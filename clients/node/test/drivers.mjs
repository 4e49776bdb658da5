// The libraries, in the versions that are tested: ioredis 5 and 6, node-redis 5 and 6.
import * as ioredis5 from 'ioredis'
import * as ioredis6 from 'ioredis6'
import * as redis5 from 'redis'
import * as redis6 from 'redis6'

const ignore = () => {}

const ioredis = ({ Redis, Cluster }, name) => ({
  name,
  isIoredis: true,
  async connect({ port, password, username, db, ...options }) {
    const client = new Redis({ port, password, username, db, ...options })
    client.on('error', ignore)
    return { client, send: (...words) => client.call(...words), end: async () => client.disconnect() }
  },
  async cluster(ports, options = {}) {
    const client = new Cluster(
      ports.map((port) => ({ host: '127.0.0.1', port })),
      options,
    )
    client.on('error', ignore)
    return { client, send: (...words) => client.call(...words), end: async () => client.disconnect() }
  },
})

const nodeRedis = ({ createClient, createCluster }, name, extra = {}) => ({
  name,
  isIoredis: false,
  async connect({ port, password, username, db, ...options }) {
    const client = createClient({
      socket: { port, host: '127.0.0.1' },
      password,
      username,
      database: db,
      ...extra,
      ...options,
    })
    client.on('error', ignore)
    await client.connect()
    return { client, send: (...words) => client.sendCommand(words.map(String)), end: async () => client.destroy() }
  },
  async cluster(ports, options = {}) {
    const rootNodes = ports.map((port) => ({ socket: { host: '127.0.0.1', port } }))
    const client = createCluster({ rootNodes, ...extra, ...options })
    client.on('error', ignore)
    await client.connect()
    return {
      client,
      send: (name, key, ...words) => client.sendCommand(key, false, [name, key, ...words.map(String)]),
      end: async () => client.destroy(),
    }
  },
})

// DRIVER=redis runs the tests of those whose name contains it.
export const drivers = [
  ioredis(ioredis5, 'ioredis 5'),
  ioredis(ioredis6, 'ioredis 6'),
  nodeRedis(redis5, 'node-redis 5'),
  nodeRedis(redis5, 'node-redis 5, RESP 3', { RESP: 3 }),
  nodeRedis(redis6, 'node-redis 6'),
].filter(({ name }) => name.includes(process.env.DRIVER ?? ''))
