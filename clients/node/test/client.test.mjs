// What needs no real server, or a process of its own.
import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

import { LockLost, ModuleTooOld, Refused, Unavailable } from '../dist/esm/index.js'
import { IoredisDriver } from '../dist/esm/ioredis.js'
import { freePort, RLockClient, sleep, startServer, TestClock, until } from './support.mjs'

const option = (words, name) => Number(words[words.indexOf(name) + 1])

/**
 * A driver whose server grants and renews what is asked for, unless `answer` says otherwise. `sent` has the names of
 * the commands, `commands` all their words, and `hear` is what the subscriber calls.
 */
function stub(answer = () => undefined, own = {}) {
  const byDefault = (words) => {
    if (words[0] === 'RLOCK.MACQUIRE') return [...Array(Number(words[1])).fill(7), option(words, 'CLAIM')]
    if (words[0].endsWith('ACQUIRE')) return [7, option(words, 'CLAIM')]
    return words[0].endsWith('RENEW') ? option(words, 'PX') : 1
  }
  const driver = {
    sent: [],
    commands: [],
    cluster: false,
    keyPrefix: '',
    send: async (_, words) => {
      driver.sent.push(words[0])
      driver.commands.push(words)
      const reply = await answer(words)
      if (reply instanceof Error) throw reply
      return reply ?? byDefault(words)
    },
    node: () => '',
    subscriber: async (_, onMessage) => {
      driver.hear = onMessage
      return { subscribe: async () => {}, unsubscribe: async () => {}, ping: async () => {} }
    },
    watch: () => () => {},
    ...own,
  }
  return driver
}

const ACQUIRE = 'RLOCK.ACQUIRE'
const RENEW = 'RLOCK.RENEW'
const RELEASE = 'RLOCK.RELEASE'
const CANCEL = 'RLOCK.CANCEL'

/** A driver whose first `count` requests wait, and how its message grants one of them. */
function waiting(count = 1, answer = () => undefined) {
  let waits = 0
  const driver = stub(
    (words) => answer(words) ?? (words[0].endsWith('ACQUIRE') && waits++ < count ? 'WAITING' : undefined),
  )
  driver.grant = (ms, tokens = '7') =>
    driver.hear(`granted ${option(driver.commands.at(-1), 'REQ')} ${tokens} for ${ms}`)
  return driver
}

test('an old module is told apart, and so is an answer that is no grant', async () => {
  const unknown = new Error("ERR unknown option 'TIMED'; expected PX, EX, BLOCK")
  for (const [reply, expected] of [
    [unknown, ModuleTooOld],
    [0, ModuleTooOld],
    [[7], Refused],
    [['7', 'x'], Refused],
    [[7, 8, 9], Refused],
  ]) {
    const rlock = new RLockClient(stub(([name]) => (name === ACQUIRE ? reply : undefined)))
    await assert.rejects(rlock.lock('k').acquire(), expected)
    await rlock.close()
  }
})

test('a published grant is believed at once, from the first request on, and claimed if it is still held', async () => {
  const clock = new TestClock()
  const driver = waiting()
  const rlock = new RLockClient(driver, { clock })
  const lock = rlock.lock('k')
  const waits = lock.acquire()
  await until(() => driver.sent.length === 1, 'the request')
  clock.ahead += 20_000
  driver.grant(22_000)
  const hold = await waits
  assert.equal(hold.token, 7)
  assert.deepEqual(driver.sent, [ACQUIRE])
  assert.ok(hold.remaining > 1500 && hold.remaining <= 22_000 * 0.99 - 2 - 20_000, String(hold.remaining))
  await until(() => hold.remaining > 25_000, 'the answer to the claim', 2000)
  assert.deepEqual(driver.sent, [ACQUIRE, RENEW])
  assert.deepEqual(driver.commands[1].slice(1), ['k', hold.owner, 'PX', '30000', 'TIMED', 'TOKEN', '7'])
  assert.equal(await hold.release(), true)
  await rlock.close()
})

