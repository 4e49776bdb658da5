/** Where the package reads the time, in milliseconds. For tests; the default suits every program. */
export interface Clock {
  /** A clock that never steps. It may stand still while the machine is suspended. */
  monotonic(): number
  /** The time of day. */
  wall(): number
}

/** @internal */
export const systemClock: Clock = { monotonic: () => performance.now(), wall: () => Date.now() }

/** The milliseconds since it was started. @internal */
export type Stopwatch = () => number

/**
 * Node has no clock that goes on during suspend and never steps, so the larger advance counts: a step of the
 * wall clock can end a belief early, and a suspend cannot extend it. @internal
 */
export function stopwatch(clock: Clock): Stopwatch {
  const [monotonic, wall] = [clock.monotonic(), clock.wall()]
  return () => Math.max(clock.monotonic() - monotonic, clock.wall() - wall)
}

/** Timers longer than 2^31 - 1 ms would fire at once. @internal */
export const MAX_TIMER_MS = 0x7fffffff

/** Settles as `promise` does, or rejects with `late()` after `ms`. @internal */
export async function within<T>(promise: Promise<T>, ms: number, late: () => Error): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(late()), Math.min(ms, MAX_TIMER_MS))
  })
  try {
    return await Promise.race([promise, timeout])
  } finally {
    clearTimeout(timer)
  }
}

const FIRST_PAUSE_MS = 50
const LAST_PAUSE_MS = 1000

/** Pauses that another part of the program can cut short. @internal */
export class Pauses {
  #cut: (() => void) | undefined
  #next = FIRST_PAUSE_MS

  /** Resolves after `ms`, or when the pause is {@link cut}. */
  async wait(ms: number): Promise<void> {
    let timer: NodeJS.Timeout | undefined
    await new Promise<void>((resolve) => {
      this.#cut = resolve
      timer = setTimeout(resolve, Math.min(ms, MAX_TIMER_MS))
    })
    clearTimeout(timer)
  }

  /** A pause before the next attempt: 50 ms at first, 1 s later, `most` at most. */
  async backOff(most = Infinity): Promise<void> {
    await this.wait(Math.min(this.next(), most))
  }

  /** The milliseconds of that pause. */
  next(): number {
    const ms = this.#next
    this.#next = Math.min(2 * ms, LAST_PAUSE_MS)
    return ms
  }

  /** The next {@link backOff} is the first one again. */
  reset(): void {
    this.#next = FIRST_PAUSE_MS
  }

  cut(): void {
    this.#cut?.()
  }
}

/** For how long a lease is believed: the clocks of client and server may differ in speed. @internal */
export const believed = (lease: number): number => lease * 0.99 - 2
