// Servers, a proxy and small helpers for the tests.
import { spawn, execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import net from 'node:net'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

import { RLockClient } from '../dist/esm/index.js'

const ROOT = fileURLToPath(new URL('../../..', import.meta.url))
const MODULE =
  process.env.RLOCK_MODULE ?? resolve(ROOT, process.env.CARGO_TARGET_DIR ?? 'target', 'release/librlock.so')
const SERVER = process.env.RLOCK_SERVER ?? 'redis-server'
const children = new Set()
process.on('exit', () => {
  for (const { child, dir } of children) {
    child.kill('SIGKILL')
    rmSync(dir, { recursive: true, force: true })
  }
})
// The test runner ends a file that takes too long by a signal, of which `exit` does not hear.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(1))

export async function freePort() {
  const server = net.createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address()
  server.close()
  await once(server, 'close')
  return port
}

/** Starts a server with the module; `module: false` without. */
export async function startServer({ module = true, args = [] } = {}) {
  const dir = mkdtempSync(join(tmpdir(), 'rlock-node-'))
  const port = await freePort()
  const load = module ? ['--loadmodule', MODULE] : []
  const base = ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--dir', dir, '--loglevel', 'warning']
  const child = spawn(SERVER, [...base, ...load, ...args], { stdio: 'ignore' })
  const entry = { child, dir }
  children.add(entry)
  const exited = once(child, 'exit')
  await until(() => canConnect(port), `a server on port ${port}`)
  return {
    port,
    pid: child.pid,
    dir,
    async stop() {
      child.kill('SIGKILL')
      await exited
      children.delete(entry)
      rmSync(dir, { recursive: true, force: true })
    },
  }
}

/** Starts a cluster of three masters. */
export async function startCluster() {
  const args = ['--cluster-enabled', 'yes', '--cluster-node-timeout', '5000']
  const servers = []
  for (let n = 0; n < 3; n++) {
    servers.push(await startServer({ args: [...args, '--cluster-port', String(await freePort())] }))
  }
  const nodes = servers.map(({ port }) => `127.0.0.1:${port}`)
  execFileSync('redis-cli', ['--cluster', 'create', ...nodes, '--cluster-yes'], { stdio: 'ignore' })
  return { servers, ports: servers.map(({ port }) => port), stop: () => Promise.all(servers.map((s) => s.stop())) }
}

async function canConnect(port) {
  const socket = net.connect(port, '127.0.0.1')
  try {
    await once(socket, 'connect')
    return true
  } catch {
    return false
  } finally {
    socket.destroy()
  }
}

/** A TCP proxy that can stall, cut and delay. */
export async function startProxy(target) {
  const pairs = new Set()
  const proxy = { delay: 0, stalled: false, refusing: false }
  const forward = (from, to) => {
    // In order, also when the delay changes.
    let earlier = Promise.resolve()
    from.on('data', (data) => {
      const due = performance.now() + proxy.delay
      earlier = earlier.then(async () => {
        if (due > performance.now()) await sleep(due - performance.now())
        while (proxy.stalled && !from.destroyed) await sleep(10)
        if (!to.destroyed) to.write(data)
      })
    })
  }
  const server = net.createServer((near) => {
    if (proxy.refusing) return near.destroy()
    const far = net.connect(target, '127.0.0.1')
    const pair = [near, far]
    pairs.add(pair)
    const end = () => {
      pairs.delete(pair)
      near.destroy()
      far.destroy()
    }
    for (const socket of pair) socket.on('error', end).on('close', end).setNoDelay(true)
    forward(near, far)
    forward(far, near)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  proxy.port = server.address().port
  proxy.connections = () => pairs.size
  proxy.cut = () => {
    for (const [near, far] of [...pairs]) {
      near.destroy()
      far.destroy()
    }
  }
  proxy.stop = async () => {
    proxy.stalled = false
    proxy.cut()
    server.close()
  }
  return proxy
}

/** Waits until a condition holds, for at most `ms`. */
export async function until(condition, what = 'the condition', ms = 10_000) {
  const end = performance.now() + ms
  for (;;) {
    const value = await condition()
    if (value) return value
    if (performance.now() > end) throw new Error(`waited ${ms} ms in vain for ${what}`)
    await sleep(10)
  }
}

/** A clock that a test advances. */
export class TestClock {
  ahead = 0
  wallAhead = 0
  monotonic() {
    return performance.now() + this.ahead
  }
  wall() {
    return Date.now() + this.ahead + this.wallAhead
  }
}

export { RLockClient, sleep }
