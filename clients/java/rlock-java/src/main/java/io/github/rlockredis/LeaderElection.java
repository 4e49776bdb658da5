package io.github.rlockredis;

import java.util.concurrent.locks.LockSupport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Runs some work in one process at a time: in that which holds a lock. A thread waits for the lock,
 * does the work while it holds, and waits again, until this is closed.
 */
public final class LeaderElection implements AutoCloseable {
    /** What the leader does. */
    @FunctionalInterface
    public interface Work {
        /**
         * Is called when this process has become the leader. Its thread is interrupted when the
         * leadership is lost, and when the election is closed. Returning gives the leadership up.
         *
         * @param hold the leadership, with its fencing token
         * @throws Exception is logged, as any error, and gives the leadership up
         */
        void lead(Hold hold) throws Exception;
    }

    private static final Logger log = LoggerFactory.getLogger(LeaderElection.class);
    private static final long PAUSE_AFTER_ERROR_NANOS = 1_000_000_000;

    private volatile boolean closed;
    private final RLock lock;
    private final Work work;
    private final Thread thread;

    private LeaderElection(RLock lock, Work work) {
        this.lock = lock;
        this.work = work;
        this.thread = new Thread(this::run, "rlock-leader " + lock.resource);
        thread.setDaemon(true);
    }

    /**
     * Begins to take part.
     *
     * @param lock whose holder is the leader; with {@link LockOptions#withSession} a crash of the
     *     leader is noticed at once
     * @param work what the leader does
     * @return ends when it is closed
     */
    public static LeaderElection start(RLock lock, Work work) {
        var election = new LeaderElection(lock, work);
        election.thread.start();
        return election;
    }

    private void run() {
        while (!closed && !lock.client.isClosed()) {
            Hold hold = null;
            try {
                hold = lock.acquire();
                lead(hold);
            } catch (Throwable ended) {
                // The work may throw the exceptions of other locks too.
                boolean lost = hold == null ? ended instanceof InterruptedException : hold.isLost();
                if (closed || lost || lock.client.isClosed()) {
                    log.debug("no longer the leader of {}", lock.resource, ended);
                } else {
                    log.warn("leading {} failed", lock.resource, ended);
                    LockSupport.parkNanos(PAUSE_AFTER_ERROR_NANOS); // An interrupt ends it.
                }
            }
        }
    }

    private void lead(Hold hold) throws Exception {
        try (hold) {
            hold.onLost(lost -> thread.interrupt());
            work.lead(hold);
        }
    }

    /** Interrupts the work, gives the leadership up, and waits until that is done. */
    @Override
    public void close() {
        closed = true;
        thread.interrupt();
        if (Thread.currentThread() == thread) return;
        try {
            thread.join();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
