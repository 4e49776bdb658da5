package example;

import java.time.Duration;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A java.util.concurrent.locks.Lock that many machines share, and whose lease is renewed at a third of it for as long as it is held. Each thread of
 * control has one of its own: it is not reentrant. What is written under it carries {@link #token()}, and what takes long asks {@link #isLost()}.
 */
public final class RenewedLock implements Lock {
    private static final Duration FOR_EVER = Duration.ofDays(365);
    private static final ScheduledExecutorService RENEWALS = Executors.newScheduledThreadPool(1, work -> {
        var thread = new Thread(work, "renewal of locks");
        thread.setDaemon(true);
        return thread;
    });

    private final LettuceLocks locks;
    private final String key;
    private final Duration lease;
    private volatile LettuceLocks.Hold hold;
    private ScheduledFuture<?> renewal;
    private volatile boolean lost;
    private volatile long safeUntil;

    public RenewedLock(LettuceLocks locks, String key, Duration lease) {
        this.locks = locks;
        this.key = key;
        this.lease = lease;
    }

    private boolean acquire(Duration wait) throws InterruptedException {
        if (hold != null) throw new IllegalMonitorStateException(key + " is held by this very lock");
        var granted = locks.acquire(key, lease, wait);
        if (granted == null) return false;
        hold = granted;
        lost = false;
        // Until the first renewal, by which a third may have passed.
        safeUntil = System.nanoTime() + lease.toNanos() * 2 / 3;
        var third = lease.toMillis() / 3;
        renewal = RENEWALS.scheduleWithFixedDelay(() -> renew(granted), third, third, TimeUnit.MILLISECONDS);
        return true;
    }

    /** One that is late says nothing of the hold after it. */
    private void renew(LettuceLocks.Hold renewed) {
        var sent = System.nanoTime();
        try {
            var mine = locks.renew(renewed);
            if (hold != renewed) return;
            if (mine) safeUntil = sent + lease.toNanos();
            else lost = true;
        } catch (RuntimeException mayPass) {
            // The next third tries again; isLost says when it is too late.
        }
    }

    /** Whether somebody else may hold it by now. */
    public boolean isLost() {
        return lost || System.nanoTime() - safeUntil > 0;
    }

    /** The fencing token: each holder's is higher than those of all before. */
    public long token() {
        return hold.token();
    }

    @Override
    public void lock() {
        var interrupted = false;
        try {
            while (true) {
                try {
                    if (acquire(FOR_EVER)) return;
                } catch (InterruptedException later) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        while (!acquire(FOR_EVER)) { }
    }

    @Override
    public boolean tryLock() {
        try {
            return acquire(Duration.ZERO);
        } catch (InterruptedException never) {
            throw new IllegalStateException(never);
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return acquire(Duration.of(time, unit.toChronoUnit()));
    }

    @Override
    public void unlock() {
        if (hold == null) throw new IllegalMonitorStateException(key + " is not held");
        renewal.cancel(false);
        try {
            locks.release(hold);
        } finally {
            hold = null;
        }
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException();
    }
}
