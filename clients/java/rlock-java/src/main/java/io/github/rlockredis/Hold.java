package io.github.rlockredis;

import io.github.rlockredis.RLockException.LockLostException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A lock that was acquired. It is renewed until it is released, unless its lease is fixed. All
 * methods may be called from any thread.
 *
 * <p>An owner that acquires the lock again gets the same hold, and releases it as often.
 */
public final class Hold implements AutoCloseable {
    private enum State {
        HELD,
        RELEASED,
        LOST
    }

    private static final Logger log = LoggerFactory.getLogger(Hold.class);
    private static final long LONGEST_STOP_MS = 1_000;
    private static final long CLAIM_AFTER_MS = 50;
    private static final long SLACK_MS = 10; // So that holds are renewed together.
    private static final long NO_KEEP = -1;
    // The owner does not hold the key, it has another type, or the semaphore was deleted.
    private static final Set<String> LOST = Set.of("NOTOWNER", "WRONGTYPE", "NOSEMAPHORE");

    final Resource resource;
    final String owner;
    private final RLockClient client;
    private final LockOptions options;
    private final List<Long> tokens;
    private final AtomicInteger count = new AtomicInteger(1);
    private final AtomicReference<State> state = new AtomicReference<>(State.HELD);
    private final CompletableFuture<Hold> lost = new CompletableFuture<>();
    private final CompletableFuture<Void> released = new CompletableFuture<>();
    private volatile long keep = NO_KEEP;
    private volatile Deadline deadline;
    private volatile Deadline limit; // The end of a fixed lease, which the server may allow in parts only.
    private volatile Deadline due;
    private volatile boolean renewing;
    private volatile long period;
    private long pause = RLockClient.SHORTEST_PAUSE_MS; // Belongs to the client's steps.

    /** For as long as the answer has left of it. A fixed lease counts from its beginning. */
    Hold(RLockClient client, Acquisition granted, List<Long> tokens, Deadline left, Deadline begun) {
        this.client = client;
        this.resource = granted.resource;
        this.owner = granted.owner;
        this.options = granted.options;
        this.tokens = tokens;
        limit = begun.lasting(options.renewed() ? Long.MAX_VALUE : RLockClient.believed(options.leaseMillis()));
        believe(left);
        // Until then a hold ends with its claim, so that most are only released.
        due = Deadline.in(client.clock, Math.min(CLAIM_AFTER_MS, deadline.left() / 3));
    }

    /**
     * The fencing token: higher than that of every hold before it on the server. Pass it along with
     * what is written under the lock, and let the store refuse lower ones.
     *
     * @return the token; of several keys that of the first one
     */
    public long token() {
        return tokens.get(0);
    }

    /**
     * The fencing tokens of all keys.
     *
     * @return a token for each key, in their order
     */
    public List<Long> tokens() {
        return tokens;
    }

    /**
     * The keys that are held, with the prefix of the client.
     *
     * @return the keys
     */
    public List<String> keys() {
        return resource.keys();
    }

    /**
     * The name that the server knows the holder by.
     *
     * @return the owner
     */
    public String owner() {
        return owner;
    }

    /**
     * Whether the lock is held by this moment. Compares the clock, without a request to the server.
     *
     * @return false after the release, and once the lease may have ended
     */
    public boolean isHeld() {
        return state.get() == State.HELD && deadline.left() > 0;
    }

    /**
     * How long the hold is certain without another renewal.
     *
     * @return the time until the deadline, zero if it is not held
     */
    public Duration remaining() {
        return isHeld() ? Duration.ofMillis(Math.max(0, deadline.left())) : Duration.ZERO;
    }

    /**
     * Calls back once if the hold is lost before its release, on a thread of the client that only tells
     * of losses. The clock tells, so it works without a connection. If it is lost already, calls back at
     * once.
     *
     * @param listener is passed this hold
     */
    public void onLost(Consumer<? super Hold> listener) {
        lost.thenAcceptAsync(listener, client.losses);
    }

    /**
     * Releases the lock and waits for the answer, at most for the command timeout. Does nothing if it
     * was released before. A release that does not reach the server is logged; the lease ends it.
     *
     * @throws LockLostException if the hold was lost before its release
     */
    @Override
    public void close() {
        await(release(NO_KEEP));
    }

