package io.github.rlockredis;

import static io.github.rlockredis.TestServer.await;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rlockredis.RLockException.ClosedException;
import io.github.rlockredis.RLockException.DeadlockException;
import io.github.rlockredis.RLockException.LockLostException;
import io.github.rlockredis.RLockException.LockTimeoutException;
import io.github.rlockredis.RLockException.ModuleMissingException;
import io.github.rlockredis.RLockException.RefusedException;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.sync.RedisCommands;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.regex.Pattern;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

@Timeout(60)
class LockTest {
    private static TestServer server;
    private static RedisClient redisClient;
    private static RedisCommands<String, String> redis;
    private RLockClient client;
    private RLockClient other;

    @BeforeAll
    static void startServer() throws Exception {
        server = new TestServer();
        redisClient = RedisClient.create(server.url());
        redis = redisClient.connect().sync();
    }

    @AfterAll
    static void endServer() throws Exception {
        redisClient.shutdown(0, 1, TimeUnit.SECONDS);
        server.close();
    }

    @BeforeEach
    void makeClients() {
        redis.flushall();
        client = RLockClient.create(redisClient);
        other = RLockClient.create(redisClient);
    }

    @AfterEach
    void closeClients() {
        client.close();
        other.close();
    }

    private static void assertNothingLeft(String key) throws Exception {
        await("nothing is left of " + key, () -> Probe.holders(redis, key) == 0 && Probe.waiters(redis, key) == 0);
    }

    private static <T> CompletableFuture<T> inThread(Callable<T> work) {
        var result = new CompletableFuture<T>();
        new Thread(() -> {
                    try {
                        result.complete(work.call());
                    } catch (Throwable failed) {
                        result.completeExceptionally(failed);
                    }
                })
                .start();
        return result;
    }

    private static void awaitWaiters(String key, int count) throws Exception {
        await(count + " wait for " + key, () -> Probe.waiters(redis, key) == count);
    }

    @Test
    void every_kind_is_acquired_and_released_with_rising_tokens() throws Exception {
        client.semaphore("s").init(1);
        var kinds = List.of(
                client.lock("m"),
                client.fairLock("f"),
                client.readWriteLock("r").readLock(),
                client.readWriteLock("w").writeLock(),
                client.semaphore("s"),
                client.multiLock("a", "b"));
        long last = 0;
        for (Lockable kind : kinds) {
            Hold hold = kind.tryAcquire().orElseThrow();
            assertTrue(hold.token() > last);
            last = hold.token();
            assertTrue(hold.isHeld());
            assertTrue(hold.remaining().toMillis() > 1_000);
            assertEquals(1, Probe.holders(redis, hold.keys().get(0)));
            hold.close();
            assertFalse(hold.isHeld());
            assertEquals(Duration.ZERO, hold.remaining());
            assertEquals(0, Probe.holders(redis, hold.keys().get(0)));
            hold.close(); // Has no effect.
        }
    }

    @Test
    void every_kind_waits_and_is_handed_over() throws Exception {
        client.semaphore("s").init(1);
        var holders = List.of(
                client.lock("m"),
                client.fairLock("f"),
                client.readWriteLock("r").writeLock(),
                client.readWriteLock("w").writeLock(),
                client.semaphore("s"),
                client.multiLock("a", "b"));
        var waiters = List.of(
                other.lock("m"),
                other.fairLock("f"),
                other.readWriteLock("r").readLock(),
                other.readWriteLock("w").writeLock(),
                other.semaphore("s"),
                other.multiLock("b", "a"));
        for (int i = 0; i < holders.size(); i++) {
            Hold hold = holders.get(i).acquire();
            assertEquals(Optional.empty(), waiters.get(i).tryAcquire());
            var waiter = waiters.get(i).acquireAsync();
            awaitWaiters(hold.keys().get(0), 1);
            hold.close();
            Hold next = waiter.get(10, TimeUnit.SECONDS);
            assertTrue(next.token() > hold.token());
            next.close();
            assertNothingLeft(hold.keys().get(0));
        }
    }

    @Test
    void a_wait_that_times_out_leaves_nothing() throws Exception {
        Hold hold = client.lock("k").acquire();
        assertFalse(other.lock("k").tryLock(100, TimeUnit.MILLISECONDS));
        assertThrows(LockTimeoutException.class, () -> other.lock("k").acquire(Duration.ofMillis(50)));
        assertEquals(0, Probe.waiters(redis, "k"));
        hold.close();
        assertNothingLeft("k");
    }

    @Test
    void the_longest_timeout_waits() throws Exception {
        Hold hold = client.lock("k").acquire();
        var waiter = inThread(() -> other.lock("k").tryLock(Long.MAX_VALUE, TimeUnit.MILLISECONDS));
        awaitWaiters("k", 1);
        hold.close();
        assertTrue(waiter.get(10, TimeUnit.SECONDS));
    }

