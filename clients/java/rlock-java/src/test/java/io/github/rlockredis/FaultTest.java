package io.github.rlockredis;

import static io.github.rlockredis.TestServer.await;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rlockredis.RLockException.LockLostException;
import io.github.rlockredis.RLockException.LockTimeoutException;
import io.github.rlockredis.RLockException.UnavailableException;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.sync.RedisCommands;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What happens when the network, the server or the process does not do what it should. */
@Timeout(60)
class FaultTest {
    private static TestServer server;
    private static RedisClient direct;
    private static RedisCommands<String, String> redis;
    private TestServer.Proxy proxy;
    private RedisClient proxied;
    private RLockClient client;
    private RLockClient other;

    @BeforeAll
    static void startServer() throws Exception {
        server = new TestServer();
        direct = RedisClient.create(server.url());
        redis = direct.connect().sync();
    }

    @AfterAll
    static void endServer() throws Exception {
        direct.shutdown(0, 1, TimeUnit.SECONDS);
        server.close();
    }

    @BeforeEach
    void makeClients() throws Exception {
        redis.flushall();
        proxy = new TestServer.Proxy(server);
        var uri = RedisURI.create(proxy.url());
        uri.setTimeout(Duration.ofSeconds(2));
        proxied = RedisClient.create(uri);
        client = RLockClient.create(proxied);
        other = RLockClient.create(direct);
    }

    @AfterEach
    void closeClients() throws Exception {
        other.close();
        client.close();
        proxied.shutdown(0, 1, TimeUnit.SECONDS);
        proxy.close();
    }

    private static void assertNothingLeft(String key) throws Exception {
        await("nothing is left of " + key, () -> Probe.holders(redis, key) == 0 && Probe.waiters(redis, key) == 0);
    }

    private static void awaitWaiters(String key, int count) throws Exception {
        await(count + " wait for " + key, () -> Probe.waiters(redis, key) == count);
    }

    private static LockOptions lease(long milliseconds) {
        return LockOptions.DEFAULT.withLease(Duration.ofMillis(milliseconds));
    }

    @Test
    void a_stalled_connection_does_not_hide_the_loss() throws Exception {
        Hold hold = client.lock("k").with(lease(1_000)).acquire();
        var lost = new CompletableFuture<Long>();
        hold.onLost(it -> lost.complete(System.nanoTime()));
        proxy.stall(true);
        await("another holds", () -> Probe.holders(redis, "k") == 0);
        long free = System.nanoTime();
        assertFalse(hold.isHeld());
        // The holder knows before the server gives the lock to another.
        assertTrue(lost.get(5, TimeUnit.SECONDS) - free < TimeUnit.MILLISECONDS.toNanos(300));
        assertThrows(LockLostException.class, hold::close);
    }

    @Test
    void a_stalled_server_does_not_touch_holds_on_another() throws Exception {
        Hold stalled = client.lock("k").with(lease(900)).acquire();
        Hold healthy = other.lock("healthy").with(lease(900)).acquire();
        proxy.stall(true);
        await("the stalled one is lost", () -> !stalled.isHeld());
        Thread.sleep(600);
        assertTrue(healthy.isHeld());
        healthy.close();
    }

    @Test
    void errors_do_not_end_the_renewal() throws Exception {
        Hold hold = client.lock("k").with(lease(3_000)).acquire();
        redis.replicaof("127.0.0.1", 1); // READONLY from now on.
        try {
            Thread.sleep(1_500);
            assertTrue(hold.isHeld());
        } finally {
            redis.replicaofNoOne();
        }
        Thread.sleep(2_500);
        assertTrue(hold.isHeld());
        assertEquals(1, Probe.holders(redis, "k"));
        hold.close();
    }

    @Test
    void a_wait_outlasts_errors_and_a_try_does_not() throws Exception {
        redis.replicaof("127.0.0.1", 1);
        CompletableFuture<Hold> waiter;
        try {
            assertEquals(
                    "READONLY",
                    assertThrows(UnavailableException.class, () -> client.lock("k")
                                    .tryAcquire())
                            .code());
            assertTrue(
                    assertThrows(LockTimeoutException.class, () -> client.lock("k")
                                            .acquire(Duration.ofMillis(300)))
                                    .getCause()
                            instanceof UnavailableException);
            waiter = client.lock("k").acquireAsync();
            Thread.sleep(300);
            assertFalse(waiter.isDone());
        } finally {
            redis.replicaofNoOne();
        }
        waiter.get(10, TimeUnit.SECONDS).close();
        assertNothingLeft("k");
    }

