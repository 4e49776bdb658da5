package io.github.rlockredis;

import java.util.concurrent.locks.ReadWriteLock;

/**
 * A lock for many readers or one writer.
 *
 * @param readLock is held by any number of owners together
 * @param writeLock is held by one owner, and then no other reads
 */
public record RReadWriteLock(RLock readLock, RLock writeLock) implements ReadWriteLock {
    /**
     * The same lock, acquired in another way.
     *
     * @param options for both modes
     * @return a pair with these options
     */
    public RReadWriteLock with(LockOptions options) {
        return new RReadWriteLock(readLock.with(options), writeLock.with(options));
    }
}