    /** More than 365 days, such as {@code ChronoUnit.FOREVER}, count as 365 days; as a wait they have no limit. */
    @Test
    void the_longest_times_are_accepted_everywhere() throws Exception {
        Duration forever = ChronoUnit.FOREVER.getDuration();
        Hold other = client.fairLock("k").acquire();
        var options = LockOptions.DEFAULT.withSession(forever).withGrace(forever);
        var waiter = client.fairLock("k").with(options.withFixedLease(forever)).tryAcquireAsync(forever);
        awaitWaiters("k", 1);
        other.close();
        try (Hold hold = waiter.get(10, TimeUnit.SECONDS).orElseThrow()) {
            assertClaimedForAYear(hold);
            hold.extend(forever);
            assertYear(hold.remaining().toMillis());
        }
        try (Hold hold = client.fairLock("k").with(options.withLease(forever)).acquire(forever)) {
            assertClaimedForAYear(hold);
        }
        Hold hold = client.lock("k").tryAcquire(forever).orElseThrow();
        hold.releaseAndKeep(forever);
        assertYear((Long) Probe.one(redis, "RLOCK.PTTL", "k"));
        RLock lock = client.lock("l");
        assertTrue(lock.tryLock(Long.MAX_VALUE, Long.MAX_VALUE, TimeUnit.DAYS));
        await("it is claimed", () -> (Long) Probe.one(redis, "RLOCK.PTTL", "l") > 2_000);
        assertYear((Long) Probe.one(redis, "RLOCK.PTTL", "l"));
        lock.unlock();
        lock.lock(Long.MAX_VALUE, TimeUnit.DAYS);
        lock.unlock();
        client.semaphore("s").init(1, forever);
        assertTrue(Probe.ask(redis, "RSEMAPHORE.INFO", "s").contains(Deadline.YEAR_MS));
    }

    /** The hold has not ended with its claim, so the lease counts. */
    private static void assertClaimedForAYear(Hold hold) throws Exception {
        await("it is claimed", () -> hold.remaining().toMillis() > 2_000);
        assertYear(hold.remaining().toMillis());
    }

    private static void assertYear(long milliseconds) {
        long year = TimeUnit.DAYS.toMillis(365);
        assertTrue(milliseconds <= year && milliseconds > year * 9 / 10, milliseconds + " ms");
    }

    @Test
    void zero_and_negative_times_have_one_meaning() throws Exception {
        Duration past = ChronoUnit.FOREVER.getDuration().negated();
        for (Duration time : List.of(Duration.ZERO, Duration.ofNanos(-1), Duration.ofMillis(-1), past)) {
            // They try once.
            try (Hold hold = other.lock("k").acquire(time)) {
                assertEquals(Optional.empty(), client.lock("k").tryAcquire(time));
                assertEquals(
                        Optional.empty(), client.lock("k").tryAcquireAsync(time).get(10, TimeUnit.SECONDS));
                assertThrows(LockTimeoutException.class, () -> client.lock("k").acquire(time));
            }
            // They keep nothing closed, and do not end a semaphore.
            other.lock("k").acquire().releaseAndKeep(time);
            assertNothingLeft("k");
            client.semaphore("s").init(1, time);
        }
        assertFalse(Probe.ask(redis, "RSEMAPHORE.INFO", "s").contains("idle-ms"));
        try (Hold hold = other.lock("k").acquire()) {
            assertFalse(client.lock("k").tryLock(Long.MIN_VALUE, TimeUnit.DAYS));
            for (Duration time : List.of(Duration.ofNanos(999_999), Duration.ZERO, Duration.ofNanos(-1), past)) {
                refused("lease", () -> LockOptions.DEFAULT.withLease(time));
                refused("lease", () -> LockOptions.DEFAULT.withFixedLease(time));
                refused("session", () -> LockOptions.DEFAULT.withSession(time));
                refused("lease", () -> hold.extend(time));
            }
            refused("session", () -> LockOptions.DEFAULT.withSession(Duration.ofMillis(9)));
            refused("grace", () -> LockOptions.DEFAULT.withGrace(Duration.ofNanos(-1)));
            refused("grace", () -> LockOptions.DEFAULT.withGrace(past));
            for (long lease : new long[] {0, -2, Long.MIN_VALUE}) {
                refused("lease", () -> client.lock("l").tryLock(1, lease, TimeUnit.MILLISECONDS));
                refused("lease", () -> client.lock("l").lock(lease, TimeUnit.MILLISECONDS));
            }
            assertTrue(hold.isHeld());
        }
        assertNothingLeft("l");
    }

    private static void refused(String what, Executable call) {
        String message = assertThrows(IllegalArgumentException.class, call).getMessage();
        assertTrue(message.startsWith(what + " is PT") && message.contains("; expected "), message);
    }

