import { Deadlock, LockError, ModuleMissing, ModuleTooOld, Refused, Superseded, Unavailable } from './errors.js'

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
