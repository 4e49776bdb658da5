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

import { ModuleTooOld, Unavailable } from '../dist/esm/index.js'
import { IoredisDriver } from '../dist/esm/ioredis.js'
import { freePort, RLockClient, sleep, startServer, TestClock, until } from './support.mjs'

/** A driver of which `answer` answers the commands but INFO. `sent` has the names of all. */
function stub(answer, { info = '', ...own } = {}) {
  const driver = {
    sent: [],
    cluster: false,
    keyPrefix: '',
    send: async (_, words) => {
      driver.sent.push(words[0])
      return words[0] === 'INFO' ? info : await answer(words)
    },
    node: () => '',
    subscriber: async () => ({
      subscribe: async () => {},
      unsubscribe: async () => {},
      ping: async () => {},
    }),
    watch: () => () => {},
    ...own,
  }
  return driver
}

test('an old module that answers a wait with 0 is told apart', async () => {
  const rlock = new RLockClient(stub(() => '0'))
  await assert.rejects(rlock.lock('k').acquire(), ModuleTooOld)
  await rlock.close()
})

test('the lease is capped to the longest one of the server', async () => {
  let asked
  const driver = stub((words) => ((asked ??= words.join(' ')), 7), { info: 'rlock_max_lease_ms:5000\r\n' })
  const rlock = new RLockClient(driver)
  const hold = await rlock.lock('k').tryAcquire()
  assert.match(asked, / PX 5000 /)
  assert.ok(hold.remaining < 5000)
  await rlock.close()
  assert.equal(driver.sent.filter((name) => name === 'INFO').length, 1)
})