    @Test
    void a_command_timeout_of_zero_is_no_limit() throws Exception {
        try (var proxy = new TestServer.Proxy(server)) {
            proxy.delay(50);
            var far = RedisClient.create(proxy.url());
            for (Duration timeout : List.of(Duration.ZERO, Duration.ofDays(1_000))) {
                var builder = RLockClient.builder(
                        () -> {
                            var connection = far.connect();
                            connection.setTimeout(timeout);
                            return connection;
                        },
                        far::connectPubSub);
                try (var locks = builder.build()) {
                    locks.lock("k").tryAcquire().orElseThrow().close();
                }
            }
            far.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }

    @Test
    void reentry_is_counted_in_the_client() throws Exception {
        RLock lock = client.lock("k");
        lock.lock();
        assertTrue(lock.tryLock());
        try (Hold hold = lock.acquire()) {
            assertEquals(1L, Probe.one(redis, "RLOCK.HOLDS", "k", hold.owner()));
            assertEquals(lock.token(), hold.token());
        }
        assertSame(lock.acquire(), lock.acquire(Duration.ofSeconds(1)));
        for (int i = 0; i < 3; i++) lock.unlock();
        assertTrue(lock.isHeldByCurrentThread());
        assertFalse(inThread(() -> lock.tryLock()).get());
        lock.unlock();
        assertFalse(lock.isHeldByCurrentThread());
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertNothingLeft("k");
    }

    @Test
    void only_the_holding_thread_unlocks() throws Exception {
        RLock lock = client.lock("k");
        lock.lock();
        var failure = assertThrows(ExecutionException.class, () -> inThread(() -> {
                    lock.unlock();
                    return null;
                })
                .get());
        assertEquals(IllegalMonitorStateException.class, failure.getCause().getClass());
        assertTrue(lock.isHeldByCurrentThread());
        lock.unlock();
    }

    @Test
    void a_hold_outlives_its_thread_and_any_thread_releases_it() throws Exception {
        Hold hold = inThread(() -> client.lock("k").acquire()).get(10, TimeUnit.SECONDS);
        assertTrue(hold.isHeld());
        assertEquals(Optional.empty(), client.lock("k").tryAcquire());
        hold.close();
        assertNothingLeft("k");
        client.lock("k").tryAcquire().orElseThrow().close();
    }

    @Test
    void what_follows_a_release_may_block() throws Exception {
        Hold hold = client.lock("first").acquire();
        var next = hold.releaseAsync().thenApply(released -> client.lock("second")
                .acquireAsync()
                .orTimeout(5, TimeUnit.SECONDS)
                .join());
        next.get(10, TimeUnit.SECONDS).close();
    }

    @Test
    void async_acquisitions_have_owners_of_their_own_unless_named() throws Exception {
        RLock lock = client.lock("k");
        Hold first = lock.acquireAsync().get();
        assertEquals(Optional.empty(), lock.tryAcquireAsync(Duration.ZERO).get());
        first.releaseAsync().get();
        RLock named = lock.with(LockOptions.DEFAULT.withOwner("alice").withNote("a note"));
        Hold alice = named.acquireAsync().get();
        assertSame(alice, named.tryAcquireAsync(Duration.ZERO).get().orElseThrow());
        assertEquals(1L, Probe.one(redis, "RLOCK.HOLDS", "k", "alice"));
        assertTrue(Probe.ask(redis, "RLOCK.INFO", "k").toString().contains("a note"));
        alice.close();
        assertTrue(alice.isHeld());
        alice.close();
        assertNothingLeft("k");
    }

    @Test
    void concurrent_requests_of_one_named_owner_make_one_hold() throws Exception {
        RLock named = client.lock("k").with(LockOptions.DEFAULT.withOwner("alice"));
        named.acquireAsync().get().close(); // Connects, so that the requests arrive in their order.
        var holds = List.of(named.acquireAsync(), named.acquireAsync(), named.acquireAsync());
        for (var hold : holds) assertSame(holds.get(0).get(), hold.get());
        for (var hold : holds) hold.get().close();
        assertFalse(holds.get(0).get().isHeld());
        assertNothingLeft("k");
    }

    @Test
    void a_part_of_several_keys_cannot_be_held_already() throws Exception {
        client.lock("a").lock();
        assertThrows(IllegalMonitorStateException.class, () -> client.multiLock("a", "b")
                .tryAcquire());
        client.lock("a").unlock();
        Hold both = client.multiLock("a", "b").acquire();
        client.lock("a").lock(); // Covered by the hold of both.
        client.lock("a").unlock();
        assertTrue(both.isHeld());
        assertEquals(2, both.tokens().size());
        both.close();
        assertNothingLeft("a");
        assertNothingLeft("b");
    }

    @Test
    void threads_exclude_each_other() throws Exception {
        var counter = new int[1];
        var threads = Executors.newFixedThreadPool(8);
        try {
            var done = new CompletableFuture<?>[8];
            for (int i = 0; i < done.length; i++) {
                RLock lock = (i % 2 == 0 ? client : other).lock("k");
                done[i] = CompletableFuture.runAsync(
                        () -> {
                            for (int n = 0; n < 25; n++) {
                                lock.lock();
                                try {
                                    int before = counter[0];
                                    Thread.yield();
                                    counter[0] = before + 1;
                                } finally {
                                    lock.unlock();
                                }
                            }
                        },
                        threads);
            }
            CompletableFuture.allOf(done).get(40, TimeUnit.SECONDS);
        } finally {
            threads.shutdownNow();
        }
        assertEquals(200, counter[0]);
        assertNothingLeft("k");
    }

    /** Needs Java 21: {@code mvn test -Djvm=/path/to/a/newer/java}. */
    @Test
    void virtual_threads_exclude_each_other() throws Exception {
        java.util.concurrent.ExecutorService threads;
        try {
            threads = (java.util.concurrent.ExecutorService)
                    Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        } catch (NoSuchMethodException tooOld) {
            org.junit.jupiter.api.Assumptions.abort("this Java has no virtual threads");
            return;
        }
        var counter = new int[1];
        var lock = client.lock("k");
        // Many more than there are carrier threads: with pinned ones no thread could unlock.
        var done = new CompletableFuture<?>[200];
        for (int i = 0; i < done.length; i++) {
            done[i] = CompletableFuture.runAsync(
                    () -> {
                        lock.lock();
                        try {
                            counter[0]++;
                        } finally {
                            lock.unlock();
                        }
                    },
                    threads);
        }
        CompletableFuture.allOf(done).get(40, TimeUnit.SECONDS);
        threads.shutdown();
        assertEquals(done.length, counter[0]);
        assertNothingLeft("k");
    }

    @Test
    void a_fixed_lease_is_not_renewed_and_its_loss_is_told() throws Exception {
        var told = new CompletableFuture<Hold>();
        try (var listening =
                RLockClient.builder(redisClient).onLost(told::complete).build()) {
            RLock lock = listening.lock("k");
            assertTrue(lock.tryLock(1_000, 300, TimeUnit.MILLISECONDS));
            long token = lock.token();
            assertEquals(token, told.get(10, TimeUnit.SECONDS).token());
            assertFalse(lock.isHeldByCurrentThread());
            assertThrows(LockLostException.class, lock::unlock);
            lock.lock();
            lock.unlock();
        }
        assertNothingLeft("k");
    }

    @Test
    void owner_of_a_lost_hold_gets_a_new_one() throws Exception {
        var clock = new TestClock();
        try (var sleeper = RLockClient.builder(redisClient).clock(clock).build()) {
            sleeper.semaphore("s").init(1);
            var named = LockOptions.DEFAULT.withOwner("alice");
            RLock lock = sleeper.lock("k");
            for (Lockable lockable : List.of(
                    lock,
                    lock.with(named),
                    sleeper.fairLock("f"),
                    sleeper.readWriteLock("w").writeLock(),
                    sleeper.multiLock("a", "b"),
                    sleeper.semaphore("s").with(named))) {
                Hold first = lockable.acquire();
                clock.advance(31_000); // The server still has it.
                Hold next = lockable.acquire();
                assertTrue(next.token() > first.token(), () -> "of a " + lockable.resource);
                assertFalse(first.isHeld());
                assertThrows(LockLostException.class, first::close);
                assertTrue(next.isHeld());
                next.close();
                for (String key : next.keys()) assertNothingLeft(key);
            }
        }
    }

    @Test
    void unlock_releases_the_newest_hold_first_and_reports_each_lost_one() throws Exception {
        RLock lock = client.lock("k");
        lock.lock(300, TimeUnit.MILLISECONDS);
        lock.lock();
        await("it is lost", () -> !lock.isHeldByCurrentThread());
        lock.lock();
        assertTrue(lock.isHeldByCurrentThread());
        lock.unlock();
        assertThrows(LockLostException.class, lock::unlock);
        assertThrows(LockLostException.class, lock::unlock);
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertNothingLeft("k");
    }

    @Test
    void hold_is_claimed_unless_it_is_released_soon() throws Exception {
        for (var options : List.of(LockOptions.DEFAULT, LockOptions.DEFAULT.withFixedLease(Duration.ofSeconds(20)))) {
            try (Hold first = client.lock("k").acquire()) {
                var waiter = other.lock("k").with(options).acquireAsync();
                awaitWaiters("k", 1);
                first.close();
                Hold hold = waiter.get(10, TimeUnit.SECONDS);
                assertTrue((Long) Probe.one(redis, "RLOCK.PTTL", "k") <= 2_000);
                await("it is claimed", () -> hold.remaining().toMillis() > 10_000);
                assertTrue((Long) Probe.one(redis, "RLOCK.PTTL", "k") <= options.leaseMillis());
                hold.close();
            }
        }
    }

    @Test
    void short_holds_need_two_commands() throws Exception {
        client.lock("k").acquire(Duration.ofSeconds(5)).close();
        var before = redis.info("commandstats");
        for (int i = 0; i < 20; i++)
            client.lock("k").acquire(Duration.ofSeconds(5)).close();
        var after = redis.info("commandstats");
        assertEquals(20, calls(after, "RLOCK.ACQUIRE") - calls(before, "RLOCK.ACQUIRE"));
        assertEquals(20, calls(after, "RLOCK.RELEASE") - calls(before, "RLOCK.RELEASE"));
        for (String other : List.of("RLOCK.RENEW", "RLOCK.CANCEL")) {
            assertEquals(calls(before, other), calls(after, other), other);
        }
    }

    private static int calls(String stats, String command) {
        var calls = Pattern.compile("cmdstat_" + command + ":calls=(\\d+)", Pattern.CASE_INSENSITIVE)
                .matcher(stats);
        return calls.find() ? Integer.parseInt(calls.group(1)) : 0;
    }

    @Test
    void a_short_lease_is_renewed() throws Exception {
        try (Hold hold = client.lock("k").with(lease(1_500)).acquire()) {
            Thread.sleep(3_000);
            int holders = Probe.holders(redis, "k");
            assertTrue(hold.isHeld());
            assertEquals(1, holders);
        }
    }

    private static LockOptions lease(long milliseconds) {
        return LockOptions.DEFAULT.withLease(Duration.ofMillis(milliseconds));
    }

    @Test
    void a_hold_that_was_taken_away_is_lost() throws Exception {
        Hold hold = client.lock("k").with(lease(900)).acquire();
        var lost = new CompletableFuture<Hold>();
        hold.onLost(lost::complete);
        redis.del("k");
        assertSame(hold, lost.get(10, TimeUnit.SECONDS));
        assertThrows(LockLostException.class, hold::close);
        var late = new CompletableFuture<Hold>();
        hold.onLost(late::complete);
        assertSame(hold, late.get(10, TimeUnit.SECONDS));
    }

    @Test
    void continuations_that_block_delay_neither_losses_nor_connections() throws Exception {
        var told = new CompletableFuture<Hold>();
        var go = new CountDownLatch(1);
        try (var listening =
                RLockClient.builder(redisClient).onLost(told::complete).build()) {
            Hold hold = listening.lock("k").with(lease(900)).tryAcquire().orElseThrow();
            var heard = new CompletableFuture<Hold>();
            hold.onLost(heard::complete);
            var blocked = new AtomicInteger();
            // A future that is done before its continuation is given to it would run it in this thread.
            Probe.ask(redis, "CLIENT", "PAUSE", "10000", "WRITE");
            for (int i = 0; i < 100; i++) {
                listening.lock("k" + i).tryAcquireAsync(Duration.ZERO).thenAccept(acquired -> {
                    blocked.incrementAndGet();
                    try {
                        go.await();
                    } catch (InterruptedException interrupted) {
                        Thread.currentThread().interrupt();
                    }
                });
            }
            Probe.ask(redis, "CLIENT", "UNPAUSE");
            await("all threads for continuations are blocked", () -> blocked.get() == 64);
            redis.del("k");
            assertSame(hold, told.get(10, TimeUnit.SECONDS));
            assertSame(hold, heard.get(10, TimeUnit.SECONDS));
            // The first wait connects to receive messages.
            listening.lock("m").acquire(Duration.ofSeconds(10)).close();
        } finally {
            go.countDown();
        }
    }

    @Test
    void a_hold_is_lost_if_the_server_does_not_extend_it() throws Exception {
        Hold hold = client.lock("k")
                .with(LockOptions.DEFAULT.withFixedLease(Duration.ofSeconds(60)))
                .acquire();
        var lost = new CompletableFuture<Hold>();
        hold.onLost(lost::complete);
        redis.del("k");
        assertThrows(LockLostException.class, () -> hold.extend(Duration.ofSeconds(90)));
        assertFalse(hold.isHeld());
        assertSame(hold, lost.get(10, TimeUnit.SECONDS));
    }

    @Test
    void a_future_that_ends_in_any_way_withdraws_its_request() throws Exception {
        Hold hold = client.lock("k").acquire();
        var waiter = other.lock("k").acquireAsync();
        awaitWaiters("k", 1);
        waiter.completeExceptionally(new TimeoutException()); // As orTimeout does.
        awaitWaiters("k", 0);
        hold.close();
        assertNothingLeft("k");
    }

    @Test
    void a_closed_client_completes_futures() throws Exception {
        client.close();
        for (int i = 0; i < 2; i++) {
            var failure = assertThrows(
                    ExecutionException.class,
                    () -> client.lock("k").acquireAsync().get(10, TimeUnit.SECONDS));
            assertEquals(ClosedException.class, failure.getCause().getClass());
        }
    }

    @Test
    void a_release_tells_that_the_hold_was_taken_away() throws Exception {
        Hold hold = client.lock("k").acquire();
        redis.del("k");
        assertThrows(LockLostException.class, hold::close);
    }

    @Test
    void every_release_tells_that_its_key_is_gone_or_of_another_type() throws Exception {
        List<Runnable> changes = List.of(() -> redis.del("k"), () -> redis.set("k", "text"), () -> {
            redis.del("k");
            Probe.ask(redis, "RFAIRLOCK.ACQUIRE", "k", "another");
        });
        List<Consumer<Hold>> releases = List.of(Hold::close, hold -> hold.releaseAndKeep(Duration.ZERO), hold -> {
            try {
                hold.releaseAsync().join();
            } catch (CompletionException failed) {
                throw (RuntimeException) failed.getCause();
            }
        });
        for (Runnable change : changes) {
            for (var release : releases) {
                for (Lockable lock : List.of(
                        client.lock("k"),
                        client.fairLock("k"),
                        client.readWriteLock("k").readLock(),
                        client.readWriteLock("k").writeLock(),
                        client.multiLock("k", "l"),
                        client.semaphore("k"))) {
                    redis.flushall();
                    if (lock instanceof RSemaphore semaphore) semaphore.init(2);
                    Hold hold = lock.acquire();
                    change.run();
                    assertThrows(LockLostException.class, () -> release.accept(hold), () -> "of a " + lock.resource);
                    await("the other key is free", () -> Probe.holders(redis, "l") == 0);
                }
            }
        }
        RLock lock = client.lock("u");
        lock.lock();
        redis.set("u", "text");
        assertThrows(LockLostException.class, lock::unlock);
    }

    @Test
    void permits_below_one_are_refused() {
        var semaphore = client.semaphore("s");
        for (int permits : new int[] {0, -1, Integer.MIN_VALUE}) {
            for (Executable call :
                    List.<Executable>of(() -> semaphore.init(permits), () -> semaphore.withPermits(permits))) {
                String message =
                        assertThrows(IllegalArgumentException.class, call).getMessage();
                assertEquals("permits is " + permits + "; expected 1 or more", message);
            }
        }
    }

    @Test
    void a_release_of_several_keys_frees_the_rest_if_one_was_taken_away() throws Exception {
        Hold hold = client.multiLock("a", "b").acquire();
        redis.del("a");
        assertThrows(LockLostException.class, hold::close);
        assertNothingLeft("b");
    }

    @Test
    void a_hold_is_lost_when_the_process_has_slept() throws Exception {
        var clock = new TestClock();
        try (var sleeper = RLockClient.builder(redisClient).clock(clock).build()) {
            Hold hold = sleeper.lock("k").acquire();
            var lost = new CompletableFuture<Hold>();
            hold.onLost(lost::complete);
            clock.advance(31_000);
            assertFalse(hold.isHeld());
            assertSame(hold, lost.get(10, TimeUnit.SECONDS));
            // The clock of the server has not advanced, so the client released the hold there.
            assertNothingLeft("k");
            assertThrows(LockLostException.class, hold::close);
        }
    }

    @Test
    void scopes_throw_the_error_of_the_work_or_else_the_loss() throws Exception {
        assertEquals("done", client.lock("k").callLocked(() -> "done"));
        assertThrows(LockLostException.class, () -> client.lock("k").callLocked(() -> {
            redis.del("k");
            return "done";
        }));
        var failed =
                assertThrows(java.io.IOException.class, () -> client.lock("k").callLocked(() -> {
                    redis.del("k");
                    throw new java.io.IOException("of the work");
                }));
        assertEquals(LockLostException.class, failed.getSuppressed()[0].getClass());
        var failure = assertThrows(java.io.IOException.class, () -> {
            try (Hold hold = client.lock("k").acquire()) {
                redis.del("k");
                throw new java.io.IOException("of the work");
            }
        });
        assertEquals(LockLostException.class, failure.getSuppressed()[0].getClass());
        assertThrows(LockLostException.class, () -> {
            try (Hold hold = client.lock("k").acquire()) {
                redis.del("k");
            }
        });
    }

    @Test
    void work_does_not_begin_with_a_hold_that_was_lost_meanwhile() throws Exception {
        var slept = new AtomicReference<Thread>();
        // To this thread it is a minute later, as if it had slept before it saw the grant.
        var clock = new LockClock() {
            @Override
            public long nanoTime() {
                long late = Thread.currentThread() == slept.get() ? TimeUnit.MINUTES.toNanos(1) : 0;
                return System.nanoTime() + late;
            }
        };
        try (var sleeper = RLockClient.builder(redisClient).clock(clock).build()) {
            RLock lock = sleeper.lock("k");
            for (Callable<?> locked : List.<Callable<?>>of(
                    () -> lock.callLocked(() -> "begun"), () -> lock.tryLock(1, TimeUnit.MINUTES), () -> {
                        lock.lock();
                        return "begun";
                    })) {
                Hold hold = other.lock("k").acquire();
                var work = new FutureTask<Object>(locked::call);
                var thread = new Thread(work);
                thread.start();
                awaitWaiters("k", 1);
                slept.set(thread);
                hold.close();
                var failed = assertThrows(ExecutionException.class, () -> work.get(10, TimeUnit.SECONDS));
                assertEquals(LockLostException.class, failed.getCause().getClass());
                assertNothingLeft("k");
            }
        }
    }

    @Test
    void an_interrupt_withdraws_the_request() throws Exception {
        Hold hold = client.lock("k").acquire();
        var thread = new AtomicReference<Thread>();
        var waiter = inThread(() -> {
            thread.set(Thread.currentThread());
            return other.lock("k").acquire();
        });
        awaitWaiters("k", 1);
        thread.get().interrupt();
        var failure = assertThrows(ExecutionException.class, waiter::get);
        assertEquals(InterruptedException.class, failure.getCause().getClass());
        awaitWaiters("k", 0);
        hold.close();
        assertNothingLeft("k");
    }

    /** The server still knows the other key, and refuses a request for keys of which the owner holds some. */
    @Test
    void several_keys_are_acquired_again_at_once_after_one_was_taken_away() throws Exception {
        var lock = client.multiLock("a", "b");
        for (boolean lostBefore : List.of(false, true)) {
            Hold hold = lock.acquire();
            redis.del("b");
            if (lostBefore) assertThrows(LockLostException.class, () -> hold.extend(Duration.ofSeconds(30)));
            assertThrows(LockLostException.class, hold::close);
            lock.acquire().close();
        }
        assertNothingLeft("a");
        assertNothingLeft("b");
    }

    @Test
    void an_interrupted_thread_holds_nothing() throws Exception {
        var thread = Thread.currentThread();
        for (int i = 0; i < 1_000; i++) {
            long pause = ThreadLocalRandom.current().nextLong(300_000);
            var interrupt = CompletableFuture.runAsync(() -> {
                LockSupport.parkNanos(pause);
                thread.interrupt();
            });
            try {
                client.multiLock("a", "b").acquire().close();
            } catch (InterruptedException interrupted) {
                client.multiLock("b", "c").acquire().close();
            }
            interrupt.join();
            Thread.interrupted();
        }
        assertNothingLeft("b");
    }

    @Test
    void lock_outlasts_an_interrupt() throws Exception {
        Hold hold = client.lock("k").acquire();
        var thread = new AtomicReference<Thread>();
        var waiter = inThread(() -> {
            thread.set(Thread.currentThread());
            Lock lock = other.lock("k");
            lock.lock();
            boolean interrupted = Thread.interrupted();
            lock.unlock();
            return interrupted;
        });
        awaitWaiters("k", 1);
        thread.get().interrupt();
        hold.close();
        assertTrue(waiter.get());
        assertNothingLeft("k");
    }

    @Test
    void a_request_cancelled_at_any_moment_leaves_nothing() throws Exception {
        for (int i = 0; i < 60; i++) {
            Hold hold = i % 3 == 0 ? null : client.lock("k").acquire();
            var request = other.lock("k").acquireAsync();
            long pause = ThreadLocalRandom.current().nextLong(3_000_000);
            TimeUnit.NANOSECONDS.sleep(pause);
            if (hold != null && i % 3 == 1) hold.releaseAsync();
            request.cancel(true);
            if (hold != null && i % 3 == 2) hold.close();
            if (request.isCancelled()) assertThrows(java.util.concurrent.CancellationException.class, request::join);
            else request.join().close();
            assertNothingLeft("k");
        }
    }

    @Test
    void closing_leaves_nothing() throws Exception {
        Hold mine = client.lock("mine").acquire();
        Hold theirs = other.lock("theirs").acquire();
        var waiter = client.lock("theirs").acquireAsync();
        awaitWaiters("theirs", 1);
        int before = Thread.activeCount();
        client.close();
        assertFalse(mine.isHeld());
        var failure = assertThrows(CompletionException.class, waiter::join);
        assertEquals(ClosedException.class, failure.getCause().getClass());
        assertNothingLeft("mine");
        awaitWaiters("theirs", 0);
        assertThrows(ClosedException.class, () -> client.lock("mine").acquire());
        theirs.close();
        await("its threads have ended", () -> Thread.activeCount() < before);
        assertEquals("PONG", redis.ping());
    }

    @Test
    void a_release_at_the_moment_of_closing_is_sent() throws Exception {
        for (int i = 0; i < 300; i++) {
            var closing = RLockClient.create(redisClient);
            Hold hold = closing.lock("k").acquire(Duration.ofSeconds(10));
            var begun = new CountDownLatch(1);
            var released = CompletableFuture.runAsync(() -> {
                begun.countDown();
                hold.releaseAsync();
            });
            begun.await();
            LockSupport.parkNanos(ThreadLocalRandom.current().nextLong(100_000));
            closing.close();
            released.handle((done, lost) -> done).get(10, TimeUnit.SECONDS);
            assertEquals(0, Probe.holders(redis, "k"), "round " + i);
        }
    }

    @Test
    void server_errors_are_typed() throws Exception {
        redis.set("text", "no lock");
        assertEquals(
                "WRONGTYPE",
                assertThrows(RefusedException.class, () -> client.lock("text").acquire())
                        .code());
        assertEquals(
                "NOSEMAPHORE",
                assertThrows(RefusedException.class, () -> client.semaphore("none")
                                .tryAcquire())
                        .code());
        RLock read = client.readWriteLock("rw").readLock();
        RLock write = client.readWriteLock("rw").writeLock();
        read.lock();
        var second = other.readWriteLock("rw");
        second.readLock().lock();
        var upgrade = inThread(() -> {
            // As the thread of this test, which reads.
            return write.with(LockOptions.DEFAULT.withOwner(client.threadOwner()))
                    .acquire();
        });
        assertFalse(upgrade.isDone());
        var upgrading = write.with(LockOptions.DEFAULT.withOwner(read.acquire().owner()))
                .acquireAsync();
        read.unlock();
        awaitWaiters("rw", 2);
        assertThrows(DeadlockException.class, () -> second.writeLock().acquire());
        second.readLock().unlock();
        upgrading.get(10, TimeUnit.SECONDS).close();
        read.unlock();
        upgrade.get(10, TimeUnit.SECONDS).close();
        assertNothingLeft("rw");
    }

    @Test
    void a_server_without_the_module_is_told_apart() throws Exception {
        try (var plain = new TestServer(false)) {
            var plainClient = RedisClient.create(plain.url());
            try (var none = RLockClient.create(plainClient)) {
                assertThrows(ModuleMissingException.class, () -> none.lock("k").tryLock());
                assertThrows(ModuleMissingException.class, () -> none.lock("k").lock());
            } finally {
                plainClient.shutdown(0, 1, TimeUnit.SECONDS);
            }
        }
    }

    @Test
    void readers_share_and_the_writer_is_alone() throws Exception {
        var mine = client.readWriteLock("rw");
        var theirs = other.readWriteLock("rw");
        mine.readLock().lock();
        theirs.readLock().lock();
        assertFalse(theirs.writeLock().tryLock());
        mine.readLock().unlock();
        assertTrue(theirs.writeLock().tryLock());
        assertFalse(mine.readLock().tryLock());
        theirs.readLock().unlock();
        theirs.writeLock().unlock();
        assertNothingLeft("rw");
    }

    @Test
    void a_semaphore_hands_out_its_permits() throws Exception {
        var semaphore = client.semaphore("s");
        assertTrue(semaphore.init(3, Duration.ofHours(1)));
        assertFalse(semaphore.init(5));
        Hold two = semaphore.withPermits(2).acquire();
        Hold one = semaphore.acquire(); // The same thread, and yet another permit.
        assertEquals(Optional.empty(), semaphore.tryAcquire());
        two.close();
        semaphore.withPermits(2).acquire(Duration.ofSeconds(5)).close();
        one.close();
        assertEquals(0, Probe.holders(redis, "s"));
    }

    @Test
    void a_kept_lock_stays_closed() throws Exception {
        Hold hold = client.lock("k").acquire();
        client.lock("k").lock();
        assertThrows(IllegalStateException.class, () -> hold.releaseAndKeep(Duration.ofMillis(400)));
        client.lock("k").unlock();
        assertTrue(hold.isHeld());
        hold.releaseAndKeep(Duration.ofMillis(400));
        assertFalse(client.lock("k").tryLock());
        client.lock("k").acquire(Duration.ofSeconds(10)).close();
    }

    @Test
    void one_leads_at_a_time() throws Exception {
        var leaders = new AtomicInteger();
        var terms = new AtomicInteger();
        var both = new AtomicBoolean();
        LeaderElection.Work work = hold -> {
            if (leaders.incrementAndGet() > 1) both.set(true);
            terms.incrementAndGet();
            try {
                new CountDownLatch(1).await();
            } finally {
                leaders.decrementAndGet();
            }
        };
        try (var first = LeaderElection.start(client.lock("k").with(lease(900)), work)) {
            await("somebody leads", () -> leaders.get() == 1);
            try (var second = LeaderElection.start(other.lock("k").with(lease(900)), work)) {
                awaitWaiters("k", 1);
                redis.del("k");
                await("another leads", () -> terms.get() == 2);
                first.close();
                await("the second leads", () -> leaders.get() == 1 && Probe.waiters(redis, "k") == 0);
            }
        }
        assertFalse(both.get() && terms.get() < 2);
        assertNothingLeft("k");
    }

    @Test
    void an_election_outlasts_errors_of_its_work() throws Exception {
        var terms = new AtomicInteger();
        LeaderElection.Work work = hold -> {
            if (terms.incrementAndGet() == 1) throw new AssertionError("of the work");
        };
        try (var election = LeaderElection.start(client.lock("k"), work)) {
            await("it leads again", () -> terms.get() > 1);
        }
        assertNothingLeft("k");
    }

    /** Work that fails at once is not repeated at once. */
    @Test
    void an_election_does_not_take_errors_of_other_locks_for_its_own() throws Exception {
        for (var other : List.of(new LockLostException("", "of another lock"), new ClosedException())) {
            var begun = new ConcurrentLinkedQueue<Long>();
            LeaderElection.Work work = hold -> {
                begun.add(System.nanoTime());
                throw other;
            };
            try (var election = LeaderElection.start(client.lock("k"), work)) {
                await("it has led three times", () -> begun.size() > 2);
            }
            long first = begun.remove();
            begun.remove();
            long took = begun.remove() - first;
            assertTrue(took > TimeUnit.MILLISECONDS.toNanos(1_900), other + ": three times in " + took + " ns");
        }
    }

    @Test
    void keys_have_the_prefix() throws Exception {
        try (var prefixed = RLockClient.builder(redisClient).keyPrefix("app:").build()) {
            Hold hold = prefixed.lock("k").acquire();
            assertEquals(1, Probe.holders(redis, "app:k"));
            assertEquals(List.of("app:k"), hold.keys());
            assertFalse(client.lock("app:k").tryLock());
            var waiter = prefixed.lock("k").acquireAsync();
            awaitWaiters("app:k", 1);
            hold.close();
            waiter.get().close();
        }
    }

    @Test
    void owners_and_requests_differ() throws Exception {
        Hold mine = client.lock("a").acquire();
        Hold theirs = inThread(() -> client.lock("b").acquire()).get();
        assertNotEquals(mine.owner(), theirs.owner());
        assertEquals(mine.owner().split(":")[0], theirs.owner().split(":")[0]);
        assertTrue(RLockClient.nextRequest()
                > TimeUnit.MILLISECONDS.toMicros(System.currentTimeMillis()) - 3_600_000_000L);
        mine.close();
        theirs.close();
    }
}