test('a published grant that was held for less than 50 ms is only released', async () => {
  const driver = waiting()
  const rlock = new RLockClient(driver)
  const waits = rlock.lock('k').acquire()
  await until(() => driver.sent.length === 1, 'the request')
  driver.grant(2000)
  const hold = await waits
  assert.equal(await hold.release(), true)
  await sleep(100)
  assert.deepEqual(driver.commands[1], [RELEASE, 'k', hold.owner, 'TOKEN', '7'])
  assert.deepEqual(driver.sent, [ACQUIRE, RELEASE])
  await rlock.close()
})

test('a published grant that cannot be believed any more, or of a session, makes the same request again', async () => {
  for (const [passed, options] of [
    [3000, {}],
    [0, { session: 1000 }],
  ]) {
    const clock = new TestClock()
    const driver = waiting()
    const rlock = new RLockClient(driver, { clock })
    const waits = rlock.lock('k', options).acquire()
    await until(() => driver.sent.length === 1, 'the request')
    clock.ahead += passed
    driver.grant(2000)
    const hold = await waits
    assert.ok(hold.held)
    assert.deepEqual(driver.sent, [ACQUIRE, ACQUIRE])
    assert.deepEqual(driver.commands[0], driver.commands[1])
    await rlock.close()
  }
})

test('a published grant makes the same request again while an earlier one has no answer', async () => {
  let silent = true
  const driver = waiting(1, ([name]) => (silent && name === ACQUIRE ? new Promise(() => {}) : undefined))
  const rlock = new RLockClient(driver, { commandTimeout: 100, onWarning: () => (silent = false) })
  const waits = rlock.lock('k').acquire()
  await until(() => driver.sent.length === 2, 'the second request')
  driver.grant(2000)
  assert.ok((await waits).held)
  assert.deepEqual(driver.sent, [ACQUIRE, ACQUIRE, ACQUIRE])
  assert.equal(new Set(driver.commands.map((words) => option(words, 'REQ'))).size, 1)
  await rlock.close()
})

test('what was granted to a wait that has ended is cancelled, by the id of its only request', async () => {
  const driver = waiting()
  const rlock = new RLockClient(driver)
  const stop = new AbortController()
  const waits = rlock.multiLock(['a', 'b']).acquire({ signal: stop.signal })
  await until(() => driver.sent.length === 1, 'the request')
  stop.abort(new Error('enough'))
  await assert.rejects(waits, /enough/)
  await rlock.close()
  const [asked, cancelled, ...others] = driver.commands
  assert.deepEqual(cancelled, ['RLOCK.MCANCEL', '2', 'a', 'b', asked[4], 'REQ', String(option(asked, 'REQ'))])
  assert.deepEqual(others, [])
})

test('the answer counts, not the lease that was asked for', async () => {
  const driver = stub(([name]) => (name === ACQUIRE ? [7, 1000] : undefined))
  const rlock = new RLockClient(driver)
  const hold = await rlock.lock('k').tryAcquire()
  assert.ok(hold.remaining < 1000)
  await rlock.close()
  assert.deepEqual(driver.sent, [ACQUIRE, RELEASE])
})

test('a fixed lease is a limit: what the server allows is renewed until then, and no longer', async () => {
  const clock = new TestClock()
  const asked = []
  const driver = stub((words) => {
    if (words[0] === ACQUIRE) return [7, 1000]
    if (words[0] !== RENEW) return undefined
    asked.push(option(words, 'PX'))
    return Math.min(asked.at(-1), 1000)
  })
  const rlock = new RLockClient(driver, { clock })
  const hold = await rlock.lock('k', { fixedLease: 3000 }).acquire()
  for (let n = 1; n < 10 && hold.held; n++) {
    await until(() => asked.length >= n || !hold.held, 'a renewal', 3000)
    await sleep(10)
    assert.ok(hold.remaining <= Math.min(asked.at(-1), 1000))
    clock.ahead += 340
  }
  assert.equal(hold.held, false)
  assert.ok(asked.length >= 4 && asked[0] <= 3000 && asked.at(-1) < 1000, asked.join())
  assert.deepEqual(
    asked,
    asked.toSorted((a, b) => b - a),
  )
  await rlock.close()
})

