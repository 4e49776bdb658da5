// What needs no real server, or a process of its own.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { test } from 'node:test'

import { ModuleTooOld } from '../dist/esm/index.js'
import { RLockClient, sleep, startServer } from './support.mjs'

test('an old module that answers a wait with 0 is told apart', async () => {
  const driver = {
    cluster: false,
    keyPrefix: '',
    send: async (_, [name]) => (name === 'RLOCK.ACQUIRE' ? '0' : ''),
    node: () => '',
    subscriber: async () => ({
      subscribe: async () => {},
      unsubscribe: async () => {},
      ping: async () => {},
      close() {},
    }),
    watch: () => () => {},
  }
  const rlock = new RLockClient(driver)
  await assert.rejects(rlock.lock('k').acquire(), ModuleTooOld)
  await rlock.close()
})

test('the lease is capped to the longest one of the server', async () => {
  const commands = []
  const driver = {
    cluster: false,
    keyPrefix: '',
    send: async (_, words) => {
      commands.push(words.join(' '))
      return words[0] === 'INFO' ? 'rlock_max_lease_ms:5000\r\n' : 7
    },
    node: () => '',
    subscriber: async () => ({}),
    watch: () => () => {},
  }
  const rlock = new RLockClient(driver)
  const hold = await rlock.lock('k').tryAcquire()
  assert.match(commands[1], / PX 5000 /)
  assert.ok(hold.remaining < 5000)
  await rlock.close()
  assert.equal(commands.filter((command) => command.startsWith('INFO')).length, 1)
})

test('an idle client does not keep the process alive, a hold does until it is lost', async () => {
  const server = await startServer()
  const script = (library) => `
    import { ${library} } from './test/run-idle.mjs'
    await ${library}(${server.port})`
  for (const library of ['ioredis', 'nodeRedis']) {
    const child = spawn(process.execPath, ['--input-type=module', '-e', script(library)], { stdio: 'inherit' })
    const [status] = await Promise.race([once(child, 'exit'), sleep(10_000, ['still running'])])
    child.kill('SIGKILL')
    assert.equal(status, 0)
  }
  await server.stop()
})
