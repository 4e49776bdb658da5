package io.github.rlockredis;

import java.time.Duration;

/**
 * How a lock is acquired and held. Immutable; start from {@link #DEFAULT}. A time of more than 365
 * days counts as 365 days.
 *
 * @param lease how long a hold lives without renewal, 1 ms or more
 * @param renewed whether the client renews the hold until its release, each time a third of what the
 *     server has granted has passed; else the hold is lost when the lease has passed
 * @param session binds the hold to the connection: once it has closed, the hold expires after this
 *     time, 10 ms or more; the client renews the hold at a third of it; null for none
 * @param grace how long a fair lock keeps the place of a waiter whose connection closed; null for
 *     the server's default, without effect on other locks
 * @param owner the name that holds the lock; null for a generated one per thread or acquisition
 * @param note up to 256 bytes of text that the server stores and shows with the hold; null for none
 */
public record LockOptions(
        Duration lease, boolean renewed, Duration session, Duration grace, String owner, String note) {
    private static final long SHORTEST_SESSION_MS = 10;

    /**
     * Checks the times.
     *
     * @param lease at least 1 ms
     * @param renewed whether the client renews the hold
     * @param session at least 10 ms, or null
     * @param grace at least 0, or null
     * @param owner a name, or null
     * @param note a text, or null
     * @throws IllegalArgumentException if the lease is shorter than 1 ms, the session shorter than
     *     10 ms, or the grace negative
     */
    public LockOptions {
        leaseMillis(lease);
        if (session != null) check("session", session, SHORTEST_SESSION_MS);
        if (grace != null) check("grace", grace, 0);
    }

    long leaseMillis() {
        return leaseMillis(lease);
    }

    static long leaseMillis(Duration lease) {
        return check("lease", lease, 1);
    }

    private static long check(String name, Duration time, long least) {
        long milliseconds = Deadline.millis(time);
        if (milliseconds >= least) return milliseconds;
        throw new IllegalArgumentException(name + " is " + time + "; expected " + least + " ms or more");
    }

    /** How many milliseconds a hold is sure to last after an answer: its connection may close right after it. */
    long sessionLease(long lease) {
        return session == null ? lease : Math.min(lease, Deadline.millis(session));
    }

    /** A lease of 30 s that is renewed, and nothing else. */
    public static final LockOptions DEFAULT = new LockOptions(Duration.ofSeconds(30), true, null, null, null, null);

    /**
     * A renewed lease.
     *
     * @param lease how long a hold lives after its last renewal, 1 ms or more; the holder's crash blocks
     *     others for that long
     * @return changed options
     * @throws IllegalArgumentException if the lease is shorter than 1 ms
     */
    public LockOptions withLease(Duration lease) {
        return new LockOptions(lease, true, session, grace, owner, note);
    }

    /**
     * A limit: the hold is lost when this time has passed. If the server allows only shorter leases
     * ({@code rlock.max-lease-ms}), the client renews the hold until then, and a crash of its holder
     * frees it earlier.
     *
     * @param lease how long a hold lives, 1 ms or more
     * @return changed options
     * @throws IllegalArgumentException if the lease is shorter than 1 ms
     */
    public LockOptions withFixedLease(Duration lease) {
        return new LockOptions(lease, false, session, grace, owner, note);
    }

    /**
     * Binds holds to the connection, so that a crash of the holder frees the lock early.
     *
     * @param session how long a hold outlives its connection, 10 ms or more; null for none
     * @return changed options
     * @throws IllegalArgumentException if the session is shorter than 10 ms
     */
    public LockOptions withSession(Duration session) {
        return new LockOptions(lease, renewed, session, grace, owner, note);
    }

    /**
     * The grace of a place in the queue of a fair lock.
     *
     * @param grace how long the place outlives its connection, 0 or more; null for the server's default
     * @return changed options
     * @throws IllegalArgumentException if the grace is negative
     */
    public LockOptions withGrace(Duration grace) {
        return new LockOptions(lease, renewed, session, grace, owner, note);
    }

    /**
     * Names the owner. The name must belong to one thread of control at a time: a second acquisition
     * by the same owner is a re-entry. Concurrent requests of one client wait for each other.
     *
     * @param owner 1 to 512 bytes in UTF-8; null for a generated name
     * @return changed options
     */
    public LockOptions withOwner(String owner) {
        return new LockOptions(lease, renewed, session, grace, owner, note);
    }

    /**
     * Stores a text with the hold, for people to read.
     *
     * @param note at most 256 bytes in UTF-8; null for none
     * @return changed options
     */
    public LockOptions withNote(String note) {
        return new LockOptions(lease, renewed, session, grace, owner, note);
    }
}