test('no pair of an acquisition and its release starts a timer of its own', async (t) => {
  const rlock = new RLockClient(stub())
  const timers = t.mock.method(globalThis, 'setTimeout')
  const lock = rlock.lock('k')
  const begun = performance.now()
  for (let n = 0; n < 1000; n++) await (await lock.acquire()).release()
  const most = 4 + (2 * (performance.now() - begun)) / 50
  assert.ok(timers.mock.callCount() <= most, `${timers.mock.callCount()} timers`)
  await rlock.close()
})

test('one timer renews all holds', async (t) => {
  const driver = stub()
  const rlock = new RLockClient(driver)
  const timers = t.mock.method(globalThis, 'setTimeout')
  const begun = performance.now()
  await Promise.all(Array.from({ length: 500 }, (_, n) => rlock.lock(`k${n}`).acquire()))
  await until(() => driver.sent.filter((name) => name === RENEW).length === 500, 'the claims')
  // `until` has timers as well.
  const most = 50 + (performance.now() - begun) / 5
  assert.ok(timers.mock.callCount() <= most, `${timers.mock.callCount()} timers`)
  await rlock.close()
})

test('a signal is made when it is asked for, also after the end', async (t) => {
  const controllers = t.mock.method(globalThis, 'AbortController')
  const clock = new TestClock()
  const rlock = new RLockClient(stub(), { clock })
  await (await rlock.lock('k').acquire()).release()
  const hold = await rlock.lock('k').tryAcquire()
  const { signal } = await rlock.lock('k').acquire()
  clock.ahead += 60_000
  await until(() => signal.aborted, 'the loss')
  assert.equal(controllers.mock.callCount(), 2) // That of the subscriber, too.
  assert.ok(hold.signal.reason instanceof LockLost)
  await rlock.close()
})

test('a duration out of range is a RangeError that names it, and asks the server nothing', async (t) => {
  const YEAR = 31_536_000_000
  const driver = stub()
  const rlock = new RLockClient(driver)
  t.after(() => rlock.close())
  const refuses = (name, value, call) =>
    assert.rejects(
      async () => call(),
      (error) => error instanceof RangeError && error.message.startsWith(`${name} is ${value}; expected whole `),
      `${name} ${value}`,
    )
  const outside = [NaN, -Infinity, -Number.MAX_VALUE, -1, 0.4, null, '100']
  for (const ms of [...outside, YEAR + 1, Number.MAX_VALUE, Infinity]) {
    for (const name of ['lease', 'fixedLease', 'session', 'grace']) {
      await refuses(name, ms, () => rlock.fairLock('k').acquire({ [name]: ms }))
      if (name !== 'grace') await refuses(name, 9, () => rlock.lock('k', { [name]: 9 }).tryAcquire())
    }
    for (const name of ['lease', 'commandTimeout']) {
      await refuses(name, ms, () => new RLockClient(stub(), { [name]: ms }))
      await refuses(name, 0, () => new RLockClient(stub(), { [name]: 0 }))
    }
    await refuses('idle', ms, () => rlock.semaphore('s').init(1, { idle: ms }))
    await refuses('permits', ms, () => rlock.semaphore('s').init(ms))
    await refuses('permits', ms, () => rlock.semaphore('s', { permits: ms }).acquire())
  }
  await refuses('permits', 0, () => rlock.semaphore('s').init(0))
  await refuses('permits', 0, () => rlock.semaphore('s').acquire({ permits: 0 }))
  for (const ms of outside) await refuses('timeout', ms, () => rlock.lock('k').acquire({ timeout: ms }))
  assert.deepEqual(driver.sent, [])

  const hold = await rlock.lock('k', { lease: YEAR, session: YEAR }).acquire({ timeout: YEAR })
  for (const ms of [...outside, YEAR + 1, Infinity]) await refuses('ms', ms, () => hold.releaseAndKeep(ms))
  assert.ok(hold.held)
  assert.equal(await hold.releaseAndKeep(YEAR), true)
  await (await rlock.lock('k', { lease: 10 }).acquire()).release() // It may be lost by now.
  for (const timeout of [YEAR + 1, Number.MAX_VALUE, Infinity]) {
    assert.equal(await (await rlock.lock('k').acquire({ timeout })).releaseAndKeep(0), true)
  }
})

