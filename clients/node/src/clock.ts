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

  #arm(due: number): void {
    clearTimeout(this.#timer)
    this.#due = due
    if (due === Infinity) return
    const ms = Math.min(due - performance.now(), MAX_TIMER_MS)
    this.#timer = setTimeout(() => this.#sweep(), Math.ceil(ms))
  }

  #sweep(): void {
    const now = performance.now()
    this.#due = Infinity
    for (const task of this.#tasks) {
      if (task.due > now) continue
      this.#tasks.delete(task)
      task.run()
    }
    let next = Infinity
    for (const { due } of this.#tasks) next = Math.min(next, due)
    if (next < Infinity) this.#arm(next)
  }
}

const FIRST_PAUSE_MS = 50
const LAST_PAUSE_MS = 1000

/** Pauses that another part of the program can cut short. @internal */
export class Pauses {
  #cut: (() => void) | undefined
  #next = FIRST_PAUSE_MS

  constructor(private readonly schedule: Schedule) {}

  /** Resolves after `ms`, or when the pause is {@link cut}. */
  async wait(ms: number): Promise<void> {
    let task: Task | undefined
    await new Promise<void>((resolve) => {
      this.#cut = resolve
      task = this.schedule.after(ms, resolve)
    })
    if (task) this.schedule.cancel(task)
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
