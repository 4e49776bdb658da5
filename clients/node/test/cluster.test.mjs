// A cluster of three masters.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { after, before, describe, test } from 'node:test'

import { hashTag, slotOf } from '../dist/esm/driver.js'
import { Refused } from '../dist/esm/index.js'
import { drivers } from './drivers.mjs'
import { RLockClient, startCluster, until } from './support.mjs'

let cluster
before(async () => (cluster = await startCluster()))
after(() => cluster.stop())

const cli = (port, ...words) => execFileSync('redis-cli', ['-p', String(port), ...words], { encoding: 'utf8' }).trim()

/** Moves a slot to another master. */
async function moveSlot(slot) {
  const ids = cluster.ports.map((port) => cli(port, 'CLUSTER', 'MYID'))
  const from = await until(() => {
    const owners = cluster.ports.map((port) =>
      cli(port, 'CLUSTER', 'NODES')
        .split('\n')
        .find((line) => /myself/.test(line)),
    )
    const owns = (line) =>
      line
        .split(' ')
        .slice(8)
        .some((range) => {
          const [first, last = first] = range.split('-').map(Number)
          return first <= slot && slot <= last
        })
    const found = owners.findIndex(owns)
    return found >= 0 && { found }
  })
  const [source, target] = [from.found, (from.found + 1) % 3]
  cli(cluster.ports[target], 'CLUSTER', 'SETSLOT', String(slot), 'IMPORTING', ids[source])
  cli(cluster.ports[source], 'CLUSTER', 'SETSLOT', String(slot), 'MIGRATING', ids[target])
  const keys = cli(cluster.ports[source], 'CLUSTER', 'GETKEYSINSLOT', String(slot), '100').split('\n').filter(Boolean)
  if (keys.length > 0)
    cli(cluster.ports[source], 'MIGRATE', '127.0.0.1', String(cluster.ports[target]), '', '0', '5000', 'KEYS', ...keys)
  for (const node of [target, source, 3 - target - source])
    cli(cluster.ports[node], 'CLUSTER', 'SETSLOT', String(slot), 'NODE', ids[target])
}

test('slots are those of the server', () => {
  for (const key of ['a', '{tag}x', 'x{tag}y', '{}x', 'a}b', 'a{b', '{{a}}', 'ключ']) {
    assert.equal(slotOf(key), Number(cli(cluster.ports[0], 'CLUSTER', 'KEYSLOT', key)), key)
  }
  assert.equal(hashTag('x{tag}y'), 'tag')
})

for (const driver of drivers) {
  describe(driver.name, () => {
    let app, rlock
    before(async () => {
      app = await driver.cluster(cluster.ports)
      rlock = new RLockClient(app.client)
    })
    after(async () => {
      await rlock.close()
      await app.end()
    })
    const waits = (key) => until(async () => (await app.send('RLOCK.WAITERS', key)).length === 1, 'the waiter')

    test('waits are granted in every slot, also of keys with odd braces, at the same time', async () => {
      const keys = [...Array.from({ length: 30 }, (_, n) => `key:${n}`), '{}x', 'a}b', 'a{b', '{t}1', '{t}2', '{{a}}']
      await Promise.all(
        keys.map(async (key) => {
          const hold = await rlock.lock(key).acquire()
          const waiting = rlock.lock(key).acquire({ timeout: 20_000 })
          await waits(key)
          assert.equal(await hold.release(), true)
          const next = await waiting
          assert.ok(next.token > hold.token)
          assert.equal(await next.release(), true)
        }),
      )
    })

    test('several keys need a common tag', async () => {
      const lock = rlock.multiLock(['{m}1', '{m}2'])
      const hold = await lock.acquire()
      const waiting = lock.acquire({ timeout: 20_000 })
      await waits('{m}1')
      await hold.release()
      await (await waiting).release()
      await assert.rejects(rlock.multiLock(['m1', 'm2', 'm3']).acquire(), (error) => {
        return error instanceof Refused && error.code === 'CROSSSLOT'
      })
    })

    test('a hold and a wait go on when their slot moves to another node', async () => {
      const key = `moves:${driver.name}`
      const hold = await rlock.lock(key, { lease: 3000 }).acquire()
      const waiting = rlock.lock(key).acquire({ timeout: 30_000 })
      await waits(key)
      await moveSlot(slotOf(key))
      await waits(key)
      assert.ok(hold.held)
      assert.equal(await hold.release(), true)
      const next = await waiting
      assert.ok(next.held)
      assert.equal(await next.release(), true)
    })

    test('a key prefix decides about the slot', async (t) => {
      if (driver.name.startsWith('node-redis 5')) return t.skip('the library has none')
      const options = driver.isIoredis ? { redisOptions: { keyPrefix: '{app}:' } } : { keyPrefix: '{app}:' }
      const prefixed = await driver.cluster(cluster.ports, options)
      const own = new RLockClient(prefixed.client)
      const hold = await own.multiLock(['p1', 'p2']).acquire()
      assert.ok(Number(await app.send('RLOCK.PTTL', '{app}:p1')) > 0)
      const waiting = own.lock('p1').acquire({ timeout: 20_000 })
      await waits('{app}:p1')
      await hold.release()
      await (await waiting).release()
      await own.close()
      await prefixed.end()
    })

    test('no subscription stays for a slot that nobody waits for', async () => {
      await until(() => {
        const channels = cluster.ports.map((port) => cli(port, 'PUBSUB', 'SHARDCHANNELS'))
        return channels.join('') === ''
      })
    })
  })
}