test('a belief follows the last answer, also downwards', async () => {
  const clock = new TestClock()
  let left
  const rlock = new RLockClient(
    stub(([name]) => (name === RENEW ? left : undefined)),
    { clock },
  )
  const hold = await rlock.lock('k').acquire()
  await until(() => hold.remaining > 25_000, 'the claim', 2000)
  left = 5000
  clock.ahead += 11_000 // The renewal is due.
  await until(() => hold.remaining <= 5000, 'the answer', 3000)
  assert.ok(hold.held)
  await rlock.close()
})

test('a named owner that has lost its hold acquires again, after the RELEASE of the lost one', async () => {
  const clock = new TestClock()
  let answer
  const driver = stub(([name]) => (name === RELEASE && !answer ? new Promise((end) => (answer = end)) : undefined))
  const rlock = new RLockClient(driver, { clock })
  const lock = rlock.lock('k', { owner: 'alice', lease: 3000 })
  const [hold, inner] = [await lock.acquire(), await lock.acquire()]
  clock.ahead += 3000
  const again = lock.acquire()
  await until(() => answer, 'the RELEASE')
  assert.deepEqual(driver.sent, [ACQUIRE, RELEASE])
  answer(1)
  const next = await again
  assert.deepEqual([await inner.release(), await hold.release(), hold.held, next.held], [false, false, false, true])
  assert.equal(await next.release(), true)
  assert.deepEqual(driver.sent, [ACQUIRE, RELEASE, ACQUIRE, RELEASE])
  await rlock.close()
})

test('each request of a named owner has a higher id, and is cancelled by it', async () => {
  const commands = []
  const driver = stub(([name, ...words]) => {
    commands.push([name, option(words, 'REQ')])
    throw new Error('READONLY You cannot write against a read only replica.')
  })
  const rlock = new RLockClient(driver)
  const lock = rlock.lock('k', { owner: 'alice' })
  const stops = [1, 2, 3].map(() => new AbortController())
  const waits = stops.map(({ signal }) => lock.acquire({ signal }))
  for (const [n, wait] of waits.entries()) {
    await until(() => commands.at(-1)?.[0] === ACQUIRE, 'the request')
    stops[n].abort(new Error('enough'))
    await assert.rejects(wait, /enough/)
    await until(() => commands.at(-1)?.[0] === CANCEL, 'its end')
  }
  driver.send = async () => 1
  await rlock.close()
  const idsOf = (which) => [...new Set(commands.filter(([name]) => name === which).map(([, id]) => id))]
  const ids = idsOf(ACQUIRE)
  assert.equal(ids.length, 3)
  assert.deepEqual(ids, ids.toSorted())
  assert.deepEqual(idsOf(CANCEL), ids)
})

test('only where requests of one owner can meet on the server has a RELEASE a number', async () => {
  const driver = stub()
  const rlock = new RLockClient(driver)
  for (const [lock, isNumbered] of [
    [rlock.lock('k'), false],
    [rlock.lock('k', { owner: 'alice' }), true],
    [rlock.semaphore('s', { permits: 2 }), true],
  ]) {
    await (await lock.acquire()).release()
    const [asked, released] = driver.commands.slice(-2)
    assert.equal(released.includes('REQ'), isNumbered)
    if (isNumbered) assert.ok(option(released, 'REQ') > option(asked, 'REQ'))
  }
  await rlock.close()
})

test('a RELEASE that is STALE has ended: a newer request of the owner has the hold', async () => {
  const warnings = []
  const driver = stub(([name]) => {
    if (name === RELEASE) throw new Error('STALE a newer request of this owner was answered')
  })
  const rlock = new RLockClient(driver, { onWarning: (text) => warnings.push(text) })
  const hold = await rlock.lock('k').acquire()
  assert.equal(await hold.release(), true)
  assert.deepEqual(driver.sent, [ACQUIRE, RELEASE])
  assert.deepEqual(warnings, [])
  await rlock.close()
})