    @Test
    void an_outage_is_not_taken_for_contention() throws Exception {
        var lock = client.lock("k");
        Hold hold = other.lock("k").acquire();
        assertFalse(lock.tryLock(300, TimeUnit.MILLISECONDS));
        assertNull(timedOut(lock).getCause());

        proxy.stall(true); // The server is silent.
        assertUnavailable(lock, "");
        proxy.stall(false);
        assertFalse(lock.tryLock(2, TimeUnit.SECONDS));

        // The outage is over before the wait ends.
        proxy.refuse(true);
        proxy.cut();
        var outlasting = lock.tryAcquireAsync(Duration.ofSeconds(5));
        proxy.refuse(false);
        assertEquals(Optional.empty(), outlasting.get(10, TimeUnit.SECONDS));

        redis.replicaof("127.0.0.1", 1); // The server refuses.
        try {
            assertUnavailable(lock, "READONLY");
        } finally {
            redis.replicaofNoOne();
        }

        proxy.refuse(true); // There is no server.
        proxy.cut();
        assertUnavailable(lock, "");
        var strange = RedisClient.create("redis://127.0.0.1:" + TestServer.freePort());
        try (var locks = RLockClient.create(strange)) {
            assertUnavailable(locks.lock("k"), "");
        }
        strange.shutdown(0, 0, TimeUnit.SECONDS);
        proxy.refuse(false);
        hold.close();
        lock.acquire().close();
        assertNothingLeft("k");
    }

    private static void assertUnavailable(RLock lock, String code) {
        assertEquals(
                code,
                assertThrows(UnavailableException.class, () -> lock.tryLock(300, TimeUnit.MILLISECONDS))
                        .code());
        assertThrows(UnavailableException.class, () -> lock.tryAcquire(Duration.ofMillis(300)));
        var future = lock.tryAcquireAsync(Duration.ofMillis(300));
        var failed = assertThrows(ExecutionException.class, () -> future.get(10, TimeUnit.SECONDS));
        assertEquals(UnavailableException.class, failed.getCause().getClass());
        assertEquals(UnavailableException.class, timedOut(lock).getCause().getClass());
    }

    private static LockTimeoutException timedOut(RLock lock) {
        return assertThrows(LockTimeoutException.class, () -> lock.acquire(Duration.ofMillis(300)));
    }

    @Test
    void a_first_connection_that_takes_longer_than_a_short_wait_is_no_outage() throws Exception {
        proxy.delay(1_000); // HELLO
        assertFalse(client.lock("k").tryLock(100, TimeUnit.MILLISECONDS));
        try (var fresh = RLockClient.create(proxied)) {
            var timeout = assertThrows(
                    LockTimeoutException.class, () -> fresh.lock("k").acquire(Duration.ofMillis(100)));
            assertNull(timeout.getCause());
        }
    }

    @Test
    void a_wait_that_was_queued_before_an_outage_carries_the_cause() throws Exception {
        Hold hold = other.lock("k").acquire();
        var waiting = CompletableFuture.supplyAsync(() ->
                assertThrows(LockTimeoutException.class, () -> client.lock("k").acquire(Duration.ofMillis(1_500))));
        awaitWaiters("k", 1);
        proxy.stall(true);
        var cause = waiting.get(10, TimeUnit.SECONDS).getCause();
        assertEquals(UnavailableException.class, cause.getClass());
        proxy.stall(false);
        hold.close();
        assertNothingLeft("k");
    }

    @Test
    void a_request_behind_another_of_its_owner_is_contended() throws Exception {
        Hold hold = other.lock("k").acquire();
        var lock = client.lock("k").with(LockOptions.DEFAULT.withOwner("alice"));
        var first = lock.acquireAsync();
        awaitWaiters("k", 1);
        assertFalse(lock.tryLock(100, TimeUnit.MILLISECONDS));
        first.cancel(true);
        hold.close();
    }

