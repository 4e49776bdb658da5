package io.github.rlockredis.spring.boot;

import io.github.rlockredis.Hold;

/** What is measured. */
interface LockMetrics {
    void lost(Hold hold);

    /** A call of a {@link DistributedLock} method has waited, and has acquired the lock or not. */
    void waited(String method, boolean acquired, long nanoseconds);

    void held(String method, long nanoseconds);
}
