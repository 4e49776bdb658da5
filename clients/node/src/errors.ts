/**
 * The base class of every error of this package. Errors of the server keep its first word in
 * {@link LockError.code} and its full text in the message.
 */
export class LockError extends Error {
  /** The first word of the server's error, such as `READONLY`; undefined if the server sent none. */
  readonly code: string | undefined

  constructor(message: string, code?: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause })
    this.name = new.target.name
    this.code = code
  }
}

/** The timeout of `acquire` ended before the lock was granted. `cause` is the last failure, if there was one. */
export class LockTimeout extends LockError {}

/** The hold ended before it was released: its lease expired, or the server answered that it has ended. */
export class LockLost extends LockError {}

/** The wait would close a circle of waiting owners. Release what this owner holds and start again. */
export class Deadlock extends LockError {}

/** A newer request of the same owner, usually from another process, has replaced this one. */
export class Superseded extends LockError {}

/** The server does not know the commands of the rlock module. */
export class ModuleMissing extends LockError {}

/** The rlock module of the server is older than this package needs. */
export class ModuleTooOld extends LockError {}

/** The {@link RLockClient} is closed. */
export class Closed extends LockError {}

/** The server cannot answer for the moment, or could not be reached. Worth a retry. */
export class Unavailable extends LockError {
  /** The milliseconds after which a retry can succeed, if the server told them. */
  get retryAfter(): number | undefined {
    const ms = /(\d+) ms left/.exec(this.message)?.[1]
    return ms === undefined ? undefined : Number(ms)
  }
}

/** The server refused the request. A retry would be refused as well. */
export class Refused extends LockError {}

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
  if (code === 'DEADLOCK') return new Deadlock(text, code, error)
  if (code === 'SUPERSEDED') return new Superseded(text, code, error)
  if (code === 'ERR' && /unknown command/i.test(text)) return new ModuleMissing(text, code, error)
  if (code === 'ERR' && /unknown option/i.test(text)) return new ModuleTooOld(text, code, error)
  return RETRYABLE.has(code) ? new Unavailable(text, code, error) : new Refused(text, code, error)
}