    @Test
    void the_first_failure_of_an_outage_is_a_warning() throws Exception {
        var out = System.err;
        var lines = new ConcurrentLinkedQueue<String>();
        System.setErr(new PrintStream(out, true) {
            @Override
            public void println(String line) {
                super.println(line);
                lines.add(line);
            }
        });
        redis.replicaof("127.0.0.1", 1);
        try {
            assertThrows(LockTimeoutException.class, () -> client.lock("warned").acquire(Duration.ofMillis(800)));
        } finally {
            redis.replicaofNoOne();
            System.setErr(out);
        }
        var warnings = lines.stream().filter(line -> line.contains("WARN") && line.contains("mutex warned"));
        assertEquals(1, warnings.filter(line -> line.contains("READONLY")).count());
    }

    @Test
    void a_quarantine_tells_how_long() throws Exception {
        try (var young = new TestServer("--rlock.max-lease-ms", "60000", "--rlock.exclusion", "restart")) {
            var youngClient = RedisClient.create(young.url());
            try (var locks = RLockClient.create(youngClient)) {
                var error = assertThrows(
                        UnavailableException.class, () -> locks.lock("k").tryAcquire());
                assertTrue(error.retryAfterMillis().orElseThrow() > 30_000);
            } finally {
                youngClient.shutdown(0, 1, TimeUnit.SECONDS);
            }
        }
    }

    @Test
    void a_wait_never_lasts_longer_than_its_time() throws Exception {
        client.lock("warm").acquire().close();
        Hold hold = other.lock("k").acquire();
        var waiting = client.lock("k").tryAcquireAsync(Duration.ofMillis(800));
        awaitWaiters("k", 1);
        proxy.stall(true);
        long start = System.nanoTime();
        var silence = assertThrows(ExecutionException.class, () -> waiting.get(10, TimeUnit.SECONDS));
        assertEquals(UnavailableException.class, silence.getCause().getClass());
        assertThrows(UnavailableException.class, () -> client.lock("k").tryAcquire(Duration.ofMillis(300)));
        assertThrows(UnavailableException.class, () -> client.lock("k").tryAcquire()); // 2 s
        assertTrue(System.nanoTime() - start < TimeUnit.MILLISECONDS.toNanos(6_500));
        proxy.stall(false);
        hold.close();
        assertNothingLeft("k");
    }

    @Test
    void lost_replies_leave_one_hold_and_no_waiter() throws Exception {
        for (int i = 0; i < 10; i++) {
            var first = client.lock("k").acquireAsync();
            if (i % 2 == 0) Thread.sleep(i);
            proxy.cut();
            Hold hold = first.get(10, TimeUnit.SECONDS);
            assertEquals(1L, Probe.one(redis, "RLOCK.HOLDS", "k", hold.owner()));
            var released = hold.releaseAsync();
            proxy.cut();
            released.get(10, TimeUnit.SECONDS);
            assertNothingLeft("k");
        }
    }

    @Test
    void requests_are_repeated_when_their_replies_are_lost() throws Exception {
        client.lock("warm").acquire().close();
        proxy.stallReplies(true);
        var request = client.lock("k").tryAcquireAsync(Duration.ZERO);
        await("it is granted", () -> Probe.holders(redis, "k") == 1);
        proxy.cut();
        proxy.stallReplies(false);
        Hold hold = request.get(10, TimeUnit.SECONDS).orElseThrow();
        assertEquals(1L, Probe.one(redis, "RLOCK.HOLDS", "k", hold.owner()));
        proxy.stallReplies(true);
        var released = hold.releaseAsync();
        await("it is released", () -> Probe.holders(redis, "k") == 0);
        proxy.cut();
        proxy.stallReplies(false);
        released.get(10, TimeUnit.SECONDS); // And not the loss that NOTOWNER means otherwise.
    }

    @Test
    void a_wait_outlasts_its_connections() throws Exception {
        Hold hold = other.lock("k").acquire();
        var waiter = client.lock("k").acquireAsync();
        awaitWaiters("k", 1);
        proxy.cut();
        awaitWaiters("k", 1);
        for (int i = 0; i < 3; i++) {
            proxy.cut();
            Thread.sleep(50);
        }
        awaitWaiters("k", 1);
        hold.close();
        Hold next = waiter.get(10, TimeUnit.SECONDS); // Not only at the next regular question.
        next.close();
        assertNothingLeft("k");
    }

