// Two workers and four customers' jobs; one lock is lost in the middle. `make test-examples` runs it.
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'

import { Redis } from 'ioredis'

import { Worker } from './worker.mjs'

const url = `redis://127.0.0.1:${process.env.PORT}`
const redis = new Redis(url)
const customers = ['a', 'b', 'c', 'd']
const inside = new Map()
const done = []
const overlaps = []
let most = 0
let lost = 0
let fails = () => 0

async function work(job, { signal }) {
  const here = (inside.get(job.customer) ?? 0) + 1
  if (here > 1) overlaps.push(job.customer) // The worker catches what is thrown here.
  inside.set(job.customer, here)
  most = Math.max(most, [...inside.values()].reduce((sum, n) => sum + n, 0))
  try {
    if (job.id === 'loses' && lost++ === 0) {
      await redis.del('customer:a') // As by an operator's FORCERELEASE. The next renewal notices.
      await sleep(30_000, undefined, { signal })
    }
    if (job.id === 'fails' && fails()) throw new Error('as always')
    await sleep(10)
    if (!signal.aborted) done.push(job.id)
  } finally {
    inside.set(job.customer, inside.get(job.customer) - 1)
  }
}

const error = console.error
const errors = []
console.error = (...words) => errors.push(words.join(' '))
const jobs = customers.flatMap((customer) => Array.from({ length: 20 }, (_, n) => ({ id: `${customer}${n}`, customer })))
for (const job of jobs) await redis.lpush('jobs', JSON.stringify(job))
const workers = [new Worker(url, work), new Worker(url, work)]
const until = async (condition, what) => {
  for (const end = Date.now() + 60_000; !(await condition()); await sleep(20)) assert.ok(Date.now() < end, what)
}
await until(() => done.length === jobs.length, 'not all jobs are done')
assert.deepEqual([...done].sort(), jobs.map((job) => job.id).sort())
assert.deepEqual(overlaps, [])
assert.ok(most > 1, 'jobs of different customers did not run at the same time')
console.log('ok  node: jobs of one customer run one after the other, those of others beside them')

await redis.lpush('jobs', JSON.stringify({ id: 'loses', customer: 'a' }))
await until(() => done.includes('loses'), 'the job whose lock was lost did not run again')
assert.equal(lost, 2)
console.log('ok  node: a job whose lock was lost stops, and runs again')

const broken = until(() => errors.some((text) => text.includes('cannot be read')), 'the workers do not try')
await redis.set('jobs', 'no list')
await broken
await redis.del('jobs')
await redis.lpush('jobs', JSON.stringify({ id: 'after', customer: 'c' }))
await until(() => done.includes('after'), 'the workers ended when the queue could not be read')
console.log('ok  node: workers outlive a queue that cannot be read')

let attempts = 0
fails = () => ++attempts
await redis.lpush('jobs', 'no JSON', JSON.stringify({ id: 'fails', customer: 'b' }))
await until(() => attempts > 0, 'the job did not run')
await sleep(1500)
assert.ok(attempts >= 2 && attempts <= 4, `a job that always fails ran ${attempts} times in 1.5 s`)
fails = () => 0
await until(() => done.includes('fails'), 'the job that failed did not run again')
console.log('ok  node: a job that fails is tried again after a pause')

await Promise.all(workers.map((worker) => worker.close()))
assert.equal(await redis.lrem('jobs', 0, 'no JSON'), 1)
assert.deepEqual(await redis.keys('jobs*'), [])
console.error = error
redis.disconnect()
