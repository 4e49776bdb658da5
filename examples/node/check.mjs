// Provokes what goes wrong with locks, and looks whether lock.mjs survives it, on ioredis and on node-redis. `make test-examples` runs it.

import assert from 'node:assert/strict'
import crypto, { randomUUID } from 'node:crypto'
import { syncBuiltinESMExports } from 'node:module'
import { setTimeout as sleep } from 'node:timers/promises'

import { Redis } from 'ioredis'
import { createClient } from 'redis'

import { NotGranted, onIoredis, onNodeRedis } from './lock.mjs'

const { PORT, LOSING_PORT, ROUNDS } = process.env
const rounds = Number(ROUNDS ?? 20)
const direct = new Redis(Number(PORT))
const quiet = (client) => client.on('error', () => {}) // The checks cut its connection.
const counting = quiet(new Redis(Number(LOSING_PORT))) // Answered ahead of what else is asked: so on a connection of its own.
const spoiled = () => counting.call('SPOILED')

const libraries = {
  ioredis: async (port, options) => {
    const client = quiet(new Redis({ port: Number(port), ...options }))
    return { locks: await onIoredis(client), send: (...words) => client.call(...words), end: () => client.disconnect() }
  },
  'node-redis': async (port, options) => {
    const url = `redis://127.0.0.1:${port}`
    const client = quiet(createClient({ url, commandOptions: { timeout: options?.commandTimeout } }))
    await client.connect()
    return { locks: await onNodeRedis(client), send: (...words) => client.sendCommand(words), end: () => client.destroy() }
  }
}

/** No hold and no waiter was left behind. */
async function assertFree (key) {
  assert.deepEqual(await direct.call('RLOCK.WAITERS', key), [])
  assert.equal(await direct.call('RLOCK.PTTL', key), -2)
}

const holds = (hold) => direct.call('RLOCK.HOLDS', hold.key, hold.owner)

/** How many requests for locks the server was sent. */
async function requests () {
  const stats = await direct.info('commandstats')
  const calls = stats.matchAll(/cmdstat_rlock\.(?:acquire|cancel|release):calls=(\d+)/gi)
  return [...calls].reduce((sum, [, number]) => sum + Number(number), 0)
}

/** What begins in there has one owner's name, where each acquisition has one of its own else. */
function inOneName (begin) {
  const { randomUUID } = crypto
  crypto.randomUUID = () => 'one-owner'
  syncBuiltinESMExports()
  try {
    return begin()
  } finally {
    crypto.randomUUID = randomUUID
    syncBuiltinESMExports()
  }
}

async function within (ms, promise) {
  const started = performance.now()
  const result = await promise
  assert(performance.now() - started < ms, `took ${performance.now() - started} ms of ${ms}`)
  return result
}

