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

/**
 * The timeout of `acquire` ended before the lock was granted. `cause` is an {@link Unavailable} if the server was
 * unreachable, silent or refusing at the end; without one, another owner held the lock.
 */
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
  /** The milliseconds after which a retry can succeed, if the server named them. */
  get retryAfter(): number | undefined {
    const ms = /(\d+) ms left/.exec(this.message)?.[1]
    return ms === undefined ? undefined : Number(ms)
  }
}

/** The server refused the request. A retry would be refused as well. */
export class Refused extends LockError {}
