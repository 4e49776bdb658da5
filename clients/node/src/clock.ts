/** Where the package reads the time, in milliseconds. For tests; the default suits every program. */
export interface Clock {
  /** A clock that never steps. It may stand still while the machine is suspended. */
  monotonic(): number
  /** The time of day. */
  wall(): number
}

/** @internal */
export const systemClock: Clock = { monotonic: () => performance.now(), wall: () => Date.now() }

/** A moment on both clocks. @internal */
export class Instant {
  readonly #monotonic: number
  readonly #wall: number

  constructor(private readonly clock: Clock) {
    this.#monotonic = clock.monotonic()
    this.#wall = clock.wall()
  }

  /**
   * The milliseconds since then. Node has no clock that goes on during suspend and never steps, so the
   * larger advance counts: a step of the wall clock can end a belief early, and a suspend cannot extend it.
   */
  elapsed(): number {
    return Math.max(this.clock.monotonic() - this.#monotonic, this.clock.wall() - this.#wall)
  }
}

/** Never resolves before `ms`. Timers longer than 2^31 - 1 ms would fire at once. @internal */
export const MAX_TIMER_MS = 0x7fffffff

/** Settles as `promise` does, or rejects with `late()` after `ms`. @internal */
export async function within<T>(promise: Promise<T>, ms: number, late: () => Error): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => {
        reject(late())
      },
      Math.min(ms, MAX_TIMER_MS),
    )
  })
  try {
    return await Promise.race([promise, timeout])
  } finally {
    clearTimeout(timer)
  }
}

/** A pause that another part of the program can cut short. @internal */
export class Pause {
  #end: (() => void) | undefined

  /** Resolves after `ms`, or at the next {@link cut}. */
  async wait(ms: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, Math.min(ms, MAX_TIMER_MS))
      this.#end = () => {
        clearTimeout(timer)
        resolve()
      }
    })
  }

  /** Ends the pause. */
  cut(): void {
    this.#end?.()
  }
}
