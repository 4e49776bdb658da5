package io.github.rlockredis;

import static io.github.rlockredis.TestServer.await;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rlockredis.RLockException.LockLostException;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.sync.RedisCommands;
import java.time.Duration;
import java.util.ArrayList;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Servers whose {@code rlock.max-lease-ms} is shorter than the leases that are asked for, or becomes so. */
@Timeout(60)
class MaxLeaseTest {
    private static TestServer server;
    private static RedisClient redisClient;
    private static RedisCommands<String, String> redis;
    private RLockClient client;

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
    void makeClient() {
        allow(60_000);
        client = RLockClient.create(redisClient);
    }

    @AfterEach
    void closeClient() {
        client.close();
    }

    private static void allow(long milliseconds) {
        redis.configSet("rlock.max-lease-ms", Long.toString(milliseconds));
    }

    private static LockOptions fixed(long milliseconds) {
        return LockOptions.DEFAULT.withFixedLease(Duration.ofMillis(milliseconds));
    }

    private static boolean isHeld(Hold hold) {
        return hold.isHeld() && Probe.holders(redis, hold.keys().get(0)) == 1;
    }

    @Test
    void a_fixed_lease_is_renewed_up_to_its_end() throws Exception {
        allow(1_500);
        for (var options : new LockOptions[] {fixed(5_000), fixed(5_000).withSession(Duration.ofMillis(1_200))}) {
            var lost = new CompletableFuture<Long>();
            long start = System.nanoTime();
            Hold hold = client.lock("k").with(options).acquire();
            hold.onLost(it -> lost.complete(System.nanoTime()));
            assertTrue(hold.remaining().toMillis() <= 1_500);
            Thread.sleep(4_000);
            assertTrue(isHeld(hold));
            long held = lost.get(10, TimeUnit.SECONDS) - start;
            assertTrue(held >= TimeUnit.MILLISECONDS.toNanos(4_900), "lost after " + held + " ns");
            await("the lock is free", () -> Probe.holders(redis, "k") == 0);
            assertThrows(LockLostException.class, hold::close);
        }
    }

    @Test
    void a_fixed_lease_can_be_extended_beyond_what_the_server_allows() throws Exception {
        allow(1_500);
        Hold hold = client.lock("k").with(fixed(2_000)).acquire();
        hold.extend(Duration.ofSeconds(30));
        Thread.sleep(4_000);
        assertTrue(isHeld(hold));
        assertTrue(hold.remaining().toMillis() <= 1_500);
        hold.close();
        assertEquals(0, Probe.holders(redis, "k"));
    }

    @Test
    void a_waiter_relies_on_what_is_left_after_the_limit_was_lowered() throws Exception {
        Hold hold = client.lock("k").acquire();
        var waiter = client.lock("k").with(fixed(60_000)).acquireAsync();
        await("it waits", () -> Probe.waiters(redis, "k") == 1);
        allow(3_000);
        hold.close();
        Hold next = waiter.get(10, TimeUnit.SECONDS);
        assertTrue(next.remaining().toMillis() <= 3_000, "relies on " + next.remaining());
        next.close();
    }

    @Test
    void holds_outlast_a_lowered_limit() throws Exception {
        var renewed = LockOptions.DEFAULT.withLease(Duration.ofSeconds(3));
        Hold[] holds = {
            client.lock("a").with(renewed).acquire(),
            client.lock("b")
                    .with(fixed(60_000).withSession(Duration.ofSeconds(3)))
                    .acquire()
        };
        allow(1_000);
        Thread.sleep(4_500);
        for (Hold hold : holds) {
            assertTrue(isHeld(hold), hold.keys() + " was lost");
            assertTrue(hold.remaining().toMillis() <= 1_000, "relies on " + hold.remaining());
            hold.close();
        }
    }

    @Test
    void requests_ask_again_for_less_after_the_limit_was_lowered() throws Exception {
        Hold hold = client.lock("a").with(fixed(60_000)).acquire();
        allow(2_000);
        assertTrue(client.lock("b").tryAcquire().orElseThrow().remaining().toMillis() <= 2_000);
        allow(1_000);
        hold.extend(Duration.ofSeconds(50));
        assertTrue(client.lock("c").acquire(Duration.ofSeconds(10)).remaining().toMillis() <= 1_000);
        assertTrue(hold.isHeld());
    }

    @Test
    void a_belief_that_becomes_shorter_ends_in_time() throws Exception {
        try (var proxy = new TestServer.Proxy(server)) {
            var proxied = RedisClient.create(proxy.url());
            var locks = RLockClient.create(proxied);
            var holds = new ArrayList<Hold>();
            var late = new ArrayList<CompletableFuture<Long>>();
            try {
                // The client looks at the clock once a second, and would see one of these ends 0.5 s late.
                for (int i = 0; i < 5; i++) {
                    holds.add(locks.lock("k" + i).acquire());
                    Thread.sleep(200);
                }
                for (Hold hold : holds) {
                    redis.pexpire(hold.keys().get(0), 300);
                    hold.extend(Duration.ofSeconds(1));
                    assertTrue(hold.remaining().toMillis() <= 300, "relies on " + hold.remaining());
                }
                proxy.stall(true);
                for (Hold hold : holds) {
                    var told = new CompletableFuture<Long>();
                    long end = System.nanoTime() + hold.remaining().toNanos();
                    hold.onLost(lost -> told.complete(System.nanoTime() - end));
                    late.add(told);
                }
                for (var told : late) {
                    long nanos = told.get(10, TimeUnit.SECONDS);
                    assertTrue(nanos < TimeUnit.MILLISECONDS.toNanos(400), "told " + nanos + " ns late");
                }
            } finally {
                proxy.stall(false);
                locks.close();
                proxied.shutdown(0, 1, TimeUnit.SECONDS);
            }
        }
    }
}
