package io.github.rlockredis;

import io.github.rlockredis.RLockException.UnavailableException;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.math.BigInteger;
import java.security.SecureRandom;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Makes locks. One client serves a whole application: all threads share its connection for
 * commands, and one for messages that is made at the first wait. Nothing connects before the first
 * use.
 *
 * <pre>{@code
 * RLockClient client = RLockClient.create(redisClient);
 * try (Hold hold = client.lock("orders:7").acquire()) {
 *   store.write(order, hold.token());
 * }
 * }</pre>
 *
 * <p>Addresses, credentials, TLS, database, Sentinel and cluster are those of the Lettuce client.
 * Thread-safe.
 */
public final class RLockClient implements AutoCloseable {
    static final long SHORTEST_PAUSE_MS = 50;

    private static final Logger log = LoggerFactory.getLogger(RLockClient.class);
    private static final long LONGEST_PAUSE_MS = 1_000;
    private static final int MAX_CALLBACKS = 64;
    private static final long CLOSE_SECONDS = 5;
    private static final int MAX_STEPS = 100;
    private static final long TICK_MS = 1_000;
    // From the wall clock, so that a restarted process uses higher ids than the one before.
    private static final AtomicLong REQUESTS = new AtomicLong(ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()));
    private static final AtomicLong OWNERS = new AtomicLong();
    // The ids of threads may be reused, so threads are counted.
    private static final ThreadLocal<Long> THREAD = ThreadLocal.withInitial(OWNERS::incrementAndGet);

    final Wire wire;
    final LockClock clock;

    /** Runs what the application attaches to futures, which may block. */
    final ThreadPoolExecutor executor = callbacks("rlock-callback");

    /** Tells of losses, which nothing else that blocks may hold up. */
    final ThreadPoolExecutor losses = callbacks("rlock-loss");

    final LockOptions defaults;

    /** The holds by what they hold, so that an owner's next acquisition is a re-entry. */
    private final Map<Resource.Place, Held> held = new ConcurrentHashMap<>();

    /** What owners have given back, until the server has answered. */
    private final Map<Resource.Place, CompletableFuture<?>> pending = new ConcurrentHashMap<>();

    final Set<Hold> holds = ConcurrentHashMap.newKeySet();

    // These belong to the steps, of which one runs at a time.
    final Map<Long, Acquisition> waits = new HashMap<>();

    private final String id = String.format("%032x", new BigInteger(128, new SecureRandom()));
    private final String keyPrefix;
    private final Consumer<? super Hold> lossListener;
    private final AtomicBoolean closed = new AtomicBoolean();
    private final Queue<Runnable> queue = new ConcurrentLinkedQueue<>();
    private final AtomicInteger queued = new AtomicInteger();
    private final ScheduledThreadPoolExecutor steps = thread("rlock-client");
    // Deadlines have a thread of their own, which nothing that is sent can hold up.
    private final ScheduledThreadPoolExecutor deadlines = thread("rlock-deadlines");
    private ScheduledFuture<?> sweep;

    private RLockClient(Builder builder) {
        clock = builder.clock;
        defaults = builder.defaults;
        keyPrefix = builder.keyPrefix;
        lossListener = builder.lossListener;
        wire = new Wire(builder.source, this, "rlock:" + id);
    }

    /** Threads that end when they idle, and with the client. */
    private static ThreadPoolExecutor callbacks(String name) {
        var executor = new ThreadPoolExecutor(
                MAX_CALLBACKS,
                MAX_CALLBACKS,
                10,
                TimeUnit.SECONDS,
                new LinkedBlockingQueue<>(),
                daemons(name),
                (late, closed) -> late.run());
        executor.allowCoreThreadTimeOut(true);
        return executor;
    }

    /** Runs a blocking connect in a thread of its own. */
    static void connect(Runnable connect) {
        daemons("rlock-connect").newThread(connect).start();
    }

    private static ThreadFactory daemons(String name) {
        return work -> {
            var thread = new Thread(work, name);
            thread.setDaemon(true);
            return thread;
        };
    }

    private static ScheduledThreadPoolExecutor thread(String name) {
        // Steps after the client was closed have no effect.
        var executor = new ScheduledThreadPoolExecutor(1, daemons(name), new ThreadPoolExecutor.DiscardPolicy());
        executor.setRemoveOnCancelPolicy(true);
        // Only a timer that is due before all others wakes the thread. Most are cancelled, and later than this.
        executor.scheduleAtFixedRate(() -> {}, 0, TICK_MS, TimeUnit.MILLISECONDS);
        return executor;
    }

    /**
     * A client on the server or Sentinel of a Lettuce client.
     *
     * @param client knows its RedisURI; stays open when this client closes
     * @return a client with default settings
     */
    public static RLockClient create(RedisClient client) {
        return builder(client).build();
    }

    /**
     * A client on a Redis Cluster.
     *
     * @param client stays open when this client closes; should refresh its topology
     * @return a client with default settings
     */
    public static RLockClient create(RedisClusterClient client) {
        return builder(client).build();
    }

    /**
     * A client on the server or Sentinel of a Lettuce client.
     *
     * @param client knows its RedisURI; stays open when this client closes
     * @return settings to change
     */
    public static Builder builder(RedisClient client) {
        return new Builder(new Wire.Source(
                () -> client.connect(StringCodec.UTF8), () -> client.connectPubSub(StringCodec.UTF8), null));
    }

    /**
     * A client on a Redis Cluster.
     *
     * @param client stays open when this client closes; should refresh its topology
     * @return settings to change
     */
    public static Builder builder(RedisClusterClient client) {
        return new Builder(new Wire.Source(
                () -> client.connect(StringCodec.UTF8), () -> client.connectPubSub(StringCodec.UTF8), client));
    }

    /**
     * A client on connections that the application makes, such as those of {@code MasterReplica}.
     * Each supplier is called at the first use, and again if it has failed. The client closes what it
     * gets.
     *
     * @param commands makes a connection to the master
     * @param messages makes a Pub/Sub connection to the master
     * @return settings to change
     */
    public static Builder builder(
            Supplier<? extends StatefulConnection<String, String>> commands,
            Supplier<? extends StatefulRedisPubSubConnection<String, String>> messages) {
        return new Builder(new Wire.Source(commands, messages, null));
    }

    /** The settings of a client. */
    public static final class Builder {
        private final Wire.Source source;
        private LockOptions defaults = LockOptions.DEFAULT;
        private String keyPrefix = "";
        private LockClock clock = LockClock.SYSTEM;
        private Consumer<? super Hold> lossListener = hold -> {};

        private Builder(Wire.Source source) {
            this.source = source;
        }

        /**
         * The options of locks that are not given others.
         *
         * @param options by default {@link LockOptions#DEFAULT}
         * @return this
         */
        public Builder defaults(LockOptions options) {
            this.defaults = options;
            return this;
        }

        /**
         * A text before every key.
         *
         * @param prefix by default empty
         * @return this
         */
        public Builder keyPrefix(String prefix) {
            this.keyPrefix = prefix;
            return this;
        }

        /**
         * Sets a listener for holds that are lost before their release.
         *
         * @param listener by default none; losses are logged in any case
         * @return this
         */
        public Builder onLost(Consumer<? super Hold> listener) {
            this.lossListener = listener;
            return this;
        }

        /**
         * The clocks of holds, for tests.
         *
         * @param clock by default {@link LockClock#SYSTEM}
         * @return this
         */
        public Builder clock(LockClock clock) {
            this.clock = clock;
            return this;
        }

        /**
         * Makes the client. It connects at the first use.
         *
         * @return the client
         */
        public RLockClient build() {
            return new RLockClient(this);
        }
    }

    /**
     * A mutex.
     *
     * @param key where it lives on the server
     * @return the lock
     */
    public RLock lock(String key) {
        return lock(Resource.Kind.MUTEX, key);
    }

    /**
     * A mutex whose queue survives restarts and failovers of the server.
     *
     * @param key where it lives on the server
     * @return the lock
     */
    public RLock fairLock(String key) {
        return lock(Resource.Kind.FAIR, key);
    }

    /**
     * Many readers or one writer.
     *
     * @param key where it lives on the server
     * @return the pair of locks
     */
    public RReadWriteLock readWriteLock(String key) {
        return new RReadWriteLock(lock(Resource.Kind.READ, key), lock(Resource.Kind.WRITE, key));
    }

    /**
     * Several mutexes that are acquired in one step, all or none.
     *
     * @param keys 1 to 128 keys; in a cluster with a common hash tag
     * @return the lock
     */
    public RLock multiLock(String... keys) {
        return lock(Resource.Kind.MANY, keys);
    }

    /**
     * A number of permits. It has to be made with {@link RSemaphore#init(int)} once.
     *
     * @param key where it lives on the server
     * @return the semaphore, of which one permit at a time is acquired
     */
    public RSemaphore semaphore(String key) {
        var resource = new Resource(Resource.Kind.SEMAPHORE, List.of(keyPrefix + key), 1);
        return new RSemaphore(this, resource, defaults);
    }

    private RLock lock(Resource.Kind kind, String... keys) {
        if (keys.length == 0) throw new IllegalArgumentException("no key");
        var prefixed = List.of(keys).stream().map(key -> keyPrefix + key).toList();
        return new RLock(this, new Resource(kind, prefixed, 1), defaults);
    }

    /**
     * Ends waits with a ClosedException, releases what is held, and waits for the answers for at most
     * 5 s. To a holder that still works this is a loss. Closes the connections of this client, and
     * not the Lettuce client.
     */
    @Override
    public void close() {
        if (!closed.compareAndSet(false, true)) return;
        var settled = new CompletableFuture<Void>();
        execute(() -> {
            var ended = new RLockException.ClosedException();
            List.copyOf(waits.values()).forEach(wait -> wait.finish(null, ended));
            List.copyOf(holds).forEach(Hold::endWithClient);
            CompletableFuture.allOf(pending.values().toArray(CompletableFuture[]::new))
                    .whenComplete((done, error) -> settled.complete(null));
        });
        try {
            settled.get(CLOSE_SECONDS, TimeUnit.SECONDS);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        } catch (TimeoutException | ExecutionException late) {
            log.warn("closed without an answer to all releases; the leases end what is left");
        }
        execute(() -> {
            wire.close();
            steps.shutdownNow();
        });
        deadlines.shutdownNow();
        executor.shutdown();
        losses.shutdown();
    }

    static long nextRequest() {
        return REQUESTS.incrementAndGet();
    }

    /** How long a lease is relied on: less what two clocks may drift apart. */
    static long believed(long lease) {
        return Math.max(1, lease - lease / 100 - 2);
    }

    /** Logs a failure that is followed by another attempt after a pause. Only the first of a series is a warning. */
    static void failed(String what, long pause, Throwable error) {
        if (pause == SHORTEST_PAUSE_MS) log.warn("{} failed, trying again: {}", what, error.getMessage());
        else log.debug("{} failed, trying again", what, error);
    }

    static long longer(long pause) {
        return Math.min(2 * pause, LONGEST_PAUSE_MS);
    }

    /** The error of a future, with the stack of the caller. */
    static RuntimeException here(Exception failed) {
        var error = (RuntimeException) failed.getCause();
        error.fillInStackTrace();
        return error;
    }

    /** Steps have no effect any more. */
    boolean isEnded() {
        return steps.isShutdown();
    }

    boolean isClosed() {
        return closed.get();
    }

    String threadOwner() {
        return id + ":" + THREAD.get();
    }

    String freshOwner() {
        return id + ":" + OWNERS.incrementAndGet();
    }

    /**
     * Runs a step after those before it: in this thread, or in the one that runs steps already. Steps
     * never block, and to wake a thread for each would cost more than they do.
     */
    void execute(Runnable step) {
        queue.add(step);
        if (queued.getAndIncrement() == 0) runSteps();
    }

    private void runSteps() {
        for (int i = 0; i < MAX_STEPS || isEnded(); i++) {
            guarded(queue.remove()).run();
            if (queued.decrementAndGet() == 0) return;
        }
        steps.execute(this::runSteps); // The caller has work of its own.
    }

    /** Runs a step later. If it is due when it is cancelled, it may still run. */
    Future<?> schedule(Runnable step, long milliseconds) {
        return steps.schedule(() -> execute(step), milliseconds, TimeUnit.MILLISECONDS);
    }

    /** Looks at all holds in so many milliseconds, unless it does so before. */
    synchronized void sweepIn(long milliseconds) {
        if (sweep != null && sweep.getDelay(TimeUnit.MILLISECONDS) <= milliseconds) return;
        if (sweep != null) sweep.cancel(false);
        // Timers do not count while the machine is suspended, so it sleeps for a second at most.
        long sleep = Math.max(1, Math.min(milliseconds, TICK_MS));
        sweep = deadlines.schedule(guarded(this::sweep), sleep, TimeUnit.MILLISECONDS);
    }

    private void sweep() {
        synchronized (this) {
            sweep = null;
        }
        long next = TICK_MS;
        try {
            for (Hold hold : holds) next = Math.min(next, hold.look());
        } finally {
            if (!holds.isEmpty()) sweepIn(next);
        }
    }

    /** Ends a future as another has ended. */
    static <T> BiConsumer<T, Throwable> into(CompletableFuture<T> target) {
        return (value, error) -> {
            if (error == null) target.complete(value);
            else target.completeExceptionally(error);
        };
    }

    <T> void then(CompletableFuture<T> future, BiConsumer<? super T, Throwable> step) {
        future.whenComplete((value, error) -> execute(() -> step.accept(value, error)));
    }

    private static Runnable guarded(Runnable step) {
        return () -> {
            try {
                step.run();
            } catch (RuntimeException | Error bug) {
                log.error("a step of the lock client failed", bug);
            }
        };
    }

    /** Takes a step and waits for its answer, also if the thread is interrupted. */
    Object ask(Supplier<CompletableFuture<Object>> step) {
        var answer = new CompletableFuture<Object>();
        if (isEnded()) throw new RLockException.ClosedException();
        execute(() -> then(step.get(), (reply, error) -> into(answer)
                .accept(reply, error == null ? null : RLockException.of(error))));
        try {
            return answer.join();
        } catch (CompletionException failed) {
            throw here(failed);
        }
    }

    /** The newest hold of an owner, and one before it that was lost and is not released yet. */
    private record Held(Hold newest, Hold lost) {
        Held without(Hold hold) {
            if (newest == hold) return lost == null ? null : new Held(lost, null);
            return lost == hold ? new Held(newest, null) : this;
        }
    }

    /** The newest hold that covers what is asked for, or null. */
    Hold heldBy(String owner, Resource resource) {
        var newest = resource.places(owner).stream().map(held::get);
        var holds = newest.map(it -> it == null ? null : it.newest).distinct().toList();
        if (holds.size() == 1 && resource.kind() != Resource.Kind.SEMAPHORE) return holds.get(0);
        if (holds.stream().noneMatch(hold -> hold != null && hold.isHeld())) return null;
        throw new IllegalMonitorStateException("the owner already holds a part of " + resource);
    }

    /** The hold that a granted request has led to. */
    Hold hold(Acquisition granted, List<Long> tokens, Deadline left, Deadline begun) {
        var hold = new Hold(this, granted, tokens, left, begun);
        if (granted.reentrant) {
            hold.places()
                    .forEach(place -> held.compute(
                            place, (same, before) -> new Held(hold, before == null ? null : before.newest)));
        }
        holds.add(hold);
        sweepIn(hold.look());
        return hold;
    }

    /** Its owner has released it. */
    void leave(Hold hold) {
        hold.places().forEach(place -> held.computeIfPresent(place, (same, all) -> all.without(hold)));
    }

    void lost(Hold hold, CompletableFuture<Hold> told) {
        losses.execute(() -> {
            told.complete(hold);
            lossListener.accept(hold);
        });
    }

    /** Makes the next request of an owner wait for an answer. */
    void pending(List<Resource.Place> places, CompletableFuture<?> answer) {
        for (var place : places) {
            CompletableFuture<?> all = pending.merge(place, answer, CompletableFuture::allOf);
            all.whenComplete((answered, error) -> pending.remove(place, all));
        }
    }

    /** Completes when the server has answered what an owner has given back or lost of these keys. */
    CompletableFuture<Void> settled(List<Resource.Place> places) {
        for (var place : places) {
            Held before = held.get(place);
            if (before != null) before.newest.settle();
            if (before != null && before.lost != null) before.lost.settle();
        }
        var answers = places.stream().map(pending::get).filter(Objects::nonNull);
        return CompletableFuture.allOf(answers.toArray(CompletableFuture<?>[]::new))
                .exceptionally(refused -> null);
    }

    /** Sends a command until it is answered without an error that passes. */
    CompletableFuture<Object> insist(Resource.Call call, Deadline until) {
        return insist(call, until, SHORTEST_PAUSE_MS);
    }

    private CompletableFuture<Object> insist(Resource.Call call, Deadline until, long pause) {
        var answer = new CompletableFuture<Object>();
        then(wire.send(call, until.left()), (reply, failure) -> {
            var error = failure == null ? null : RLockException.of(failure);
            if (error instanceof UnavailableException && until.left() > pause) {
                wire.doubts++;
                schedule(() -> insist(call, until, longer(pause)).whenComplete(into(answer)), pause);
            } else {
                into(answer).accept(reply, error);
            }
        });
        return answer;
    }

    // Events of the connections:

    void message(String text) {
        String[] words = text.split(" ", 3);
        var wait = waits.get(Long.parseLong(words[1]));
        if (wait != null) wait.message(words[0], words.length > 2 ? words[2] : "");
    }

    /** Messages may have been lost, on one channel or on all of them (null). */
    void interrupted(String channel) {
        List.copyOf(waits.values()).forEach(wait -> wait.interrupted(channel));
    }

    void connected() {
        List.copyOf(holds).forEach(Hold::connected);
    }

    void disconnected() {
        if (!waits.isEmpty() || !holds.isEmpty()) {
            log.warn("lost a connection to the server, with {} waits and {} holds", waits.size(), holds.size());
        }
        interrupted(null);
    }
}
