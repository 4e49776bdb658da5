// What each kind of lock does when nothing fails, with every library.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'

import { Closed, LockLost, LockTimeout, ModuleMissing, Refused } from '../dist/esm/index.js'
import { drivers } from './drivers.mjs'
import { RLockClient, sleep, startServer, TestClock, until } from './support.mjs'

const asyncDispose = Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')

let server
before(async () => (server = await startServer()))
after(() => server.stop())

for (const driver of drivers) {
  describe(driver.name, () => {
    let app, rlock, redis
    before(async () => {
      app = await driver.connect({ port: server.port })
      rlock = new RLockClient(app.client)
      redis = app.send
      await redis('FLUSHALL')
    })
    after(async () => {
      await rlock.close()
      await app.end()
    })
    const isFree = async (key) => {
      await until(async () => Number(await redis('RLOCK.PTTL', key)) === -2, `${key} to be free`, 3000)
      await until(async () => (await redis('RLOCK.WAITERS', key)).length === 0, `no waiters of ${key}`, 3000)
    }

    const kinds = {
      mutex: (options) => rlock.lock('k', options),
      'fair lock': (options) => rlock.fairLock('f', options),
      'write lock': (options) => rlock.writeLock('w', options),
      'multi lock': (options) => rlock.multiLock(['m1', 'm2', 'm3'], options),
      semaphore: (options) => rlock.semaphore('s', options),
    }
    for (const [name, make] of Object.entries(kinds)) {
      test(`${name}: one holds, the next waits, tokens rise`, async () => {
        if (name === 'semaphore') assert.equal(await rlock.semaphore('s').init(1), true)
        const lock = make()
        const first = await lock.acquire()
        assert.ok(first.held)
        assert.equal(typeof first.token, 'number')
        assert.equal(first.tokens.length, lock.keys.length)
        assert.equal(await lock.tryAcquire(), null)
        await assert.rejects(lock.acquire({ timeout: 50 }), LockTimeout)
        await assert.rejects(lock.acquire({ timeout: 0 }), LockTimeout)
        const waits = lock.acquire({ timeout: 10_000 })
        await until(async () => (await redis('RLOCK.WAITERS', lock.keys[0])).length === 1)
        assert.equal(await first.release(), true)
        assert.equal(first.held, false)
        assert.equal(await first.release(), true)
        const second = await waits
        assert.ok(second.token > first.token)
        await until(() => second.remaining > 25_000, 'the claim', 5000)
        assert.equal(await second.release(), true)
        for (const key of lock.keys) await isFree(key)
      })
    }

    test('readers hold together and keep a writer out', async () => {
      const readers = [await rlock.readLock('rw').acquire(), await rlock.readLock('rw').acquire()]
      assert.equal(await rlock.writeLock('rw').tryAcquire(), null)
      const writer = rlock.writeLock('rw').acquire()
      await until(async () => (await redis('RLOCK.WAITERS', 'rw')).length === 1)
      for (const reader of readers) await reader.release()
      await (await writer).release()
      await isFree('rw')
    })

    test('a named owner reads and writes: its requests take turns, its holds do not exclude each other', async () => {
      const [read, write] = [rlock.readLock('updown', { owner: 'gina' }), rlock.writeLock('updown', { owner: 'gina' })]
      const other = await rlock.writeLock('updown').acquire()
      const waits = [read.acquire(), write.acquire({ timeout: 10_000 }), read.acquire()]
      await until(async () => (await redis('RLOCK.WAITERS', 'updown')).length === 1)
      await other.release()
      const [reader, writer, again] = await Promise.all(waits)
      assert.equal(reader.token, again.token)
      assert.ok(writer.held && writer.token > reader.token)
      assert.equal(await writer.release(), true)
      assert.equal(await again.release(), true)
      assert.ok(reader.held)
      assert.equal(await reader.release(), true)
      await isFree('updown')
    })

    test('the loss of one of several keys frees the others', async () => {
      for (const tells of [(hold) => hold.release(), (hold) => until(() => hold.signal.aborted)]) {
        // The session makes the renewal early, not the lease short.
        const hold = await rlock.multiLock(['l1', 'l2', 'l3'], { session: 600 }).acquire()
        await redis('RLOCK.FORCERELEASE', 'l2')
        await tells(hold)
        for (const key of hold.keys) await isFree(key)
        assert.equal(await hold.release(), false)
      }
    })

    test('the release of a key that was overwritten or deleted reports the loss', async () => {
      const makes = ['semaphore', 'lock', 'fairLock', 'readLock', 'writeLock'].map((make) => () => rlock[make]('over'))
      makes.push(() => rlock.multiLock(['first', 'over']))
      for (const deed of [
        ['SET', 'over', 'text'],
        ['DEL', 'over'],
      ]) {
        for (const lock of makes.map((make) => make())) {
          if (lock.init) await lock.init(1)
          const hold = await lock.acquire({ timeout: 5000 })
          await redis(...deed)
          await assert.rejects(hold[asyncDispose](), LockLost)
          assert.equal(await hold.release(), false)
          await redis('DEL', 'over')
        }
      }
      await isFree('first')
    })

    test('a semaphore takes and gives back several permits; without init it is refused', async () => {
      await assert.rejects(rlock.semaphore('none').acquire(), (error) => {
        return error instanceof Refused && error.code === 'NOSEMAPHORE'
      })
      const semaphore = rlock.semaphore('permits', { permits: 2 })
      assert.equal(await semaphore.init(3, { idle: 60_000 }), true)
      assert.equal(await semaphore.init(3), false)
      const two = await semaphore.acquire()
      assert.equal(await semaphore.tryAcquire(), null)
      const one = await semaphore.tryAcquire({ permits: 1 })
      await two.release()
      await (await semaphore.tryAcquire()).release()
      await one.release()
      await isFree('permits')
    })

    test('a named owner re-enters, which the server does not see; a fresh one does not', async () => {
      const lock = rlock.lock('re', { owner: 'alice' })
      const outer = await lock.acquire()
      const inner = await lock.acquire()
      assert.equal(inner.token, outer.token)
      assert.equal(Number(await redis('RLOCK.HOLDS', 're', 'alice')), 1)
      assert.equal(await rlock.lock('re').tryAcquire(), null)
      assert.equal(await inner.release(), true)
      assert.equal(await inner.release(), true)
      assert.equal(outer.held, true)
      await assert.rejects(rlock.multiLock(['re', 're2'], { owner: 'alice' }).acquire(), TypeError)
      const twice = await lock.acquire()
      await assert.rejects(outer.releaseAndKeep(10), TypeError)
      await twice.release()
      assert.equal(await outer.release(), true)
      await isFree('re')
    })

    test('a re-entry that begins before the release shares the hold', async () => {
      const lock = rlock.lock('meet', { owner: 'frank' })
      const outer = await lock.acquire()
      const [inner, released] = await Promise.all([lock.acquire(), outer.release()])
      assert.equal(released, true)
      assert.ok(inner.held)
      assert.equal(inner.token, outer.token)
      assert.equal(await inner.release(), true)
      await isFree('meet')
    })

    test('a named owner takes over a hold that it has left behind', async () => {
      await redis('RLOCK.ACQUIRE', 'left', 'erin', 'PX', '60000', 'REQ', '1')
      const hold = await rlock.lock('left', { owner: 'erin' }).acquire()
      assert.equal(await hold.release(), true)
      await isFree('left')
    })

    test('a release leaves the hold to a newer request of the owner, by another client', async () => {
      const own = new RLockClient(app.client)
      const [older, newer] = [rlock, own].map((of) => of.lock('newer', { owner: 'hugo' }))
      const hold = await older.acquire()
      const shared = await newer.acquire()
      assert.equal(await hold.release(), true)
      assert.equal(Number(await redis('RLOCK.HOLDS', 'newer', 'hugo')), 1)
      assert.equal(await shared.release(), true)
      await isFree('newer')
      await own.close()
    })

    test('concurrent requests of one named owner do not meet on the server', async () => {
      const lock = rlock.lock('same', { owner: 'bob' })
      const holds = await Promise.all([lock.acquire(), lock.acquire({ timeout: 5000 }), lock.tryAcquire()])
      assert.deepEqual(new Set(holds.map((hold) => hold.token)).size, 1)
      const released = Promise.all(holds.map((hold) => hold.release()))
      const next = await lock.acquire()
      assert.deepEqual(await released, [true, true, true])
      assert.ok(next.token > holds[0].token)
      assert.equal(Number(await redis('RLOCK.HOLDS', 'same', 'bob')), 1)
      await next.release()
      await isFree('same')
    })

    test('an owner that has lost its hold acquires again; the lost one stays lost', async () => {
      const hold = await rlock.lock('gone', { owner: 'carol', fixedLease: 40 }).acquire()
      await until(() => hold.signal.aborted)
      const next = await rlock.lock('gone', { owner: 'carol' }).acquire()
      assert.ok(next.token > hold.token)
      assert.equal(await hold.release(), false)
      assert.ok(next.held)
      assert.equal(await next.release(), true)
      await isFree('gone')
    })

    test('using returns what the work returns, and throws what it throws, and otherwise the loss', async () => {
      const lock = rlock.lock('u')
      assert.equal(await lock.using((hold) => hold.token > 0), true)
      const lose = () => redis('RLOCK.FORCERELEASE', 'u')
      await assert.rejects(
        lock.using(async () => (await lose(), 'done')),
        LockLost,
      )
      const boom = new Error('boom')
      await assert.rejects(
        lock.using(async () => {
          await lose()
          throw boom
        }),
        (error) => error === boom,
      )
      await isFree('u')
      const own = new RLockClient(app.client)
      await assert.rejects(
        own.lock('u').using(() => own.close()),
        Closed,
      )
      await isFree('u')
    })

    test('a loss that the work has slept through comes first, also for an inner scope', async () => {
      const clock = new TestClock()
      const own = new RLockClient(app.client, { clock })
      const lock = own.lock('asleep', { owner: 'olga' })
      const sleeps = () => void (clock.ahead += 60_000)
      await assert.rejects(lock.using(sleeps), LockLost)
      await assert.rejects(
        lock.using(() => lock.using(sleeps)),
        LockLost,
      )
      const [outer, inner] = [await lock.acquire(), await lock.acquire()]
      sleeps()
      await assert.rejects(inner[asyncDispose](), LockLost)
      await assert.rejects(outer[asyncDispose](), LockLost)
      await own.close()
      await isFree('asleep')
    })

    test('the scope of a hold that was lost ends with LockLost, otherwise quietly', async () => {
      const fine = await rlock.lock('d').acquire()
      await fine[asyncDispose]()
      await isFree('d')
      const lost = await rlock.lock('d').acquire()
      await redis('RLOCK.FORCERELEASE', 'd')
      await assert.rejects(lost[asyncDispose](), LockLost)
    })

    test('releaseAndKeep keeps the lock closed, of mutexes and fair locks only', async () => {
      const hold = await rlock.fairLock('keep').acquire()
      assert.equal(await hold.releaseAndKeep(150), true)
      assert.equal(await hold.release(), true)
      assert.equal(await rlock.fairLock('keep').tryAcquire(), null)
      await (await rlock.fairLock('keep').acquire({ timeout: 5000 })).release()
      const reader = await rlock.readLock('keep-r').acquire()
      await assert.rejects(reader.releaseAndKeep(10), TypeError)
      await reader.release()
    })

    test('the options reach the server: note, owner, lease, session, grace', async () => {
      const options = { note: 'build 7', owner: 'dave', lease: 20_000, session: 500 }
      const hold = await rlock.fairLock('o', { ...options, grace: 0 }).acquire({ timeout: 1000 })
      const info = JSON.stringify(await redis('RLOCK.INFO', 'o'))
      assert.match(info, /build 7/)
      assert.match(info, /dave/)
      assert.ok(Number(await redis('RLOCK.PTTL', 'o')) <= 20_000)
      await hold.release()
      await assert.rejects(rlock.lock('o', { lease: 0 }).acquire(), RangeError)
      await assert.rejects(rlock.lock('o').acquire({ timeout: -1 }), RangeError)
    })

    test('the leader leads until it is stopped; after a loss it is elected again', async () => {
      const stop = new AbortController()
      const terms = []
      const leads = rlock.leader(
        'lead',
        async (hold, signal) => {
          terms.push(hold.token)
          await new Promise((resolve) => signal.addEventListener('abort', resolve))
        },
        { signal: stop.signal, lease: 300 },
      )
      await until(() => terms.length === 1)
      await redis('RLOCK.FORCERELEASE', 'lead')
      await until(() => terms.length === 2)
      stop.abort(new Error('stopped'))
      await assert.rejects(leads, /stopped/)
      await isFree('lead')
      await rlock.leader('lead', () => {})
    })

    test('a cancelled wait rejects with the reason and leaves nothing', async () => {
      const lock = rlock.lock('cancel')
      const hold = await lock.acquire()
      const stop = new AbortController()
      const waits = lock.acquire({ signal: stop.signal })
      await until(async () => (await redis('RLOCK.WAITERS', 'cancel')).length === 1)
      stop.abort(new Error('enough'))
      await assert.rejects(waits, /enough/)
      await assert.rejects(lock.acquire({ signal: AbortSignal.abort(new Error('before')) }), /before/)
      await until(async () => (await redis('RLOCK.WAITERS', 'cancel')).length === 0)
      await hold.release()
      await isFree('cancel')
    })

    test('close ends waits, releases holds and closes the subscriber only', async () => {
      const own = new RLockClient(app.client)
      const hold = await own.lock('close').acquire()
      const waits = own.lock('close').acquire()
      await until(async () => (await redis('RLOCK.WAITERS', 'close')).length === 1)
      const connections = async () =>
        (await redis('CLIENT', 'LIST')).split('\n').filter((line) => /sub=1/.test(line)).length
      const subscribers = await connections()
      await Promise.all([own.close(), assert.rejects(waits, Closed)])
      assert.ok(hold.signal.reason instanceof Closed)
      assert.equal(hold.held, false)
      assert.equal(await hold.release(), true)
      await assert.rejects(own.lock('close').acquire(), Closed)
      await isFree('close')
      await until(async () => (await connections()) === subscribers - 1)
    })

    test('the key prefix of the client is honoured', async (t) => {
      if (driver.name.startsWith('node-redis 5')) return t.skip('the library has none')
      const prefixed = await driver.connect({ port: server.port, keyPrefix: 'app:' })
      const own = new RLockClient(prefixed.client)
      const hold = await own.multiLock(['p1', 'p2']).acquire({ timeout: 1000 })
      assert.deepEqual(hold.keys, ['p1', 'p2'])
      assert.ok(Number(await redis('RLOCK.PTTL', 'app:p1')) > 0)
      const waits = own.lock('p1').acquire()
      await until(async () => (await redis('RLOCK.WAITERS', 'app:p1')).length === 1)
      await hold.release()
      await (await waits).release()
      await isFree('app:p1')
      await own.close()
      await prefixed.end()
    })

    test('database, user and password are those of the client, also of the subscriber', async () => {
      await redis('ACL', 'SETUSER', 'worker', 'on', '>secret', '~*', '&*', '+@all')
      const restricted = await driver.connect({ port: server.port, username: 'worker', password: 'secret', db: 3 })
      await redis('ACL', 'SETUSER', 'default', 'off')
      try {
        const own = new RLockClient(restricted.client)
        const hold = await own.lock('db').acquire()
        const waits = own.lock('db').acquire({ timeout: 10_000 })
        await until(async () => (await restricted.send('RLOCK.WAITERS', 'db')).length === 1)
        await hold.release()
        await (await waits).release()
        assert.equal(Number(await restricted.send('RLOCK.PTTL', 'db')), -2)
        await own.close()
      } finally {
        await restricted.send('ACL', 'SETUSER', 'default', 'on')
        await restricted.end()
      }
    })

    test('replies as strings, buffers or numbers are understood', async () => {
      const variants = driver.isIoredis
        ? [{ stringNumbers: true }, { enableAutoPipelining: true }]
        : [{ commandOptions: { typeMapping: { 58: String, 43: Buffer, 36: Buffer } } }]
      for (const variant of variants) {
        const other = await driver.connect({ port: server.port, ...variant })
        const own = new RLockClient(other.client)
        const lock = own.multiLock(['n1', 'n2'])
        const hold = await lock.acquire()
        assert.deepEqual(
          hold.tokens.map((token) => typeof token),
          ['number', 'number'],
        )
        // Waits, and is not mistaken for granted.
        const waits = lock.acquire({ timeout: 10_000 })
        await until(async () => (await redis('RLOCK.WAITERS', 'n1')).length === 1)
        await hold.release()
        await (await waits).release()
        assert.equal(await own.semaphore('n-s').init(1), true)
        await redis('DEL', 'n-s')
        await own.close()
        await other.end()
      }
    })

    test('loss is told by the clock: a step of either clock ends a belief', async () => {
      for (const step of ['ahead', 'wallAhead']) {
        const clock = new TestClock()
        const own = new RLockClient(app.client, { clock })
        const hold = await own.lock('clock', { lease: 30_000 }).acquire()
        clock[step] = 40_000
        assert.equal(hold.held, false)
        await until(() => hold.signal.aborted, 'the loss to be told', 2000)
        assert.ok(hold.signal.reason instanceof LockLost)
        await redis('RLOCK.FORCERELEASE', 'clock')
        await own.close()
      }
    })

    test('a fixed lease is not renewed, and its end is told', async () => {
      const hold = await rlock.lock('fixed', { fixedLease: 200 }).acquire()
      await until(() => hold.signal.aborted, 'the end')
      assert.equal(await hold.release(), false)
      const renewed = await rlock.lock('fixed', { lease: 1000 }).acquire()
      await sleep(1500)
      assert.ok(renewed.held)
      await renewed.release()
    })
  })
}

test('a server without the module is told apart', async () => {
  const bare = await startServer({ module: false })
  for (const driver of drivers) {
    const app = await driver.connect({ port: bare.port })
    const rlock = new RLockClient(app.client)
    await assert.rejects(rlock.lock('k').tryAcquire(), (error) => {
      return error instanceof ModuleMissing && error.code === 'ERR' && /unknown command/.test(error.message)
    })
    await assert.rejects(rlock.lock('k').acquire(), ModuleMissing)
    await rlock.close()
    await app.end()
  }
  await bare.stop()
})
