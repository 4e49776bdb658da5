// Checked by the compiler only: the clients of the libraries fit, in all versions, and so does `await using`.
import { Cluster, Redis } from 'ioredis'
import { Cluster as Cluster6, Redis as Redis6 } from 'ioredis6'
import { createClient, createCluster } from 'redis'
import { createClient as createClient6, createCluster as createCluster6 } from 'redis6'
import { type Hold, type LockError, LockLost, RLockClient } from 'rlock-redis'

export const locks: RLockClient[] = [
  new RLockClient(new Redis()),
  new RLockClient(new Cluster([])),
  new RLockClient(new Redis6()),
  new RLockClient(new Cluster6([])),
  new RLockClient(createClient()),
  new RLockClient(createClient({ RESP: 3 })),
  new RLockClient(createCluster({ rootNodes: [] })),
  new RLockClient(createClient6()),
  new RLockClient(createCluster6({ rootNodes: [] })),
]

export async function use(rlock: RLockClient, signal: AbortSignal): Promise<number> {
  await using hold = await rlock.lock('k').acquire({ signal, timeout: 1000 })
  const again: Hold | null = await rlock.fairLock('k', { grace: 10 }).tryAcquire({ grace: 0 })
  await again?.release()
  const lost: LockError = new LockLost('x')
  const answer: number = await rlock.semaphore('s', { permits: 2 }).using((inner, stop) => {
    stop.throwIfAborted()
    return inner.token + lost.message.length
  })
  // @ts-expect-error a mutex has no grace
  await rlock.lock('k').tryAcquire({ grace: 0 })
  return answer + hold.token
}