const checks = {
  // The reason for ONCE. node-redis repeats nothing that was sent, and throws.
  async 'a lost reply without ONCE' ({ send }, library) {
    const owner = randomUUID()
    const answer = await send('RLOCK.ACQUIRE', 'cut:bare', owner).catch(() => 'thrown')
    const held = await direct.call('RLOCK.HOLDS', 'cut:bare', owner)
    assert.deepEqual([typeof answer, held], library === 'ioredis' ? ['number', 2] : ['string', 1])
    await direct.call('RLOCK.FORCERELEASE', 'cut:bare')
    return `${held} held`
  },

  // By ONCE alone, with the library's own retries at their defaults.
  async 'rounds of a bare ACQUIRE … ONCE with both replies lost: one hold, one RELEASE frees it' ({ send }) {
    for (let round = 0; round < rounds; round++) {
      const owner = randomUUID()
      await send('RLOCK.ACQUIRE', 'cut:once', owner, 'ONCE')
      assert.equal(await direct.call('RLOCK.HOLDS', 'cut:once', owner), 1)
      // Repeated as well: the first one was carried out.
      await assert.rejects(send('RLOCK.RELEASE', 'cut:once', owner), /^ReplyError: NOTOWNER /)
      await assertFree('cut:once')
    }
    return rounds
  },

  async 'rounds of NOTIFY with both replies lost: one hold, one RELEASE frees it' ({ locks }, library) {
    const before = await spoiled()
    for (let round = 0; round < rounds; round++) {
      const hold = await locks.acquire('cut:job', { waitMs: 20_000 })
      assert.equal(await holds(hold), 1)
      await locks.release(hold).catch((error) => assert.equal(library, 'node-redis', error))
      await assertFree(hold.key)
    }
    assert.equal(await spoiled() - before, 2 * rounds)
    return rounds
  },

  async 'rounds of NOTIFY that waits with both replies lost: one hold, one RELEASE frees it' ({ locks }, library) {
    const before = await spoiled()
    for (let round = 0; round < rounds; round++) {
      await direct.call('RLOCK.ACQUIRE', 'cut:waits', 'holder')
      const waiter = locks.acquire('cut:waits', { waitMs: 20_000 })
      const waits = async () => await spoiled() - before > 2 * round && (await direct.call('RLOCK.WAITERS', 'cut:waits')).length
      while (!await waits()) await sleep(1)
      await direct.call('RLOCK.RELEASE', 'cut:waits', 'holder')
      const hold = await waiter
      assert.equal(await holds(hold), 1)
      await locks.release(hold).catch((error) => assert.equal(library, 'node-redis', error))
      await assertFree(hold.key)
    }
    assert.equal(await spoiled() - before, 2 * rounds)
    return rounds
  },

  async '100 wait over one connection, which serves others meanwhile' ({ locks, send }) {
    const first = await locks.acquire('shared', { waitMs: 1000 })
    const tokens = []
    const waiters = Array.from({ length: 100 }, () =>
      locks.held('shared', { waitMs: 20_000 }, (hold) => { tokens.push(hold.token) }))
    await sleep(500)
    assert.equal((await direct.call('RLOCK.WAITERS', 'shared')).length, 100)
    await within(500, send('PING'))
    await within(500, locks.release(first))
    await Promise.all(waiters)
    assert.deepEqual(tokens, [...tokens].sort((a, b) => a - b))
    assert.equal(tokens.length, 100)
    await assertFree('shared')
  },

  async 'a wait that ends, and one that is given up, leave nothing behind' ({ locks }) {
    const first = await locks.acquire('ends', { waitMs: 1000 })
    assert.equal(await within(1500, locks.acquire('ends', { waitMs: 500 })), null)
    await assert.rejects(locks.held('ends', { waitMs: 100 }, () => {}), NotGranted)
    const giveUp = AbortSignal.timeout(300)
    await assert.rejects(within(1300, locks.acquire('ends', { waitMs: 20_000, signal: giveUp })), { name: 'TimeoutError' })
    assert.deepEqual(await direct.call('RLOCK.WAITERS', 'ends'), [])
    await locks.release(first)
    await assertFree('ends')
  },

  async 'a wait of 6.5 s goes on when its connection, or its subscription, is cut' ({ locks }) {
    for (const kind of ['normal', 'pubsub']) {
      const first = await locks.acquire('cutoff', { waitMs: 1000 })
      const waiter = locks.acquire('cutoff', { waitMs: 10_000 })
      await sleep(300)
      await direct.call('CLIENT', 'KILL', 'TYPE', kind, 'SKIPME', 'yes')
      await sleep(kind === 'normal' ? 6200 : 0)
      await locks.release(first)
      const hold = await within(3500, waiter)
      assert.equal(await holds(hold), 1)
      assert(await locks.release(hold))
      await assertFree('cutoff')
    }
  },

  async 'of two that wait in one name the newer goes on, and the older asks no more' (_, library) {
    const sessions = [await libraries[library](PORT), await libraries[library](PORT)]
    const wait = ({ locks }) => inOneName(() => locks.acquire('in-one-name', { waitMs: 20_000 }).catch((error) => error))
    await direct.call('RLOCK.ACQUIRE', 'in-one-name', 'holder')
    const before = await requests()
    const older = wait(sessions[0])
    while (!(await direct.call('RLOCK.WAITERS', 'in-one-name')).length) await sleep(10)
    const newer = wait(sessions[1])
    await sleep(5000)
    const made = await requests() - before
    assert(made < 10, `${made} requests in 5 s`)
    assert.match((await older).message, /^SUPERSEDED /)
    await direct.call('RLOCK.RELEASE', 'in-one-name', 'holder')
    assert(await sessions[1].locks.release(await newer))
    await assertFree('in-one-name')
    for (const session of sessions) {
      session.locks.close()
      session.end()
    }
  },

  async 'held for longer than its lease; hears of it when it is lost' ({ locks }) {
    await locks.held('renewed', { leaseMs: 1500, waitMs: 100 }, async (hold, lost) => {
      await sleep(3500)
      assert.equal(await holds(hold), 1)
      assert(!lost.aborted)
      await direct.call('RLOCK.FORCERELEASE', 'renewed')
      await sleep(1000)
      assert(lost.aborted)
    })
    await assertFree('renewed')
  }
}

for (const [library, connect] of Object.entries(libraries)) {
  for (const [name, check] of Object.entries(checks)) {
    if (library === 'node-redis' && /bare/.test(name)) continue // It repeats nothing.
    // With ROUNDS only what takes that many, of the library that repeats by itself.
    if (ROUNDS && (library === 'node-redis' || !/lost reply|rounds/.test(name))) continue
    const session = await connect(LOSING_PORT)
    const result = await check(session, library)
    console.log(`ok  ${library}: ${name}${result ? `: ${result}` : ''}`)
    session.locks.close()
    session.end()
  }
  if (ROUNDS) continue
  // A timeout that keeps the connection: the command is carried out all the same. That of node-redis ends only what was not yet sent.
  const session = await connect(LOSING_PORT, { commandTimeout: 500 })
  const answer = await session.send('RLOCK.ACQUIRE', 'late:bare', library).then(() => 'answered', () => 'given up')
  assert.equal(answer, library === 'ioredis' ? 'given up' : 'answered')
  assert.equal(await direct.call('RLOCK.HOLDS', 'late:bare', library), 1)
  await direct.call('RLOCK.FORCERELEASE', 'late:bare')
  await sleep(2000)
  const acquiring = session.locks.acquire('late:job', { waitMs: 10_000 }).catch(() => null)
  const hold = await within(10_000, acquiring)
  if (hold) {
    assert.equal(await holds(hold), 1)
    await session.locks.release(hold).catch(() => {})
    await sleep(2000)
  }
  await assertFree('late:job')
  console.log(`ok  ${library}: ${answer} with a command timeout of 500 ms; no hold is left for nobody`)
  session.locks.close()
  session.end()
}
direct.disconnect()
counting.disconnect()