test('a duration out of range is a RangeError that names it, and asks the server nothing', async (t) => {
  const YEAR = 31_536_000_000
  const driver = stub(() => 7)
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

test('a belief follows the last answer, also downwards', async (t) => {
  const clock = new TestClock()
  let left = 5000
  let info = ''
  const driver = stub(([name, key]) => {
    if (key === 'long' && info === '') {
      info = 'rlock_max_lease_ms:4000\r\n'
      throw new Error('ERR the lease of 30000 ms is longer than rlock.max-lease-ms, which is 4000 ms')
    }
    return name === 'RLOCK.RENEW' ? left : 7
  })
  const { send } = driver
  driver.send = async (key, words) => (words[0] === 'INFO' ? info : await send(key, words))
  const rlock = new RLockClient(driver, { clock })
  t.after(() => rlock.close())
  const follows = async (key, limit) => {
    const hold = await rlock.lock(key).acquire()
    await rlock.lock(key === 'limited' ? 'long' : 'short').acquire()
    clock.ahead += 11_000 // The renewal is due.
    await until(() => hold.remaining <= limit, `the answer to ${key}`, 3000)
    assert.ok(hold.held)
  }
  await follows('expires', 5000)
  // The server leaves a lease that it has granted as it is, but grants no such lease again.
  left = 29_000
  await follows('limited', 4000)
})

test('a named owner acquires again after the RELEASE of its lost hold has ended', async () => {
  const clock = new TestClock()
  let answer
  const driver = stub(([name]) => (name === 'RLOCK.RELEASE' ? new Promise((resolve) => (answer ??= resolve)) : 7))
  const rlock = new RLockClient(driver, { clock })
  const lock = rlock.lock('k', { owner: 'alice', lease: 3000 })
  const hold = await lock.acquire()
  clock.ahead += 3000
  assert.equal(await hold.release(), false)
  const next = lock.acquire()
  await until(() => answer, 'the RELEASE')
  assert.deepEqual(driver.sent, ['INFO', 'RLOCK.ACQUIRE', 'RLOCK.RELEASE'])
  answer(1)
  assert.ok((await next).held)
  driver.send = async () => 1
  await rlock.close()
})

test('each request of a named owner has higher ids than the settlements of those before it', async () => {
  const commands = []
  const driver = stub(([name, ...words]) => {
    commands.push([name, Number(words[words.indexOf('REQ') + 1])])
    throw new Error('READONLY You cannot write against a read only replica.')
  })
  const rlock = new RLockClient(driver)
  const lock = rlock.lock('k', { owner: 'alice' })
  const stops = [1, 2, 3].map(() => new AbortController())
  const waits = stops.map(({ signal }) => lock.acquire({ signal }))
  for (const [n, wait] of waits.entries()) {
    await until(() => commands.at(-1)?.[0] === 'RLOCK.ACQUIRE', 'the request')
    stops[n].abort(new Error('enough'))
    await assert.rejects(wait, /enough/)
  }
  driver.send = async () => 1
  await rlock.close()
  const idsOf = (which) => [...new Set(commands.filter(([name]) => name === which).map(([, id]) => id))]
  const ids = idsOf('RLOCK.ACQUIRE')
  assert.equal(ids.length, 3)
  assert.deepEqual(ids, ids.toSorted())
  assert.deepEqual(
    idsOf('RLOCK.RELEASE'),
    ids.map((id) => id + 1),
  )
})

test('a RELEASE that is STALE has ended: a newer request of the owner has the hold', async () => {
  const warnings = []
  const driver = stub(([name]) => {
    if (name === 'RLOCK.RELEASE') throw new Error('STALE a newer request of this owner was answered')
    return 7
  })
  const rlock = new RLockClient(driver, { onWarning: (text) => warnings.push(text) })
  const hold = await rlock.lock('k').acquire()
  assert.equal(await hold.release(), true)
  assert.deepEqual(driver.sent, ['INFO', 'RLOCK.ACQUIRE', 'RLOCK.RELEASE'])
  assert.deepEqual(warnings, [])
  await rlock.close()
})

test('an exception of onWarning ends nothing', async () => {
  const driver = stub(([name]) => {
    if (name === 'RLOCK.RELEASE') throw new Error('NOPERM this user has no permissions')
    return 7
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
    [5000, false],
  ]) {
    const clock = new TestClock()
    const answers = [new Error('the connection was lost'), new Error('NOTOWNER this owner does not hold the lock')]
    const driver = stub(([name]) => {
      if (name !== 'RLOCK.RELEASE') return 7
      if (answers.length === 1) clock.ahead += passed
      throw answers.shift()
    })
    const rlock = new RLockClient(driver, { clock })
    const hold = await rlock.lock('k', { lease: 5000 }).acquire()
    assert.equal(await hold.release(), released)
    await rlock.close()
  }
})

test('in a cluster, where a request may be redirected, its settlement is sent after it has ended', async () => {
  const requests = []
  const driver = stub(([name]) => (name === 'RLOCK.ACQUIRE' ? new Promise((end) => requests.push(end)) : 0), {
    cluster: true,
  })
  const rlock = new RLockClient(driver, { commandTimeout: 50 })
  await assert.rejects(rlock.lock('k').tryAcquire(), Unavailable)
  await sleep(50)
  assert.deepEqual(driver.sent, ['INFO', ...requests.map(() => 'RLOCK.ACQUIRE')])
  for (const end of requests) end(7)
  await until(() => driver.sent.slice(-2).join() === 'RLOCK.CANCEL,RLOCK.RELEASE', 'the settlement')
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
  const rlock = new RLockClient({ ...stub(() => 7), send: async () => 7 })
  const used = async (waits) => {
    for (let n = 0; n < waits; n++) await (await rlock.lock('k').acquire()).release()
    await sleep(10)
    gc()
    return process.memoryUsage().heapUsed
  }
  const before = await used(10_000)
  const bytes = ((await used(10_000)) - before) / 10_000
  assert.ok(bytes < 100, `${bytes} bytes for each wait`)
  await rlock.close()
})

test('a leader that is stopped before it begins asks nothing; one stopped at its election leaves nothing', async () => {
  const driver = stub(() => 7)
  const rlock = new RLockClient(driver)
  const stop = new AbortController()
  stop.signal.removeEventListener = () => stop.abort(new Error('stopped'))
  let aborted
  const leads = () => rlock.leader('k', (_, signal) => void (aborted = signal.aborted), { signal: stop.signal })
  await assert.rejects(leads(), /stopped/)
  assert.equal(aborted, true)
  assert.deepEqual(driver.sent, ['INFO', 'RLOCK.ACQUIRE', 'RLOCK.RELEASE'])
  await assert.rejects(leads(), /stopped/)
  assert.equal(driver.sent.length, 3)
  await rlock.close()
})

test('a wait whose node is unknown makes the library look for it, and asks again', async () => {
  let node
  const waits = ['WAITING']
  const driver = stub(
    ([name]) => {
      node = name === 'RLOCK.PTTL' ? 'a' : undefined
      return name === 'RLOCK.ACQUIRE' ? (waits.pop() ?? 7) : 1
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
  const once = ['RLOCK.PTTL', 'RLOCK.ACQUIRE']
  assert.deepEqual(driver.sent, ['INFO', ...once, ...once])
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