    /**
     * Releases the lock, and keeps it closed to all owners for a time, for jobs that must run at most
     * once per period. Not for read-write locks, semaphores and several keys.
     *
     * @param time how long no owner can acquire it
     * @throws IllegalStateException if the owner has acquired it more than once
     * @throws LockLostException if the hold was lost before
     */
    public void releaseAndKeep(Duration time) {
        await(release(Math.max(0, Deadline.millis(time))));
    }

    /**
     * Releases the lock. The hold counts as released when this returns.
     *
     * @return completes when the server has answered or the lease has ended; with a LockLostException
     *     if the hold was lost before
     */
    public CompletableFuture<Void> releaseAsync() {
        var released = release(NO_KEEP);
        if (released.isDone()) return released;
        // A callback that the application attaches to its future must not hold up the client's steps.
        var told = new CompletableFuture<Void>();
        released.whenCompleteAsync(RLockClient.into(told), client.executor);
        return told;
    }

    /**
     * Makes a fixed lease end later. A lease never ends earlier than it was to.
     *
     * @param lease from now on, 1 ms or more
     * @throws IllegalArgumentException if the lease is shorter
     * @throws LockLostException if the hold was lost
     * @throws RLockException if the request fails; the hold stays as it is
     */
    public void extend(Duration lease) {
        long milliseconds = LockOptions.leaseMillis(lease);
        if (isHeld()) client.ask(() -> extend(milliseconds));
        if (!isHeld()) throw lostException();
    }

    private CompletableFuture<Object> extend(long lease) {
        var asked = Deadline.in(client.clock, Math.max(lease, wanted()));
        return renewal(asked, asked.lasting(RLockClient.believed(lease)), Long.MAX_VALUE);
    }

    /** Counts a further acquisition of the owner; false if it is lost or being released. */
    boolean enter() {
        return isHeld() && count.getAndUpdate(n -> n == 0 ? 0 : n + 1) > 0;
    }

    boolean isLost() {
        look();
        return state.get() == State.LOST;
    }

    List<Resource.Place> places() {
        return resource.places(owner);
    }

    /** Relies on what an answer has left of the hold, be it more than before or less. */
    private void believe(Deadline left) {
        long certain = options.sessionLease(left.after()); // The server may end the session without our notice.
        var next = left.lasting(RLockClient.believed(certain));
        deadline = next.left() < limit.left() ? next : limit;
        period = certain / 3;
        due = left.lasting(period);
    }

    /** Ends or renews the hold if it is time, without sending; milliseconds until it is time again. */
    long look() {
        if (state.get() != State.HELD) return Long.MAX_VALUE;
        long left = deadline.left();
        if (left <= 0) {
            lose("its lease has ended");
            return Long.MAX_VALUE;
        }
        if (renewing || deadline == limit) return left;
        long early = due.left();
        if (early > Math.min(SLACK_MS, period / 5)) return Math.min(early, left);
        renewing = true;
        client.schedule(this::renew, 0); // In another thread.
        return left;
    }

    void connected() {
        if (options.session() == null || renewing || !isHeld()) return;
        renewing = true;
        renew();
    }

    /** The lease that the hold needs, also if the server allows only shorter ones. */
    private long wanted() {
        return options.renewed() ? options.leaseMillis() : Math.max(1, limit.left());
    }

    private void renew() {
        if (!isHeld()) return;
        var asked = Deadline.in(client.clock, wanted());
        client.then(renewal(asked, limit, Math.max(1, period)), (done, error) -> {
            renewing = false;
            if (error == null) {
                pause = RLockClient.SHORTEST_PAUSE_MS;
            } else if (isHeld()) {
                RLockClient.failed("RENEW of " + resource, pause, RLockException.of(error));
                due = Deadline.in(client.clock, pause);
                pause = RLockClient.longer(pause);
            }
            client.sweepIn(look());
        });
    }