test('an exception of onWarning ends nothing', async () => {
  const driver = stub(([name]) => {
    if (name === RELEASE) throw new Error('NOPERM this user has no permissions')
  })
  let warned = 0
  const onWarning = () => {
    warned++
    throw new Error('boom')
  }
  const rlock = new RLockClient(driver, { onWarning })
  const lock = rlock.lock('k', { owner: 'alice' })
  assert.equal(await (await lock.acquire()).release(), false)
  assert.ok((await lock.acquire({ timeout: 5000 })).held)
  await rlock.close()
  assert.equal(warned, 2)
})

test('NOTOWNER to a repeated RELEASE is a loss once the deadline has passed', async () => {
  for (const [passed, released] of [
    [100, true],
    [2000, false],
  ]) {
    const clock = new TestClock()
    const answers = [new Error('the connection was lost'), new Error('NOTOWNER this owner does not hold the lock')]
    const driver = stub(([name]) => {
      if (name !== RELEASE) return undefined
      if (answers.length === 1) clock.ahead += passed
      throw answers.shift()
    })
    const rlock = new RLockClient(driver, { clock })
    const hold = await rlock.lock('k', { lease: 5000 }).acquire()
    assert.equal(await hold.release(), released)
    await rlock.close()
  }
})

test('in a cluster, where a request may be redirected, its CANCEL is sent after it has ended', async () => {
  const requests = []
  const driver = stub(([name]) => (name === ACQUIRE ? new Promise((end) => requests.push(end)) : 0), { cluster: true })
  const rlock = new RLockClient(driver, { commandTimeout: 50 })
  await assert.rejects(rlock.lock('k').tryAcquire(), Unavailable)
  await sleep(50)
  assert.deepEqual(
    driver.sent,
    requests.map(() => ACQUIRE),
  )
  for (const end of requests) end([7, 2000])
  await until(() => driver.sent.at(-1) === CANCEL, 'the CANCEL')
  await rlock.close()
})

test('ioredis sends only redirected requests again, which cannot be granted late', async () => {
  for (const [error, isRedirected] of [
    ['MOVED 7629 127.0.0.1:7000', true],
    ['ASK 7629 127.0.0.1:7000', true],
    ['CLUSTERDOWN The cluster is down', false],
    ['TRYAGAIN Multiple keys request during rehashing of slot', false],
    ['Connection is closed.', false],
  ]) {
    const call = async () => Promise.reject(new Error(error))
    const node = { call, options: { host: 'a', port: 1 } }
    const slots = Array(16384).fill(['a:1'])
    const client = { isCluster: true, options: {}, slots, nodes: () => [node], call: async () => 'redirected' }
    const answer = await new IoredisDriver(client)
      .send('k', ['RLOCK.ACQUIRE', 'k', 'a'])
      .catch(({ message }) => message)
    assert.equal(answer, isRedirected ? 'redirected' : error)
  }
})

test('a wait leaves nothing in memory', async () => {
  setFlagsFromString('--expose-gc')
  const gc = runInNewContext('gc')
  const rlock = new RLockClient({ ...stub(), send: async (_, [name]) => (name === ACQUIRE ? [7, 2000] : 1) })
  const used = async (waits) => {
    for (let n = 0; n < waits; n++) await (await rlock.lock('k').acquire()).release()
    await sleep(10)
    gc()
    return process.memoryUsage().heapUsed
  }
  const before = await used(10_000)
  const bytes = ((await used(30_000)) - before) / 30_000
  assert.ok(bytes < 100, `${bytes} bytes for each wait`)
  await rlock.close()
})

test('a leader that is stopped before it begins asks nothing; one stopped at its election leaves nothing', async () => {
  const driver = stub()
  const rlock = new RLockClient(driver)
  const stop = new AbortController()
  stop.signal.removeEventListener = () => stop.abort(new Error('stopped'))
  let aborted
  const leads = () => rlock.leader('k', (_, signal) => void (aborted = signal.aborted), { signal: stop.signal })
  await assert.rejects(leads(), /stopped/)
  assert.equal(aborted, true)
  assert.deepEqual(driver.sent, [ACQUIRE, RELEASE])
  await assert.rejects(leads(), /stopped/)
  assert.equal(driver.sent.length, 2)
  await rlock.close()
})

