import type { HoldOptions } from './options.js'
import { Deadlock, LockError, ModuleMissing, ModuleTooOld, Refused, Superseded, Unavailable } from './errors.js'

/** What is locked, and how its commands are spelled. @internal */
export interface Target {
  readonly family: 'RLOCK' | 'RFAIRLOCK' | 'RRWLOCK' | 'RSEMAPHORE'
  /** With the prefix of the application's client. */
  readonly keys: readonly string[]
  readonly many?: boolean
  readonly mode?: 'READ' | 'WRITE'
  readonly permits?: number | undefined
}

/** What an owner asks for. @internal */
export interface Request extends Target {
  readonly owner: string
  readonly options: HoldOptions
  /** Milliseconds, Infinity without a limit, undefined for a try. */
  readonly wait: number | undefined
  /** The entries in `Core.named` of what a named owner holds. */
  readonly names: readonly string[]
  /** Those of its acquisitions: it has at most one waiting request for a key, whatever the kind or mode. */
  readonly turns: readonly string[]
}

/** An option of a command, if it has a value. @internal */
export const option = (name: string, value: number | string | undefined): string[] =>
  value === undefined ? [] : [name, String(value)]

/** The key that decides where the commands for a target go. @internal */
export const firstKey = (target: Target): string => target.keys[0] ?? ''

/** A command for a target, up to its options. @internal */
export function words(command: 'ACQUIRE' | 'RELEASE' | 'RENEW' | 'CANCEL', request: Request): string[] {
  const { family, keys, many, mode, permits, owner } = request
  if (many) return [`${family}.M${command}`, String(keys.length), ...keys, owner]
  const start = [`${family}.${command}`, firstKey(request), owner]
  if (command === 'CANCEL') return start
  if (mode) return [...start, mode]
  return permits !== undefined && command !== 'RENEW' ? [...start, 'PERMITS', String(permits)] : start
}

/** The option that names the hold. @internal */
export function tokenOption(target: Target, tokens: readonly number[]): string[] {
  return [target.many ? 'TOKENS' : 'TOKEN', ...tokens.map(String)]
}

/**
 * An integer reply, which arrives as a number, a string or a buffer depending on the options of the
 * application's client; undefined for anything else. @internal
 */
export function integer(reply: unknown): number | undefined {
  const number = /^-?\d+$/.test(String(reply)) ? Number(reply) : NaN
  return Number.isSafeInteger(number) ? number : undefined
}

/** The answer to ACQUIRE: tokens and milliseconds, null if the lock was not granted, or `WAITING`. @internal */
export function answer(target: Target, reply: unknown): { tokens: number[]; ms: number } | null | 'WAITING' {
  if (reply === null || reply === undefined) return null
  if (String(reply) === 'WAITING') return 'WAITING'
  const numbers = (Array.isArray(reply) ? reply : []).map(integer).filter((number) => number !== undefined)
  const ms = numbers.pop()
  if (ms !== undefined && numbers.length === target.keys.length) return { tokens: numbers, ms }
  const text = `the answer to ${target.family}.ACQUIRE is no grant: ${String(reply)}`
  throw Array.isArray(reply) ? new Refused(text) : new ModuleTooOld(text)
}

// Shared by the ES module and the CommonJS module of this package, which one process may load both. It begins at
// the wall clock in microseconds, so that a restarted process that names its owner uses higher ids.
const REQUESTS = Symbol.for('rlock-redis.requests')
const shared = globalThis as { [REQUESTS]?: number }

/** A `REQ` id above those of all earlier requests of this process. The next one is left for the RELEASE. @internal */
export function nextId(): number {
  shared[REQUESTS] = (shared[REQUESTS] ?? Date.now() * 1000) + 2
  return shared[REQUESTS] - 1
}

const RETRYABLE = new Set([
  ...['READONLY', 'LOADING', 'MASTERDOWN', 'MISCONF', 'OOM', 'BUSY', 'QUARANTINE', 'NOREPLICAS', 'UNBLOCKED'],
  ...['CLUSTERDOWN', 'TRYAGAIN', 'MOVED', 'ASK'],
])

/** Turns an error of the library, or the text of a server's error, into one of this package. @internal */
export function translate(error: unknown): LockError {
  if (error instanceof LockError) return error
  const text = error instanceof Error ? error.message : String(error)
  // Errors of the libraries themselves and of the system do not begin with a word in capitals.
  const code = /^[A-Z][A-Z0-9]+(?= |$)/.exec(text)?.[0]
  if (code === undefined) return new Unavailable(text || 'the connection to the server was lost', undefined, error)
  if (text.startsWith('ERR max number of clients')) return new Unavailable(text, code, error)
  if (code === 'DEADLOCK') return new Deadlock(text, code, error)
  if (code === 'SUPERSEDED') return new Superseded(text, code, error)
  if (code === 'ERR' && /unknown command/i.test(text)) return new ModuleMissing(text, code, error)
  if (code === 'ERR' && /unknown option/i.test(text)) return new ModuleTooOld(text, code, error)
  return RETRYABLE.has(code) ? new Unavailable(text, code, error) : new Refused(text, code, error)
}
