// Failures of connections, servers and processes.
import assert from 'node:assert/strict'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'

import { Closed, LockLost, LockTimeout, Refused, Unavailable } from '../dist/esm/index.js'
import { RLockClient, sleep, startProxy, startServer, TestClock, until } from './support.mjs'

export function faults(driver) {
  describe(driver.name, () => {
    let server, direct, redis
    before(async () => {
      server = await startServer()
      direct = await driver.connect({ port: server.port })
      redis = direct.send
    })
    after(async () => {
      await direct.end()
      await server.stop()
    })
    const isFree = async (key) => {
      await until(async () => Number(await redis('RLOCK.PTTL', key)) === -2, `${key} to be free`, 6000)
      await until(async () => (await redis('RLOCK.WAITERS', key)).length === 0, `no waiters of ${key}`, 6000)
    }
    const waits = (key, count = 1) => until(async () => (await redis('RLOCK.WAITERS', key)).length === count, 'waiters')

    let proxy, app, rlock, warnings, clock
    beforeEach(async () => {
      await redis('FLUSHALL')
      proxy = await startProxy(server.port)
      app = await driver.connect({ port: proxy.port })
      clock = new TestClock()
      const own = (warnings = [])
      rlock = new RLockClient(app.client, { commandTimeout: 1000, clock, onWarning: (text) => own.push(text) })
    })
    afterEach(async () => {
      await rlock.close()
      await app.end()
      await proxy.stop()
    })

    test('a stalled connection: the loss is told by the deadline, without any answer', async () => {
      const lease = 900
      const began = performance.now()
      const hold = await rlock.lock('stall', { lease }).acquire()
      proxy.stalled = true
      await until(() => hold.signal.aborted, 'the loss to be told', 3000)
      const told = performance.now() - began
      assert.ok(hold.signal.reason instanceof LockLost)
      assert.equal(hold.held, false)
      // The last answered renewal is at most a third of a lease after the beginning.
      assert.ok(told < lease * 1.34 + 250, `told after ${told} ms`)
      assert.equal(await hold.release(), false)
    })

    test('errors of the server do not end a renewal: READONLY, LOADING and others', async () => {
      const hold = await rlock.lock('readonly', { lease: 1200 }).acquire()
      await redis('REPLICAOF', '127.0.0.1', '1')
      await sleep(600)
      assert.ok(hold.held)
      await redis('REPLICAOF', 'NO', 'ONE')
      await sleep(1200)
      assert.ok(hold.held, 'renewed after the server takes writes again')
      assert.equal(await hold.release(), true)
      await isFree('readonly')
    })

    test('errors that pass do not end a wait, and are told by a try', async () => {
      await redis('REPLICAOF', '127.0.0.1', '1')
      const waiting = rlock.lock('passes').acquire({ timeout: 10_000 })
      await assert.rejects(rlock.lock('passes').tryAcquire(), (error) => {
        return error instanceof Unavailable && error.code === 'READONLY'
      })
      await assert.rejects(rlock.lock('passes').acquire({ timeout: 100 }), (error) => {
        return error instanceof LockTimeout && error.cause.code === 'READONLY'
      })
      await redis('REPLICAOF', 'NO', 'ONE')
      await (await waiting).release()
      await isFree('passes')
    })

    const outages = {
      silent: () => (proxy.stalled = true),
      unreachable: () => {
        proxy.refusing = true
        proxy.cut()
      },
    }
    for (const [name, begin] of Object.entries(outages)) {
      test(`a wait that ends while the server is ${name} carries the cause, before and after it was asked`, async () => {
        const taken = rlock.lock('outage')
        await taken.acquire()
        const ends = (lock, timeout) =>
          assert.rejects(
            lock.acquire({ timeout }),
            (error) => error instanceof LockTimeout && error.cause instanceof Unavailable,
          )
        const asked = ends(taken, 2000)
        await waits('outage')
        begin()
        await Promise.all([asked, ends(rlock.fairLock('fair'), 700), ends(rlock.multiLock(['outage', 'other']), 700)])
        proxy.stalled = proxy.refusing = false
      })
    }

    test('a wait that ends after an outage has no cause; its first failure is a warning', async () => {
      await rlock.lock('over').acquire()
      await redis('REPLICAOF', '127.0.0.1', '1')
      const waiting = rlock.lock('over').acquire({ timeout: 3000 })
      await until(() => warnings.length === 1, 'the warning')
      await sleep(300)
      await redis('REPLICAOF', 'NO', 'ONE')
      await assert.rejects(waiting, (error) => error instanceof LockTimeout && error.cause === undefined)
      assert.deepEqual(warnings, ['retrying to acquire over'])
    })

    test('a wait for the turn of its busy owner is no outage', async () => {
      await redis('RLOCK.ACQUIRE', 'busy', 'driver', 'PX', '60000')
      const busy = rlock.lock('busy', { owner: 'alice' })
      const first = assert.rejects(busy.acquire(), Closed)
      await waits('busy')
      await assert.rejects(
        busy.acquire({ timeout: 100 }),
        (error) => error instanceof LockTimeout && error.cause === undefined,
      )
      await Promise.all([first, rlock.close()])
    })

    test('a quarantine tells how long it lasts; a wrong type is refused', async () => {
      await redis('SET', 'text', 'x')
      await assert.rejects(
        rlock.lock('text').acquire(),
        (error) => error instanceof Refused && error.code === 'WRONGTYPE',
      )
      assert.equal(new Unavailable('QUARANTINE … 1234 ms left', 'QUARANTINE').retryAfter, 1234)
      assert.equal(new Unavailable('x').retryAfter, undefined)
    })

    test('60 locks stay held at a round trip of 200 ms', async () => {
      const locks = Array.from({ length: 60 }, (_, n) => rlock.lock(`many:${n}`, { lease: 1500 }))
      const holds = await Promise.all(locks.map((lock) => lock.acquire()))
      proxy.delay = 100
      await sleep(3200)
      assert.equal(holds.filter((hold) => hold.held).length, 60)
      proxy.delay = 0
      assert.deepEqual(new Set(await Promise.all(holds.map((hold) => hold.release()))), new Set([true]))
    })

    test('a cut connection: holds are renewed and released, waits are granted', async () => {
      const hold = await rlock.lock('cut', { lease: 1500 }).acquire()
      const waiting = rlock.lock('cut').acquire({ timeout: 20_000 })
      await waits('cut')
      for (let n = 0; n < 3; n++) {
        proxy.cut()
        await sleep(150)
      }
      await waits('cut')
      await sleep(1000)
      assert.ok(hold.held)
      assert.equal(await hold.release(), true)
      const next = await waiting
      assert.ok(next.held)
      await next.release()
      await isFree('cut')
    })

    test('cut at any moment of a hand-over, one hold results, and none stays', async () => {
      for (let n = 0; n < 12; n++) {
        await redis('RLOCK.ACQUIRE', 'handover', 'driver', 'PX', '60000')
        const waiting = rlock.lock('handover').acquire({ timeout: 20_000 })
        if (n % 3) await waits('handover')
        proxy.cut()
        if (n % 2) await sleep(n)
        await redis('RLOCK.RELEASE', 'handover', 'driver')
        const hold = await waiting
        assert.equal(Number(await redis('RLOCK.HOLDS', 'handover', hold.owner)), 1)
        assert.equal(Number(await redis('RLOCK.PTTL', 'handover', 'TOKEN', hold.token)) > 0, true)
        assert.equal(await hold.release(), true)
        await isFree('handover')
      }
    })

    test('cancelled at any moment, nothing stays behind', async () => {
      for (let n = 0; n < 25; n++) {
        const stop = new AbortController()
        const busy = n % 2 ? await rlock.lock('any').acquire() : undefined
        proxy.delay = 5
        const outcome = rlock
          .lock('any')
          .acquire({ signal: stop.signal })
          .catch((error) => error)
        setTimeout(() => stop.abort(new Error('enough')), n)
        if (n % 4 === 3) setTimeout(() => busy.release(), n)
        const result = await outcome
        proxy.delay = 0
        if (result instanceof Error) assert.match(result.message, /enough/)
        else assert.equal(await result.release(), true)
        await busy?.release()
        await isFree('any')
      }
    })

    test('cancelled and timed out while the connection is stalled, nothing stays behind', async () => {
      await redis('RLOCK.ACQUIRE', 'stalled', 'driver', 'PX', '60000')
      await (await rlock.lock('warm').acquire()).release()
      proxy.stalled = true
      const began = performance.now()
      const timed = rlock.lock('stalled').acquire({ timeout: 300 })
      const stop = new AbortController()
      const cancelled = rlock.lock('stalled').acquire({ signal: stop.signal })
      setTimeout(() => stop.abort(new Error('enough')), 50)
      await assert.rejects(cancelled, /enough/)
      await assert.rejects(timed, LockTimeout)
      assert.ok(performance.now() - began < 1300)
      await assert.rejects(rlock.lock('stalled').tryAcquire(), Unavailable)
      proxy.stalled = false
      await redis('RLOCK.RELEASE', 'stalled', 'driver')
      await isFree('stalled')
    })

    test('a grant whose claim expired while the process was away is not entered', async () => {
      await redis('RLOCK.ACQUIRE', 'claim', 'driver', 'PX', '60000')
      const waiting = rlock.lock('claim', { lease: 300 }).acquire({ timeout: 20_000 })
      await waits('claim')
      // The message waits in the proxy until the claim is over, and another owner holds.
      proxy.stalled = true
      await redis('RLOCK.RELEASE', 'claim', 'driver')
      await until(async () => await redis('RLOCK.ACQUIRE', 'claim', 'driver', 'PX', '60000'))
      let entered = false
      void waiting.then(() => (entered = true))
      proxy.stalled = false
      await waits('claim')
      assert.equal(entered, false)
      await redis('RLOCK.RELEASE', 'claim', 'driver')
      const hold = await waiting
      assert.ok(hold.held)
      await hold.release()
    })

    test('an answer that took a lease to arrive is not believed', async () => {
      const entered = rlock.lock('late', { lease: 5000 }).acquire()
      await (await entered).release()
      proxy.delay = 150
      const waiting = rlock.lock('late', { lease: 5000 }).acquire({ timeout: 10_000 })
      // Sent; the process sleeps for a lease before it reads the answer.
      await sleep(160)
      clock.ahead += 6000
      await redis('RLOCK.FORCERELEASE', 'late')
      await redis('RLOCK.ACQUIRE', 'late', 'driver', 'PX', '300')
      proxy.delay = 0
      const hold = await waiting.catch((error) => error)
      if (hold instanceof LockTimeout) return
      assert.ok(hold.held)
      assert.equal(Number(await redis('RLOCK.HOLDS', 'late', hold.owner)), 1)
      await hold.release()
    })

    test('a release that does not reach the server is a warning, and the result of the work arrives', async () => {
      const began = performance.now()
      const result = await rlock.lock('unreached', { lease: 2500 }).using(() => {
        proxy.stalled = true
        return 'done'
      })
      assert.equal(result, 'done')
      assert.ok(performance.now() - began < 2200, 'the caller does not wait for the deadline')
      await until(() => warnings.length === 1, 'the warning', 5000)
      assert.match(warnings[0], /unreached/)
    })

    test('a lost reply to a release is no loss', async () => {
      const hold = await rlock.lock('reply').acquire()
      proxy.delay = 60
      const released = hold.release()
      await until(async () => Number(await redis('RLOCK.PTTL', 'reply')) === -2)
      proxy.cut()
      proxy.delay = 0
      assert.equal(await released, true)
      await (await rlock.lock('reply').acquire()).release()
    })

    test('a session ends with the connection, and goes on if a new one is made in time', async () => {
      const fixed = await rlock.lock('fixed', { fixedLease: 20_000, session: 3000 }).acquire()
      const hold = await rlock.lock('session', { lease: 20_000, session: 3000 }).acquire()
      assert.ok(hold.remaining < 3000, 'the server may see the connection close before the client')
      proxy.cut()
      await sleep(3500)
      assert.ok(hold.remaining > 0 && fixed.remaining > 0, 'renewed over the new connection')
      const info = await redis('RLOCK.INFO', 'session')
      assert.match(JSON.stringify(info), /"session"[,:]1/)
      proxy.refusing = true
      proxy.cut()
      await until(() => hold.signal.aborted, 'the end of the session', 5000)
      proxy.refusing = false
    })

    test('a hold that the server has ended is lost at the next renewal', async () => {
      const hold = await rlock.lock('forced', { lease: 600 }).acquire()
      await redis('RLOCK.FORCERELEASE', 'forced')
      await until(() => hold.signal.aborted, 'the loss', 2000)
      assert.ok(hold.signal.reason instanceof LockLost)
      assert.equal(await hold.release(), false)
    })

    test('a message that is lost with the subscription is asked for at once', async () => {
      const hold = await rlock.lock('message').acquire()
      const waiting = rlock.lock('message').acquire({ timeout: 20_000 })
      await waits('message')
      const list = await redis('CLIENT', 'LIST')
      const subscriber = list.split('\n').find((line) => /sub=1/.test(line))
      await redis('CLIENT', 'KILL', 'ID', /id=(\d+)/.exec(subscriber)[1])
      await hold.release()
      const next = await waiting
      await next.release()
      await isFree('message')
    })

    test('leases follow the longest one that the server allows, also if that is lowered', async () => {
      const held = await rlock.lock('longer', { lease: 3000 }).acquire()
      await redis('CONFIG', 'SET', 'rlock.max-lease-ms', '2000')
      try {
        const hold = await rlock.lock('lowered', { lease: 3000 }).acquire()
        await sleep(200) // The claim is answered.
        assert.ok(hold.remaining < 2000)
        await sleep(4000)
        assert.ok(held.held && hold.held)
        assert.deepEqual([await held.release(), await hold.release()], [true, true])
      } finally {
        await redis('CONFIG', 'SET', 'rlock.max-lease-ms', '60000')
      }
    })

    test('a silent server collects no connections of subscribers, and close ends the last one', async () => {
      const own = new RLockClient(app.client, { commandTimeout: 100 })
      await (await own.lock('silent').tryAcquire()).release()
      const before = proxy.connections()
      proxy.stalled = true
      const waiting = assert.rejects(own.lock('silent').acquire(), Closed)
      await sleep(1000)
      const during = proxy.connections()
      await Promise.all([waiting, own.close()])
      assert.ok(during <= before + 2, `${during - before} connections`)
      await until(() => proxy.connections() === before, 'no subscriber')
    })

    test('two clients of one application: a stalled server does not delay the locks of another', async () => {
      const healthy = await driver.connect({ port: server.port })
      const other = new RLockClient(healthy.client)
      const stalled = await rlock.lock('a', { lease: 600 }).acquire()
      const held = await other.lock('b', { lease: 600 }).acquire()
      proxy.stalled = true
      await until(() => stalled.signal.aborted)
      await sleep(900)
      assert.ok(held.held)
      await held.release()
      await other.close()
      await healthy.end()
    })
  })
}
