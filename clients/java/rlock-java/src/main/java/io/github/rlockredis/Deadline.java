package io.github.rlockredis;

import java.time.Duration;

/** A moment some milliseconds after the one at which it was made, on both clocks. */
record Deadline(LockClock clock, long nanos, long millis, long after) {
    /** The longest time that the server counts. */
    static final long YEAR_MS = Duration.ofDays(365).toMillis();

    /** Whole milliseconds; below 0 if the time is negative, and a year at most. */
    static long millis(Duration time) {
        if (time.isNegative()) return -1;
        return time.compareTo(Duration.ofMillis(YEAR_MS)) > 0 ? YEAR_MS : time.toMillis();
    }

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
