// Runs the clients, each an async function in one event loop, and records what each of them did. It
// calculates nothing. ../README.md has the protocol.

import { createWriteStream } from 'node:fs'
import { finished } from 'node:stream/promises'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'

const WARM_UPS = 20
const MANY_CLIENTS = 1000 // With this many, the warm-up of each client is short.
const WARM_UP_WAIT_MS = 60_000
const PAUSE_AFTER_ERROR_MS = 10
const LATE_MS = 1000 // For clients that hold at the end. Clients that still wait are abandoned.
const STREAM = process.env.PEERS_STREAM === '1'

const names = ['peer', 'server', 'lock', 'variant', 'clients', 'first', 'locks', 'key', 'seconds', 'section-us', 'lease-ms', 'permits', 'hold', 'out']
const { values } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: 'string' }])) })
const missing = names.filter((name) => values[name] === undefined)
if (missing.length) throw new Error(`the argument --${missing[0]} is missing`)
const options = {
  ...values,
  host: values.server.slice(0, values.server.lastIndexOf(':')),
  port: Number(values.server.slice(values.server.lastIndexOf(':') + 1)),
  clients: Number(values.clients),
  first: Number(values.first),
  locks: Number(values.locks),
  ms: Number(values.seconds) * 1000,
  sectionMs: Number(values['section-us']) / 1000,
  leaseMs: Number(values['lease-ms']),
  permits: Number(values.permits),
  hold: values.hold === 'yes'
}

// Each has `connect(options)`, which returns `client(i)`, which returns `acquire(key, waitMs)`.
// That resolves to the function that releases the lock, or to null on a timeout.
const modules = { redlock: './redlock.mjs', 'redis-semaphore': './redis-semaphore.mjs', 'rlock-node': './rlock.mjs' }
if (!modules[options.peer]) throw new Error(`there is no peer ${options.peer}`)
const { connect } = await import(modules[options.peer])

const pairs = []
let errors = 0
let end = Infinity

const now = () => process.hrtime.bigint() // CLOCK_MONOTONIC on Linux.
const say = (line) => process.stdout.write(line + '\n')

function fail (number, error) {
  errors++
  if (errors === 1) process.stderr.write(`client ${number}: ${error}`.split('\n')[0] + '\n')
}

async function warmUp (number, acquire) {
  for (let i = 0; i < (options.clients < MANY_CLIENTS ? WARM_UPS : 2); i++) {
    const free = await acquire(`${options.key}:warm:${number}`, WARM_UP_WAIT_MS)
    await free()
  }
}

async function hold (number, acquire) {
  await acquire(`${options.key}:${number % options.locks}`, WARM_UP_WAIT_MS)
  say('held')
  await sleep(Math.max(0, end - performance.now()))
}

async function work (number, acquire) {
  const lock = number % options.locks
  for (let left; (left = Math.ceil(end - performance.now())) > 0;) {
    try {
      const asked = now()
      const release = await acquire(`${options.key}:${lock}`, left)
      if (!release) continue
      const got = now()
      if (STREAM) say(`got ${number} ${lock} ${got}`)
      if (options.sectionMs) await sleep(options.sectionMs)
      const free = now()
      await release()
      pairs.push([number, lock, asked, got, free, now()])
    } catch (error) {
      fail(number, error)
      await sleep(PAUSE_AFTER_ERROR_MS)
    }
  }
}

const client = await connect(options)
const numbers = Array.from({ length: options.clients }, (_, i) => options.first + i)
const clients = await Promise.all(numbers.map(async (number) => {
  const acquire = await client(number)
  await warmUp(number, acquire)
  return [number, acquire]
}))
const input = createInterface({ input: process.stdin })
say('ready')
const { value: line } = await input[Symbol.asyncIterator]().next()
if (line !== 'go') process.exit(1)
end = performance.now() + options.ms
const all = Promise.all(clients.map(([number, acquire]) => (options.hold ? hold : work)(number, acquire)))
await Promise.race([all, sleep(options.ms + LATE_MS)])
const file = createWriteStream(options.out)
const count = pairs.length
for (const pair of pairs) file.write(pair.join() + '\n')
file.end()
await finished(file)
process.stdout.write(`done ${count} ${errors}\n`, () => process.exit(0))
