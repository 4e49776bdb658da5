package io.github.rlockredis;

/** The clocks of the machine, and what a test has added to them. */
public final class TestClock implements LockClock {
    private volatile long advanced;

    public void advance(long milliseconds) {
        advanced += milliseconds;
    }

    @Override
    public long nanoTime() {
        return System.nanoTime() + advanced * 1_000_000;
    }

    @Override
    public long currentTimeMillis() {
        return System.currentTimeMillis() + advanced;
    }
}