    @Test
    void a_wait_whose_repeated_request_was_refused_leaves_nothing() throws Exception {
        Hold hold = other.lock("k").acquire();
        var waiter = client.lock("k").acquireAsync();
        awaitWaiters("k", 1);
        redis.configSet("maxmemory", "1");
        try {
            Probe.ask(redis, "CLIENT", "KILL", "TYPE", "pubsub"); // So the client asks again.
            await("the request is refused", () -> redis.info("errorstats").contains("errorstat_OOM"));
            waiter.cancel(true);
            awaitWaiters("k", 0);
        } finally {
            redis.configSet("maxmemory", "0");
        }
        hold.close();
    }

    @Test
    void a_refused_connection_is_tried_again() throws Exception {
        proxy.refuse(true);
        assertThrows(UnavailableException.class, () -> client.lock("k").tryAcquire());
        var waiter = client.lock("k").acquireAsync();
        Thread.sleep(200);
        proxy.refuse(false);
        waiter.get(10, TimeUnit.SECONDS).close();
    }

    @Test
    void nobody_enters_with_a_claim_that_has_expired() throws Exception {
        Hold hold = other.lock("k").acquire();
        var waiter = client.lock("k").acquireAsync();
        awaitWaiters("k", 1);
        proxy.stall(true);
        hold.close(); // The grant is published into the stalled connection.
        Hold rival = other.lock("k").acquire(); // When the claim has expired.
        proxy.stall(false);
        awaitWaiters("k", 1);
        assertFalse(waiter.isDone());
        rival.close();
        waiter.get(10, TimeUnit.SECONDS).close();
        assertNothingLeft("k");
    }

    @Test
    void a_wait_for_several_keys_with_a_session_acquires_a_key_again_that_was_taken_away() throws Exception {
        client.lock("warm").acquire(Duration.ofSeconds(5)).close();
        Hold hold = other.multiLock("a", "b").acquire();
        var session = LockOptions.DEFAULT.withSession(Duration.ofSeconds(5));
        var waiter = client.multiLock("a", "b").with(session).acquireAsync();
        awaitWaiters("a", 1);
        proxy.stallReplies(true);
        hold.close();
        await("it is granted", () -> Probe.holders(redis, "a") == 1);
        redis.del("a");
        proxy.stallReplies(false);
        waiter.get(10, TimeUnit.SECONDS).close();
        assertNothingLeft("a");
        assertNothingLeft("b");
    }

    @Test
    void nobody_enters_with_a_grant_that_has_expired() throws Exception {
        var clock = new TestClock();
        try (var sleeper = RLockClient.builder(proxied).clock(clock).build()) {
            sleeper.lock("warm").acquire().close();
            proxy.stallReplies(true);
            var request = sleeper.lock("k").with(lease(3_000)).acquireAsync();
            await("it is granted", () -> Probe.holders(redis, "k") == 1);
            clock.advance(60_000); // The process sleeps before the answer arrives.
            assertFalse(request.isDone());
            proxy.stallReplies(false);
            Hold hold = request.get(10, TimeUnit.SECONDS);
            assertTrue(hold.isHeld());
            assertTrue(hold.remaining().toMillis() > 1_000);
            hold.close();
        }
    }

