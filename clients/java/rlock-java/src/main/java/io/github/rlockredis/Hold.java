package io.github.rlockredis;

import io.github.rlockredis.RLockException.LockLostException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
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
    private static final long LONGEST_SLEEP_MS = 1_000;
    private static final long NO_KEEP = -1;
    // The owner does not hold the key, it has another type, or the semaphore was deleted.
    private static final Set<String> LOST = Set.of("NOTOWNER", "WRONGTYPE", "NOSEMAPHORE");

    final Resource resource;
    final String owner;
    private final RLockClient client;
    private final LockOptions options;
    private final List<Long> tokens;
    private final long lease;
    private final AtomicInteger count = new AtomicInteger(1);
    private final AtomicReference<State> state = new AtomicReference<>(State.HELD);
    private final CompletableFuture<Hold> lost = new CompletableFuture<>();
    private volatile Deadline deadline;
    private volatile Runnable releasing;
    private volatile Future<?> watch = CompletableFuture.completedFuture(null);
    // These belong to the client's steps.
    private Deadline limit; // The end of a fixed lease, which the server may allow in parts only.
    private boolean renewing;
    private long period;
    private Deadline due;
    private Future<?> timer = CompletableFuture.completedFuture(null);
    private long pause = RLockClient.SHORTEST_PAUSE_MS;

    /** The lease counts from the moment when it was asked for. */
    Hold(RLockClient client, Acquisition granted, List<Long> tokens, Deadline lease) {
        this.client = client;
        this.resource = granted.resource;
        this.owner = granted.owner;
        this.options = granted.options;
        this.tokens = tokens;
        this.lease = lease.after();
        this.limit = lease.lasting(options.renewed() ? Long.MAX_VALUE : RLockClient.believed(options.leaseMillis()));
        believe(lease);
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
        released.whenCompleteAsync(
                (done, error) -> {
                    if (error == null) told.complete(null);
                    else told.completeExceptionally(error);
                },
                client.executor);
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
        var asked = Deadline.in(client.clock, Math.min(Math.max(lease, wanted()), client.wire.maxLease));
        return renewal(asked, asked.lasting(RLockClient.believed(lease)), Long.MAX_VALUE)
                // The server may have refused a longer lease than it allows by now.
                .exceptionallyCompose(error ->
                        asked.after() > client.wire.maxLease ? extend(lease) : CompletableFuture.failedFuture(error));
    }

    /** Counts a further acquisition of the owner; false if it is lost or being released. */
    boolean enter() {
        return isHeld() && count.getAndUpdate(n -> n == 0 ? 0 : n + 1) > 0;
    }

    boolean isLost() {
        State now = state.get(); // Once: another thread may release it meanwhile.
        return now == State.LOST || now == State.HELD && deadline.left() <= 0;
    }

    boolean has(List<Long> others) {
        return tokens.equals(others);
    }

    /** Begins to watch the clock, and to renew. */
    void begin() {
        watch();
        renewWhenDue();
    }

    /** Relies on what an answer has left of the hold, be it more than before or less. */
    private void believe(Deadline left) {
        long certain = options.sessionLease(left.after()); // The server may end the session without our notice.
        var next = left.lasting(RLockClient.believed(certain));
        deadline = next.left() < limit.left() ? next : limit;
        period = certain / 3;
        due = left.lasting(period);
    }

    // These two run on the thread that watches deadlines, which sends nothing.
    private void watch() {
        look();
        if (isHeld()) watch = client.watch(this::watch, Math.min(deadline.left(), LONGEST_SLEEP_MS));
    }

    private void look() {
        if (!isHeld()) lose("its lease has ended", true);
    }

    // The timer does not count while the machine is suspended, so it sleeps for a second at most.
    private void renewWhenDue() {
        if (state.get() != State.HELD || deadline == limit) return;
        timer.cancel(false);
        if (due.left() <= 0) renew();
        else timer = client.schedule(this::renewWhenDue, Math.min(due.left(), LONGEST_SLEEP_MS));
    }

    void connected() {
        if (options.session() != null) renew();
    }

    /** The lease that the hold needs, also if the server allows only shorter ones. */
    private long wanted() {
        return options.renewed() ? options.leaseMillis() : Math.max(1, limit.left());
    }

    private void renew() {
        if (renewing || !isHeld()) return;
        renewing = true;
        var asked = Deadline.in(client.clock, Math.min(wanted(), client.wire.maxLease));
        client.then(renewal(asked, limit, Math.max(1, period)), (done, error) -> {
            renewing = false;
            if (error == null) {
                pause = RLockClient.SHORTEST_PAUSE_MS;
            } else if (isHeld()) {
                RLockClient.failed("RENEW of " + resource, pause, RLockException.of(error));
                due = Deadline.in(client.clock, pause);
                pause = RLockClient.longer(pause);
                renewWhenDue();
            }
        });
    }

    /** Asks for a lease. The answer counts up to a limit. */
    private CompletableFuture<Object> renewal(Deadline asked, Deadline upTo, long patience) {
        var call = resource.call("RENEW", owner, tokens, "PX", asked.after());
        BiConsumer<Object, Throwable> answered = (reply, error) -> {
            if (error != null) {
                boolean unknown = RLockException.of(error) instanceof LockLostException;
                if (unknown) lose("the server does not know it", resource.keys().size() > 1);
            } else if (isHeld()) {
                if (upTo.left() > limit.left()) limit = upTo;
                long before = deadline.left();
                believe(asked.lasting(Math.min(client.wire.maxLease, Long.parseLong(reply.toString()))));
                // Else the clock is looked at too late.
                if (deadline.left() < before) client.watch(this::look, deadline.left());
                renewWhenDue();
            }
        };
        return client.wire.send(call, patience).whenCompleteAsync(answered, client::execute);
    }

    /** Ends the belief and tells the application. */
    private boolean lose(String why, boolean settle) {
        // The owner may acquire again as soon as the state has changed, and the server may answer with the
        // hold that is settled here. So that it is not released then, the settlement has the lower number.
        long request = RLockClient.nextRequest();
        if (!state.compareAndSet(State.HELD, State.LOST)) return false;
        log.warn("lost {} (token {}): {}", resource, token(), why);
        client.executeElsewhere(() -> {
            client.holds.remove(this);
            // The work stops in the meantime.
            long pause = Math.min(options.sessionLease(lease) / 100, LONGEST_SLEEP_MS);
            if (settle) client.settle(resource, owner, 0, request, tokens, lease, pause);
        });
        client.lost(this, lost);
        return true;
    }

    /** Ends it when the client is closed: to its holder that is a loss. */
    void endWithClient() {
        long request = RLockClient.nextRequest(); // Before the owner can acquire again, as in lose.
        if (lose("the client was closed", false)) sendRelease(request, new CompletableFuture<>(), NO_KEEP);
        else if (releasing != null) releasing.run(); // Its own step would come too late.
    }

    LockLostException lostException() {
        return new LockLostException("", "the hold of " + resource + " was lost");
    }

    private CompletableFuture<Void> release(long keep) {
        long request = RLockClient.nextRequest(); // Before the owner can acquire again, as in lose.
        var done = new CompletableFuture<Void>();
        int before = count.getAndUpdate(n -> n > 1 && keep != NO_KEEP ? n : Math.max(0, n - 1));
        if (before > 1 && keep != NO_KEEP) throw new IllegalStateException(resource + " was acquired again");
        if (before != 1) {
            done.complete(null);
            return done;
        }
        look();
        releasing = () -> sendRelease(request, done, keep);
        boolean held = state.compareAndSet(State.HELD, State.RELEASED);
        resource.places(owner).forEach(place -> client.held.remove(place, this));
        if (!held) return CompletableFuture.failedFuture(lostException());
        client.execute(releasing);
        return done;
    }

    private void sendRelease(long request, CompletableFuture<Void> done, long keep) {
        if (!client.holds.remove(this)) return;
        watch.cancel(false);
        timer.cancel(false);
        var words = new ArrayList<Object>(List.of("REQ", request));
        if (keep > 0) Collections.addAll(words, "KEEP", keep);
        var call = resource.call("RELEASE", owner, tokens, words.toArray());
        long doubts = client.wire.doubts;
        var answered = new CompletableFuture<Void>();
        client.then(answered, (released, error) -> {
            String code = error instanceof RLockException refused ? refused.code() : "";
            boolean lost = LOST.contains(code);
            // Some keys may still be held: RELEASE of several frees none if one of them is lost or was acquired again.
            if (error != null && tokens.size() > 1) client.settle(resource, owner, 0, request, tokens, lease);
            if (!lost) {
                boolean shared = code.equals("STALE");
                if (error != null && !shared) log.warn("RELEASE of {} failed; its lease ends it", resource, error);
                done.complete(null);
            } else if (doubts != client.wire.doubts) {
                done.complete(null); // It was the answer to a repeated RELEASE.
            } else {
                done.completeExceptionally(lostException());
            }
        });
        // While its connection is open, a hold with a session lasts longer than the belief in it.
        var limit = options.session() == null ? deadline : Deadline.in(client.clock, lease);
        client.insist(resource.places(owner), List.of(call), limit, RLockClient.SHORTEST_PAUSE_MS, answered);
    }

    private void await(CompletableFuture<Void> released) {
        try {
            released.get(client.wire.timeout, TimeUnit.MILLISECONDS);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt(); // The release goes on.
        } catch (TimeoutException late) {
            log.warn("no answer to RELEASE of {} yet; the client goes on trying", resource);
        } catch (ExecutionException failed) {
            throw RLockClient.here(failed);
        }
    }
}
