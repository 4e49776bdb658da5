package io.github.rlockredis;

import java.time.Duration;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock that many processes share. As a {@link Lock} it is reentrant and held by the thread that
 * has acquired it, platform or virtual. One object serves all threads.
 *
 * <p>A thread that serves several requests in turns, such as an event loop, is one owner, and its
 * requests enter each other's locks. Use {@link #acquireAsync()} there.
 *
 * <p>{@code unlock()} in a {@code finally} block throws if the hold was lost, and then hides what
 * the block has thrown. {@link #acquire()} in a try-with-resources statement and {@link
 * #callLocked} do not.
 */
public final class RLock extends Lockable implements Lock {
    RLock(RLockClient client, Resource resource, LockOptions options) {
        super(client, resource, options);
    }

    /**
     * The same lock, acquired in another way.
     *
     * @param options the options
     * @return a lock with these options
     */
    public RLock with(LockOptions options) {
        return new RLock(client, resource, options);
    }

    @Override
    String currentOwner() {
        return options.owner() == null ? client.threadOwner() : options.owner();
    }

    /**
     * Waits without a limit. An interrupt does not end the wait.
     *
     * @throws RLockException if the request fails
     */
    @Override
    public void lock() {
        uninterruptibly(options, Acquisition.FOR_EVER);
    }

    /**
     * Waits without a limit.
     *
     * @param lease the lease, which is not renewed; -1 for the renewed one of the options
     * @param unit of the lease
     */
    public void lock(long lease, TimeUnit unit) {
        uninterruptibly(leased(lease, unit), Acquisition.FOR_EVER);
    }

    private Hold uninterruptibly(LockOptions options, long wait) {
        var request = begin(options, currentOwner(), wait).result;
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return notLost(request.get());
                } catch (InterruptedException later) {
                    interrupted = true;
                } catch (ExecutionException failed) {
                    throw RLockClient.here(failed);
                }
            }
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    /**
     * Waits without a limit.
     *
     * @throws InterruptedException if the thread is interrupted; the request is withdrawn
     */
    @Override
    public void lockInterruptibly() throws InterruptedException {
        acquire();
    }

    /**
     * Tries once. Waits for the answer of the server, also if the thread is interrupted.
     *
     * @return whether it is held now
     */
    @Override
    public boolean tryLock() {
        return uninterruptibly(options, 0) != null;
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return tryLock(time, -1, unit);
    }

    /**
     * Waits for some time.
     *
     * @param wait less than 1 ms tries once, 365 days or more is without a limit
     * @param lease the lease, which is not renewed; -1 for the renewed one of the options
     * @param unit of both
     * @return whether it was acquired in time
     * @throws RLockException.UnavailableException if the server was silent or refused at the end
     * @throws InterruptedException if the thread is interrupted; the request is withdrawn
     */
    public boolean tryLock(long wait, long lease, TimeUnit unit) throws InterruptedException {
        var leased = leased(lease, unit);
        return await(begin(leased, currentOwner(), unit.toMillis(wait))) != null;
    }

    private LockOptions leased(long lease, TimeUnit unit) {
        if (lease == -1) return options;
        return options.withFixedLease(Duration.ofMillis(unit.toMillis(lease)));
    }

    /**
     * Releases one acquisition of the calling thread.
     *
     * @throws IllegalMonitorStateException if the thread does not hold the lock
     * @throws RLockException.LockLostException if the hold was lost before
     */
    @Override
    public void unlock() {
        current().close();
    }

    private Hold current() {
        String owner = currentOwner();
        Hold hold = client.heldBy(owner, resource);
        if (hold == null) throw new IllegalMonitorStateException(owner + " does not hold " + resource);
        return hold;
    }

    /**
     * Not supported.
     *
     * @return never
     */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a distributed lock has no conditions");
    }

    /**
     * Whether the calling thread holds the lock, by the clock.
     *
     * @return false once the lease may have ended
     */
    public boolean isHeldByCurrentThread() {
        Hold hold = client.heldBy(currentOwner(), resource);
        return hold != null && hold.isHeld();
    }

    /**
     * The fencing token of the calling thread's hold.
     *
     * @return see {@link Hold#token()}
     * @throws IllegalMonitorStateException if the thread does not hold the lock
     */
    public long token() {
        return current().token();
    }
}
