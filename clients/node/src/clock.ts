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

/** What is done later. @internal */
export interface Task {
  readonly due: number
  readonly run: () => void
}

// Timers longer than 2^31 - 1 ms would fire at once.
const MAX_TIMER_MS = 0x7fffffff

/** What a client does later. One timer serves all of it: most tasks are cancelled before they are due. @internal */
export class Schedule {
  readonly #tasks = new Set<Task>()
  #timer: NodeJS.Timeout | undefined
  #due = Infinity

  /** Calls `run` once, after `ms`. Keeps the process alive until then. */
  after(ms: number, run: () => void): Task {
    const task = { due: performance.now() + ms, run }
    this.#tasks.add(task)
    if (task.due < this.#due) this.#arm(task.due)
    else if (this.#tasks.size === 1) this.#timer?.ref()
    return task
  }

  cancel(task: Task): void {
    if (this.#tasks.delete(task) && this.#tasks.size === 0) this.#timer?.unref()
  }

  /** Settles as `promise` does, or rejects with `late()` after `ms`. */
  within<T>(promise: Promise<T>, ms: number, late: () => Error): Promise<T> {
    return new Promise((resolve, reject) => {
      const task = this.after(ms, () => reject(late()))
      void promise.then(resolve, reject).then(() => this.cancel(task))
    })
  }

  /** Resolves after `ms`, or as soon as the function is called that `cuts` is given. */
  pause(ms: number, cuts?: (cut: () => void) => void): Promise<void> {
    return new Promise((resolve) => {
      const task = this.after(ms, resolve)
      cuts?.(() => {
        this.cancel(task)
        resolve()
      })
    })
  }

  #arm(due: number): void {
    clearTimeout(this.#timer)
    this.#due = due
    this.#timer = setTimeout(() => this.#sweep(), Math.min(due - performance.now(), MAX_TIMER_MS))
  }

  #sweep(): void {
    const now = performance.now()
    this.#due = Infinity
    for (const task of this.#tasks) {
      if (task.due <= now && this.#tasks.delete(task)) task.run()
      else if (task.due < this.#due) this.#arm(task.due)
    }
  }
}

/** The milliseconds before attempt `n` after a failure, counted from 0. @internal */
export const backOff = (n: number): number => Math.min(50 * 2 ** n, 1000)

/** For how long a lease is believed: the clocks of client and server may differ in speed. @internal */
export const believed = (lease: number): number => lease * 0.99 - 2
