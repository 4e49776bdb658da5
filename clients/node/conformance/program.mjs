// The conformance program of this package; ../../conformance/PROTOCOL.md describes what it speaks.
//
//     node program.mjs --driver ioredis|node-redis
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'

import { Cluster, Redis } from 'ioredis'
import { createClient, createCluster, RESP_TYPES } from 'redis'
import { LockError, LockLost, LockTimeout, RLockClient } from 'rlock-redis'

const { driver: defaultDriver } = parseArgs({ options: { driver: { type: 'string', default: 'ioredis' } } }).values
const version = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')).version

// Abilities, and the rules that the package keeps of those that are not kept everywhere yet.
const FEATURES = ['cluster', 'tls', 'clock', 'drivers', 'timed', 'B29', 'B30', 'B31', 'B32', 'B33', 'B34', 'B35']

class Unsupported extends Error {}
class Cancelled extends Error {}

const clients = new Map()
const holds = new Map()
const outstanding = new Map()
const tasks = new Map()

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`)
const nowUs = () => Number(process.hrtime.bigint() / 1000n)
const quiet = (client) => client.on('error', (error) => console.error(String(error)))

class TestClock {
  ahead = 0
  monotonic = () => performance.now() + this.ahead
  wall = () => Date.now() + this.ahead
}

// Replies that are not decoded are buffers, decoded ones strings, where the library can.
const typeMapping = (decode) => ({
  [RESP_TYPES.BLOB_STRING]: decode ? String : Buffer,
  [RESP_TYPES.SIMPLE_STRING]: decode ? String : Buffer,
  ...(decode ? { [RESP_TYPES.NUMBER]: String } : {}),
})

async function connectIoredis({ url, cluster, sentinel, ca_file, key_prefix, decode, command_timeout_ms }) {
  const { hostname: host, port, username, password, pathname, protocol } = new URL(url || 'redis://127.0.0.1')
  const options = { keyPrefix: key_prefix ?? '', stringNumbers: decode === true }
  if (command_timeout_ms !== undefined) options.commandTimeout = command_timeout_ms
  if (username) options.username = decodeURIComponent(username)
  if (password) options.password = decodeURIComponent(password)
  if (pathname.length > 1) options.db = Number(pathname.slice(1))
  if (protocol === 'rediss:') options.tls = ca_file ? { ca: readFileSync(ca_file) } : {}
  const address = { host, port: Number(port || 6379) }
  if (cluster) {
    const client = quiet(new Cluster([address], { redisOptions: options }))
    return { client, end: () => client.disconnect() }
  }
  const sentinels = sentinel?.nodes.map((node) => ({ host: node.split(':')[0], port: Number(node.split(':')[1]) }))
  const where = sentinel ? { sentinels, name: sentinel.master } : address
  const client = quiet(new Redis({ ...options, ...where }))
  return { client, end: () => client.disconnect() }
}

async function connectNodeRedis({ url, cluster, sentinel, ca_file, key_prefix, decode, command_timeout_ms }) {
  if (sentinel) throw new Unsupported('sentinel')
  if (key_prefix) throw new Unsupported('key_prefix')
  const options = { commandOptions: {} }
  if (decode !== undefined) options.commandOptions.typeMapping = typeMapping(decode)
  if (command_timeout_ms !== undefined) options.commandOptions.timeout = command_timeout_ms
  const socket = ca_file ? { tls: true, ca: readFileSync(ca_file) } : {}
  const { username, password } = new URL(url)
  const defaults = {
    ...options,
    socket,
    username: decodeURIComponent(username),
    password: decodeURIComponent(password),
  }
  const client = quiet(
    cluster ? createCluster({ rootNodes: [{ url }], defaults, ...options }) : createClient({ ...options, url, socket }),
  )
  await client.connect()
  return { client, end: () => client.destroy() }
}

async function connect(request) {
  const driver = request.driver ?? defaultDriver
  if (request.pool !== undefined) throw new Unsupported('pool')
  const connectWith = { ioredis: connectIoredis, 'node-redis': connectNodeRedis }[driver]
  if (!connectWith) throw new Unsupported(driver)
  const { client, end } = await connectWith(request)
  const clock = new TestClock()
  const options = { clock, onWarning: (text) => say({ event: 'log', text }) }
  if (request.command_timeout_ms !== undefined) options.commandTimeout = request.command_timeout_ms
  clients.set(request.client, { rlock: new RLockClient(client, options), clock, end })
  return {}
}

const EXTREMES = { inf: Infinity, '-inf': -Infinity, nan: NaN, max: Number.MAX_VALUE, min: -Number.MAX_VALUE }

/** A duration of the protocol: milliseconds, or the name of an extreme value. */
const span = (value) => (typeof value === 'string' ? EXTREMES[value] : (value ?? undefined))

function optionsOf(request) {
  const names = { lease: 'lease_ms', fixedLease: 'fixed_lease_ms', session: 'session_ms', owner: 'owner', note: 'note' }
  const value = (field) => (field.endsWith('_ms') ? span(request[field]) : request[field])
  const entries = Object.entries(names).map(([name, field]) => [name, value(field)])
  return Object.fromEntries(entries.filter(([, value]) => value !== undefined && value !== null))
}

function lockOf({ client, kind, keys, permits, grace_ms, ...request }) {
  const { rlock } = clients.get(client)
  const options = optionsOf(request)
  if (kind === 'fair') return rlock.fairLock(keys[0], { ...options, grace: span(grace_ms) })
  if (kind === 'read') return rlock.readLock(keys[0], options)
  if (kind === 'write') return rlock.writeLock(keys[0], options)
  if (kind === 'semaphore') return rlock.semaphore(keys[0], { ...options, permits: permits ?? 1 })
  if (kind === 'many') return rlock.multiLock(keys, options)
  if (kind === 'mutex' || kind === undefined) return rlock.lock(keys[0], options)
  throw new Unsupported(kind)
}

/** A hold, or null if it was not acquired. */
async function obtain(request, signal) {
  const lock = lockOf(request)
  if (request.wait_ms === 0) return await lock.tryAcquire()
  try {
    return await lock.acquire({ signal, timeout: span(request.wait_ms) })
  } catch (error) {
    if (error instanceof LockTimeout && error.cause === undefined) return null
    throw error
  }
}

function tellLoss(name, hold) {
  holds.set(name, hold)
  hold.signal.addEventListener('abort', () => {
    if (hold.signal.reason instanceof LockLost) say({ event: 'lost', hold: name, at_us: nowUs() })
  })
}

const heldNow = (hold) => ({ at_us: nowUs(), valid_ms: hold.remaining })

async function acquire(request, signal) {
  const hold = await obtain(request, signal)
  if (!hold) return { tokens: [], at_us: nowUs() }
  const answer = { tokens: hold.tokens, ...heldNow(hold) }
  tellLoss(request.hold, hold)
  return answer
}

async function workOnce(request, signal, counts, until) {
  const asked_us = nowUs()
  const hold = await obtain(request, signal)
  if (!hold) return counts.not_acquired++
  const from_us = nowUs()
  let believedUntil = from_us + hold.remaining * 1000
  let to_us
  hold.signal.addEventListener('abort', () => (to_us ??= Math.min(nowUs(), believedUntil)))
  const end = Math.min(performance.now() + (request.hold_ms ?? 0), until)
  // Shorter than from a renewal to its deadline, so each deadline is seen.
  const step = Math.max(20, (request.lease_ms ?? 0) / 10)
  for (let left; (left = end - performance.now()) > 0 && to_us === undefined;) {
    await sleep(Math.min(left, step))
    if (hold.held) believedUntil = nowUs() + hold.remaining * 1000
    else to_us ??= Math.min(nowUs(), believedUntil)
  }
  const lost = !hold.held
  to_us ??= Math.min(nowUs(), believedUntil)
  to_us = Math.floor(to_us)
  // It may have expired before this program's code continued.
  if (to_us > from_us) {
    request.keys.forEach((key, n) => say({ event: 'interval', key, token: hold.tokens[n], asked_us, from_us, to_us }))
  }
  await hold.release()
  counts[lost ? 'lost' : 'done']++
}

async function work(request, signal) {
  const counts = { done: 0, not_acquired: 0, lost: 0, errors: {} }
  const { tasks = 1, over_ms = 0, spread } = request
  const times = request.times ?? (request.for_ms === undefined ? 1 : Infinity)
  const task = async (_, number) => {
    await sleep((over_ms * number) / tasks)
    const until = request.for_ms === undefined ? Infinity : performance.now() + request.for_ms
    const keys = spread ? [`${request.keys[0]}${number % spread}`] : request.keys
    for (let n = 0; n < times && performance.now() < until && !signal.aborted; n++) {
      await workOnce({ ...request, keys }, signal, counts, until).catch((error) => {
        const name = nameOf(error)
        counts.errors[name] = (counts.errors[name] ?? 0) + 1
      })
    }
  }
  await Promise.all(Array.from({ length: tasks }, task))
  signal.throwIfAborted()
  return counts
}

async function run(request, signal) {
  const options = { signal, timeout: request.wait_ms ?? undefined }
  const result = await lockOf(request).using(async (hold) => {
    tellLoss(request.hold, hold)
    await sleep(request.work_ms ?? 0)
    say({ event: 'step', hold: request.hold, at_us: nowUs() })
    if (request.fails !== undefined) throw new Error(request.fails)
    return 'done'
  }, options)
  return { result }
}

async function lead(request, signal) {
  const { rlock } = clients.get(request.client)
  const leads = async (hold, stop) => {
    say({ event: 'elected', hold: request.hold, token: hold.token, at_us: nowUs() })
    tellLoss(request.hold, hold)
    await new Promise((resolve) => stop.addEventListener('abort', resolve))
  }
  await rlock.leader(request.keys[0], leads, { ...optionsOf(request), signal })
  return {}
}

const holdOf = ({ hold }) => {
  const found = holds.get(hold)
  if (!found) throw new Error(`no hold ${hold}`)
  return found
}

const requests = {
  hello: () => ({
    language: 'node',
    package: `rlock-redis ${version}`,
    features: [...FEATURES, ...(defaultDriver === 'ioredis' ? ['sentinel'] : [])],
  }),
  connect,
  acquire,
  release: async (request) => {
    const hold = holdOf(request)
    const keep = span(request.keep_ms)
    return { released: keep === undefined ? await hold.release() : await hold.releaseAndKeep(keep) }
  },
  held: (request) => {
    const hold = holdOf(request)
    return { held: hold.held, ...heldNow(hold) }
  },
  work,
  run,
  lead,
  init: async ({ client, keys, permits, idle_ms }) => {
    const { rlock } = clients.get(client)
    return { made: await rlock.semaphore(keys[0]).init(permits, { idle: span(idle_ms) }) }
  },
  cancel: ({ request }) => {
    outstanding.get(request)?.abort(new Cancelled('cancelled'))
    return {}
  },
  clock: ({ client, advance_ms }) => {
    clients.get(client).clock.ahead += advance_ms
    return {}
  },
  close: async ({ client }) => {
    const { rlock, end } = clients.get(client)
    await rlock.close()
    await end()
    return {}
  },
  stats: () => ({
    memory_bytes: process.memoryUsage().rss,
    handles: process.getActiveResourcesInfo().length,
    tasks: outstanding.size,
  }),
}

function nameOf(error) {
  if (error instanceof LockError) return error.name
  if (error instanceof Unsupported) return 'Unsupported'
  if (error instanceof Cancelled) return 'Cancelled'
  return error?.name ?? 'Error'
}

async function serve(request) {
  const { id } = request
  const controller = new AbortController()
  outstanding.set(id, controller)
  try {
    const handle = requests[request.do]
    if (!handle) throw new Unsupported(request.do)
    say({ id, ok: (await handle(request, controller.signal)) ?? {} })
  } catch (error) {
    const cause = error?.cause === undefined ? '' : String(error.cause)
    say({ id, error: nameOf(error), code: error?.code ?? '', message: String(error?.message ?? error), cause })
  } finally {
    outstanding.delete(id)
  }
}

const lines = createInterface({ input: process.stdin })
lines.on('close', () => process.exit(0))
lines.on('line', (line) => {
  const request = JSON.parse(line)
  if (request.do === 'exit') process.exit(0)
  if (request.task === undefined) return void serve(request)
  // Requests of one task run one after another.
  const earlier = tasks.get(request.task) ?? Promise.resolve()
  tasks.set(
    request.task,
    earlier.then(() => serve(request)),
  )
})
