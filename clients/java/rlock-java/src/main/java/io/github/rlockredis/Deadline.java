package io.github.rlockredis;

/** A moment some milliseconds after the one at which it was made, on both clocks. */
record Deadline(LockClock clock, long nanos, long millis, long after) {
    static Deadline in(LockClock clock, long after) {
        return new Deadline(clock, clock.nanoTime(), clock.currentTimeMillis(), after);
    }

    /** The same start with another length. */
    Deadline lasting(long milliseconds) {
        return new Deadline(clock, nanos, millis, milliseconds);
    }

    long elapsed() {
        return Math.max((clock.nanoTime() - nanos) / 1_000_000, clock.currentTimeMillis() - millis);
    }

    /** Milliseconds left, negative once it has passed. */
    long left() {
        return after - elapsed();
    }
}