    /** Asks for a lease. The answer counts up to a limit. */
    private CompletableFuture<Object> renewal(Deadline asked, Deadline upTo, long patience) {
        var call = resource.call("RENEW", owner, tokens, "PX", asked.after(), "TIMED");
        BiConsumer<Object, Throwable> answered = (reply, error) -> {
            if (error != null) {
                if (RLockException.of(error) instanceof LockLostException) lose("the server does not know it");
            } else if (isHeld()) {
                if (upTo.left() > limit.left()) limit = upTo;
                believe(asked.lasting(Long.parseLong(reply.toString())));
                client.sweepIn(look());
            }
        };
        return client.wire.send(call, patience).whenCompleteAsync(answered, client::execute);
    }

    /** Ends the belief and tells the application. */
    private void lose(String why) {
        if (!end(State.LOST)) return;
        log.warn("lost {} (token {}): {}", resource, token(), why);
        // The work stops in the meantime.
        long stop = Math.min(options.sessionLease(options.leaseMillis()) / 100, LONGEST_STOP_MS);
        client.schedule(this::sendRelease, stop);
        client.lost(this, lost);
    }

    /** The owner may acquire again as soon as the state has changed, and then waits for the answer to RELEASE. */
    private boolean end(State how) {
        client.pending(places(), released);
        return state.compareAndSet(State.HELD, how);
    }

    /** Ends it when the client is closed: to its holder that is a loss. */
    void endWithClient() {
        lose("the client was closed");
        sendRelease();
    }

    /** Releases it at once if it was lost. */
    void settle() {
        if (isLost()) sendRelease();
    }

    LockLostException lostException() {
        return new LockLostException("", "the hold of " + resource + " was lost");
    }

    private CompletableFuture<Void> release(long keep) {
        int before = count.getAndUpdate(n -> n > 1 && keep != NO_KEEP ? n : Math.max(0, n - 1));
        if (before > 1 && keep != NO_KEEP) throw new IllegalStateException(resource + " was acquired again");
        boolean lost = before > 0 && isLost();
        if (before == 1) {
            this.keep = keep;
            lost = !end(State.RELEASED);
            client.execute(this::sendRelease);
            client.leave(this);
        }
        if (lost) return CompletableFuture.failedFuture(lostException());
        return before == 1 ? released : CompletableFuture.completedFuture(null);
    }

    /** Sends it once. */
    private void sendRelease() {
        if (!client.holds.remove(this)) return;
        var words = new ArrayList<Object>();
        // Others may share the owner's name, and a repeated command must not end their holds.
        boolean shared = options.owner() != null || resource.kind() == Resource.Kind.SEMAPHORE;
        if (shared) Collections.addAll(words, "REQ", RLockClient.nextRequest());
        if (keep > 0) Collections.addAll(words, "KEEP", keep);
        if (resource.kind() == Resource.Kind.MANY) words.add("EACH");
        var call = resource.call("RELEASE", owner, tokens, words.toArray());
        long doubts = client.wire.doubts;
        // While its connection is open, a hold with a session lasts longer than the belief in it; so does a lost one.
        boolean believed = state.get() == State.RELEASED && options.session() == null;
        var until = believed ? deadline : Deadline.in(client.clock, options.leaseMillis());
        client.then(client.insist(call, until), (reply, error) -> {
            String code = error == null ? "" : RLockException.of(error).code();
            boolean unknown = LOST.contains(code) || reply instanceof List<?> left && left.contains(null);
            // One key of another type makes the server refuse all.
            for (int i = 0; code.equals("WRONGTYPE") && i < tokens.size() && tokens.size() > 1; i++) {
                var one = new Resource(Resource.Kind.MUTEX, keys().subList(i, i + 1), 1);
                client.insist(one.call("RELEASE", owner, tokens.subList(i, i + 1)), until);
            }
            if (unknown && doubts == client.wire.doubts) {
                released.completeExceptionally(lostException());
                return; // Else it was the answer to a repeated RELEASE.
            }
            if (error != null && !unknown && !code.equals("STALE")) {
                log.warn("RELEASE of {} failed; its lease ends it", resource, error);
            }
            released.complete(null);
        });
    }

    private void await(CompletableFuture<Void> answer) {
        try {
            answer.get(client.wire.timeout, TimeUnit.MILLISECONDS);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt(); // The release goes on.
        } catch (TimeoutException late) {
            log.warn("no answer to RELEASE of {} yet; the client goes on trying", resource);
        } catch (ExecutionException failed) {
            throw RLockClient.here(failed);
        }
    }
}
