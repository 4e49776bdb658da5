package io.github.rlockredis;

/**
 * The clocks by which holds expire. Java has no steady clock that also counts while the machine is
 * suspended, so time passed is the larger advance of the two clocks here.
 *
 * <p>For tests: override these methods to let time pass at once.
 */
public interface LockClock {
    /** The clocks of the machine. */
    LockClock SYSTEM = new LockClock() {};

    /**
     * The steady clock.
     *
     * @return nanoseconds since an arbitrary moment
     */
    default long nanoTime() {
        return System.nanoTime();
    }

    /**
     * The wall clock.
     *
     * @return milliseconds since 1970
     */
    default long currentTimeMillis() {
        return System.currentTimeMillis();
    }
}
