// Uses a client that waits, closes the application's connection, and leaves the rest to the event loop.
import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { RLockClient } from 'rlock-redis'

async function use(client, send, end) {
  const rlock = new RLockClient(client)
  const hold = await rlock.lock('idle').acquire()
  const waits = rlock.lock('idle').acquire()
  while ((await send('RLOCK.WAITERS', 'idle')).length === 0);
  await hold.release()
  await (await waits).release()
  // A hold without a release ends when it cannot be renewed.
  await rlock.lock('idle', { lease: 500 }).acquire()
  await end()
}

export async function ioredis(port) {
  const client = new Redis(port)
  await use(
    client,
    (...words) => client.call(...words),
    () => client.quit(),
  )
}

export async function nodeRedis(port) {
  const client = createClient({ url: `redis://127.0.0.1:${port}` })
  await client.connect()
  await use(
    client,
    (...words) => client.sendCommand(words),
    () => client.close(),
  )
}
