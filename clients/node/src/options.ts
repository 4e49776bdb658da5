import type { Clock } from './clock.js'

/** Options of a lock. Times are whole milliseconds, at most 31,536,000,000 (365 days). */
export interface LockOptions {
  /** The lease, 10 or more, which is renewed at a third of its length while the lock is held. Default: 30,000. */
  lease?: number
  /**
   * A lease, 10 or more, that is a limit: the hold ends that long after its acquisition. Replaces `lease`. If the
   * server allows less, it is renewed until then.
   */
  fixedLease?: number
  /**
   * Binds the hold to the application's connection: if that is lost and no new one is made, the hold ends
   * that number of milliseconds later (10 or more) instead of at the end of its lease. The client cannot always
   * notice the loss, so it renews the hold at a third of that time. Needs a client with one connection.
   */
  session?: number
  /**
   * The name of the owner, which re-enters what it holds. One owner is one thread of control: its concurrent
   * requests for the same lock run one after the other. Default: a fresh owner for each acquisition.
   */
  owner?: string
  /** A text of up to 256 bytes that `RLOCK.INFO` shows, for people. */
  note?: string
}

/** Options of a fair lock. */
export interface FairLockOptions extends LockOptions {
  /** How long the server keeps the place in the queue when the connection is lost, in milliseconds. */
  grace?: number
}

/** Options of a semaphore. */
export interface SemaphoreOptions extends LockOptions {
  /** How many permits an acquisition takes. Default: 1. */
  permits?: number
}

/** Options of a wait. */
export interface AcquireOptions extends LockOptions {
  /** How long to wait, in milliseconds; 0 tries once. More than 365 days, such as `Infinity`, and by default: no limit. */
  timeout?: number
  /** Cancels the wait. The request is withdrawn from the server in the background. */
  signal?: AbortSignal
}

/** Options of {@link RLockClient}. */
export interface ClientOptions {
  /** The lease of locks that do not name one, in milliseconds, 10 or more. Default: 30,000. */
  lease?: number
  /** How long to wait for the answer to a command, in milliseconds. Default: 5,000. */
  commandTimeout?: number
  /**
   * Hears of the first failure of a wait, which goes on, and of a release that did not reach the server.
   * Default: a process warning.
   */
  onWarning?: (message: string, error?: unknown) => void
  /** For tests: where the time comes from. */
  clock?: Clock
}

/** @internal */
export interface HoldOptions extends FairLockOptions {
  lease: number
}

/** The shortest lease and session that leave time for a renewal. @internal */
export const LEAST_LEASE_MS = 10

/** 365 days, the longest time that the server counts. @internal */
export const YEAR_MS = 31_536_000_000

/** @internal */
export function checkMs(name: string, ms: number | undefined, least: number): void {
  checkWhole(name, ms, 'milliseconds', least, YEAR_MS)
}

/** @internal */
export function checkPermits(permits: number | undefined): void {
  checkWhole('permits', permits, 'numbers', 1, 0xffffffff)
}

function checkWhole(name: string, value: number | undefined, what: string, least: number, most: number): void {
  if (value !== undefined && !(Number.isSafeInteger(value) && value >= least && value <= most)) {
    throw new RangeError(`${name} is ${String(value)}; expected whole ${what} from ${String(least)} to ${String(most)}`)
  }
}

/** The lease to ask for. @internal */
export const leaseOf = ({ lease, fixedLease }: HoldOptions): number => fixedLease ?? lease

/** The milliseconds after which a hold ends that its owner has not renewed yet. @internal */
export const claimOf = (options: HoldOptions): number => Math.min(2000, leaseOf(options))

/** The milliseconds after which a hold is renewed for the first time. @internal */
export const renewalOf = (options: HoldOptions): number => Math.min(50, claimOf(options) / 3)

/** Options that are undefined are not given. @internal */
export function merge(base: HoldOptions, own: LockOptions): HoldOptions {
  return { ...base, ...Object.fromEntries(Object.entries(own).filter(([, value]) => value !== undefined)) }
}