test('a wait whose node is unknown makes the library look for it, and asks again', async () => {
  let node
  const waits = ['WAITING']
  const driver = stub(
    ([name]) => {
      node = name === 'RLOCK.PTTL' ? 'a' : undefined
      return name === ACQUIRE ? waits.pop() : 1
    },
    {
      cluster: true,
      node: () => {
        if (!node) throw new Error('the slots of the cluster are not known yet')
        return node
      },
    },
  )
  const rlock = new RLockClient(driver)
  assert.ok((await rlock.lock('k').acquire({ timeout: 5000 })).held)
  const once = ['RLOCK.PTTL', ACQUIRE]
  assert.deepEqual(driver.sent, [...once, ...once])
  await rlock.close()
})

/** The exit status of a program that imports the package; 'running' if it does not end. */
async function run(program, env) {
  const cwd = fileURLToPath(new URL('..', import.meta.url))
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], { cwd, env, stdio: 'inherit' })
  const [status] = await Promise.race([once(child, 'exit'), sleep(20_000, ['running'], { ref: false })])
  child.kill('SIGKILL')
  return status
}

test('the program of the README ends', async (t) => {
  const server = await startServer()
  t.after(() => server.stop())
  const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8')
  const program = /```js\n(.*?)```/s.exec(readme)[1].replace('new Redis()', `new Redis(${server.port})`)
  const own = `
    const url = 'data:text/plain,order'
    let saved
    const save = async (_, { fencingToken }) => (saved = fencingToken)
    process.on('exit', () => { if (!saved) process.exitCode = 1 })`
  assert.equal(await run(`${own}\n${program}`), 0)
})

test('a private CA is trusted that Node trusts, or the client of the application', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'rlock-tls-'))
  t.after(() => rmSync(folder, { recursive: true }))
  const [ca, key] = ['ca.pem', 'key.pem'].map((name) => join(folder, name))
  const names = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1']
  execFileSync('openssl', ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', ...names, '-keyout', key, '-out', ca], {
    stdio: 'ignore',
  })
  const port = String(await freePort())
  const tls = ['--tls-port', port, '--tls-cert-file', ca, '--tls-key-file', key, '--tls-auth-clients', 'no']
  const server = await startServer({ args: [...tls, '--tls-ca-cert-file', ca] })
  t.after(() => server.stop())
  const url = `rediss://127.0.0.1:${port}`
  const program = (client) => `
    import { readFileSync } from 'node:fs'
    import { Redis } from 'ioredis'
    import { createClient } from 'redis'
    import { RLockClient } from 'rlock-redis'
    const ca = readFileSync(${JSON.stringify(ca)})
    const client = ${client}
    client.on('error', (error) => {
      console.error(error.message)
      process.exit(1)
    })
    await client.connect?.()
    const lock = new RLockClient(client).lock('k')
    const hold = await lock.acquire({ timeout: 15_000 })
    const waits = lock.acquire({ timeout: 15_000 })
    setTimeout(() => hold.release(), 300)
    await (await waits).release()
    process.exit()`
  const ways = [
    [`new Redis('${url}', { lazyConnect: true })`, 1],
    [`createClient({ url: '${url}' })`, 1],
    [`new Redis('${url}', { lazyConnect: true })`, 0, { NODE_EXTRA_CA_CERTS: ca }],
    [`createClient({ url: '${url}' })`, 0, { NODE_EXTRA_CA_CERTS: ca }],
    [`new Redis('${url}', { lazyConnect: true, tls: { ca } })`, 0],
    [`createClient({ url: '${url}', socket: { tls: true, ca } })`, 0],
  ]
  for (const [client, status, env] of ways) {
    assert.equal(await run(program(client), { ...process.env, ...env }), status, client)
  }
})

test('an idle client does not keep the process alive, a hold does until it is lost', async () => {
  const server = await startServer()
  const script = (library) => `
    import { ${library} } from './test/run-idle.mjs'
    await ${library}(${server.port})`
  for (const library of ['ioredis', 'nodeRedis']) {
    assert.equal(await run(script(library)), 0)
  }
  await server.stop()
})