    @Test
    void settlement_of_a_lost_hold_spares_the_next_one_of_its_owner() throws Exception {
        var clock = new TestClock();
        var out = System.err;
        var losing = new CountDownLatch(1);
        // The thread that has found the loss is slow before it settles.
        System.setErr(new PrintStream(out, true) {
            @Override
            public void println(String line) {
                super.println(line);
                if (!Thread.currentThread().getName().equals("rlock-deadlines")) return;
                losing.countDown();
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(500));
            }
        });
        try (var sleeper = RLockClient.builder(proxied).clock(clock).build()) {
            Hold lost = sleeper.lock("k").acquire();
            clock.advance(60_000);
            assertTrue(losing.await(10, TimeUnit.SECONDS));
            assertThrows(LockLostException.class, lost::close);
            Hold next = sleeper.lock("k").acquire();
            assertTrue(next.token() > lost.token());
            Thread.sleep(1_000);
            assertTrue(next.isHeld());
            assertEquals(1, Probe.holders(redis, "k"));
            next.close();
            assertNothingLeft("k");
        } finally {
            System.setErr(out);
        }
    }

    @Test
    void settlement_of_one_client_spares_the_hold_of_another_with_the_same_owner() throws Exception {
        var named = LockOptions.DEFAULT.withOwner("alice");
        client.lock("warm").acquire().close();
        proxy.stallReplies(true);
        var abandoned = client.lock("k").with(named).acquireAsync();
        await("it is granted", () -> Probe.holders(redis, "k") == 1);
        Hold hold = other.lock("k").with(named).acquire();
        abandoned.cancel(true);
        proxy.stallReplies(false);
        client.lock("warm").acquire().close(); // Its request follows the settlement.
        assertEquals(1, Probe.holders(redis, "k"));
        hold.close();
        assertNothingLeft("k");
    }

    @Test
    void a_cancelled_request_spares_the_hold_of_another_by_its_named_owner() throws Exception {
        var lock = client.lock("k").with(LockOptions.DEFAULT.withOwner("alice"));
        client.lock("warm").acquire(Duration.ofSeconds(5)).close();
        for (int cancelled = 0; cancelled < 2; cancelled++) {
            proxy.stallReplies(true);
            var requests = List.of(lock.acquireAsync(), lock.acquireAsync());
            await("it is granted", () -> Probe.holders(redis, "k") == 1);
            requests.get(cancelled).cancel(true);
            proxy.stallReplies(false);
            Hold hold = requests.get(1 - cancelled).get(10, TimeUnit.SECONDS);
            client.lock("warm").acquire().close(); // Its request follows the settlement.
            assertEquals(1, Probe.holders(redis, "k"));
            hold.close();
            assertNothingLeft("k");
        }
    }

    @Test
    void a_request_beside_a_release_by_its_named_owner_gets_a_hold_of_its_own() throws Exception {
        var lock = client.lock("k").with(LockOptions.DEFAULT.withOwner("alice"));
        client.lock("warm").acquire(Duration.ofSeconds(5)).close();
        proxy.delay(100);
        var first = lock.acquireAsync();
        Thread.sleep(50);
        var second = lock.acquireAsync(); // On its way when the first is released.
        first.get(10, TimeUnit.SECONDS).releaseAsync();
        Hold hold = second.get(10, TimeUnit.SECONDS);
        Thread.sleep(200);
        assertEquals(1, Probe.holders(redis, "k"));
        hold.close();
        assertNothingLeft("k");
    }

    @Test
    void several_keys_and_one_of_them_are_not_acquired_at_once_by_a_named_owner() throws Exception {
        var named = LockOptions.DEFAULT.withOwner("alice");
        client.lock("warm").acquire(Duration.ofSeconds(5)).close();
        proxy.delay(50);
        var one = client.lock("a").with(named).acquireAsync();
        var both = client.multiLock("a", "b").with(named).acquireAsync();
        var misuse = assertThrows(ExecutionException.class, () -> both.get(10, TimeUnit.SECONDS));
        assertEquals(IllegalMonitorStateException.class, misuse.getCause().getClass());
        one.get(10, TimeUnit.SECONDS).close();
        assertNothingLeft("a");
        assertNothingLeft("b");
    }

    @Test
    void many_holds_far_away_are_all_renewed() throws Exception {
        client.lock("warm").acquire().close();
        proxy.delay(200);
        var requests = new ArrayList<CompletableFuture<Hold>>();
        for (int i = 0; i < 60; i++) {
            requests.add(client.lock("k" + i).with(lease(2_000)).acquireAsync());
        }
        var holds = new ArrayList<Hold>();
        for (var request : requests) holds.add(request.get(10, TimeUnit.SECONDS));
        Thread.sleep(4_500);
        assertTrue(holds.stream().allMatch(Hold::isHeld));
        CompletableFuture.allOf(holds.stream().map(Hold::releaseAsync).toArray(CompletableFuture[]::new))
                .get(10, TimeUnit.SECONDS);
    }

    @Test
    void a_session_ends_with_the_connection() throws Exception {
        var session = LockOptions.DEFAULT.withSession(Duration.ofMillis(1_000));
        Hold hold = client.lock("k").with(session).acquire();
        assertTrue(hold.remaining().toMillis() <= 1_000, "the server may see the connection close before the client");
        var lost = new CompletableFuture<Hold>();
        hold.onLost(lost::complete);
        proxy.refuse(true);
        proxy.cut();
        assertSame(hold, lost.get(5, TimeUnit.SECONDS));
        other.lock("k").acquire(Duration.ofSeconds(5)).close();
        proxy.refuse(false);
    }

    @Test
    void a_session_goes_on_over_a_new_connection() throws Exception {
        for (var options : List.of(LockOptions.DEFAULT, LockOptions.DEFAULT.withFixedLease(Duration.ofSeconds(30)))) {
            Hold hold = client.lock("k")
                    .with(options.withSession(Duration.ofMillis(3_000)))
                    .acquire();
            proxy.cut();
            Thread.sleep(3_200);
            assertTrue(hold.isHeld());
            assertEquals(1, Probe.holders(redis, "k"));
            hold.close();
        }
    }

    @Test
    void a_fixed_lease_with_a_session_can_be_extended_near_its_end() throws Exception {
        var options = LockOptions.DEFAULT.withFixedLease(Duration.ofSeconds(2)).withSession(Duration.ofSeconds(60));
        try (Hold hold = client.lock("k").with(options).acquire()) {
            Thread.sleep(1_500); // The next renewal would come after the end.
            hold.extend(Duration.ofSeconds(20));
            assertTrue(hold.remaining().toMillis() > 10_000);
            Thread.sleep(1_000);
            assertTrue(hold.isHeld());
        }
    }

    @Test
    void a_session_that_could_end_unnoticed_is_refused() {
        assertThrows(IllegalArgumentException.class, () -> LockOptions.DEFAULT.withSession(Duration.ofMillis(9)));
    }

    @Test
    void database_user_password_and_tls_options_are_those_of_the_application() throws Exception {
        try (var secured = new TestServer("--requirepass", "secret")) {
            var admin = RedisClient.create("redis://:secret@127.0.0.1:" + secured.port() + "/3");
            var commands = admin.connect().sync();
            Probe.ask(commands, "ACL", "SETUSER", "app", "on", ">pw", "~*", "&rlock:*", "+@all");
            var app = RedisClient.create("redis://app:pw@127.0.0.1:" + secured.port() + "/3");
            var wrong = RedisClient.create("redis://app:no@127.0.0.1:" + secured.port() + "/3");
            try (var locks = RLockClient.create(app);
                    var denied = RLockClient.create(wrong)) {
                Hold hold = locks.lock("k").acquire();
                assertEquals(1, Probe.holders(commands, "k"));
                var waiter = locks.lock("k").acquireAsync();
                await("it waits in database 3", () -> Probe.waiters(commands, "k") == 1);
                hold.close();
                waiter.get(10, TimeUnit.SECONDS).close();
                assertEquals(0, Probe.holders(commands, "k"));
                assertEquals(
                        "WRONGPASS",
                        assertThrows(RLockException.RefusedException.class, () -> denied.lock("k")
                                        .acquire())
                                .code());
            } finally {
                for (var each : List.of(admin, app, wrong)) each.shutdown(0, 1, TimeUnit.SECONDS);
            }
        }
    }

    @Test
    void a_release_that_does_not_arrive_is_not_thrown() throws Exception {
        Hold hold = client.lock("k").with(lease(1_000)).acquire();
        proxy.stall(true);
        hold.close();
        assertFalse(hold.isHeld());
        proxy.stall(false);
        assertNothingLeft("k");
    }

    @Test
    void closing_does_not_wait_for_a_stalled_server() throws Exception {
        client.lock("k").with(lease(1_000)).acquire();
        proxy.stall(true);
        long start = System.nanoTime();
        client.close();
        assertTrue(System.nanoTime() - start < TimeUnit.SECONDS.toNanos(7));
    }
}
