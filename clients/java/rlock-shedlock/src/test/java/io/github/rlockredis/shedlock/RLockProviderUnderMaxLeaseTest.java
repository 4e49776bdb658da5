package io.github.rlockredis.shedlock;

import static io.github.rlockredis.TestServer.await;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rlockredis.Probe;
import io.github.rlockredis.RLockClient;
import io.github.rlockredis.TestServer;
import io.lettuce.core.RedisClient;
import java.time.Duration;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockExtender;
import net.javacrumbs.shedlock.core.LockingTaskExecutor;
import net.javacrumbs.shedlock.support.KeepAliveLockProvider;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** A server that allows leases of 5 s at most. */
class RLockProviderUnderMaxLeaseTest extends ProviderTest {
    private static final long LONGER_THAN_ALLOWED_MS = 7_000;

    @BeforeAll
    static void start() throws Exception {
        fixture = new Fixture(TestServer.withoutTwoHolders());
    }

    private LockConfiguration job(Duration atMost) {
        return lockConfig("job", atMost, Duration.ZERO);
    }

    private void assertFree() {
        assertEquals(0, Probe.holders(fixture.redis, "shedlock:job"));
    }

    @Test
    void a_job_is_locked_up_to_lock_at_most_for() throws Exception {
        var lock = getLockProvider().lock(job(Duration.ofSeconds(10))).orElseThrow();
        Thread.sleep(LONGER_THAN_ALLOWED_MS);
        assertTrue(getLockProvider().lock(job(Duration.ofSeconds(10))).isEmpty());
        Thread.sleep(10_000 - LONGER_THAN_ALLOWED_MS + 100);
        await("the lock is free", () -> Probe.holders(fixture.redis, "shedlock:job") == 0);
        lock.unlock();
    }

    @Test
    void lock_extender_extends_beyond_the_longest_lease() throws Throwable {
        LockingTaskExecutor.Task task = () -> {
            LockExtender.extendActiveLock(Duration.ofMinutes(10), Duration.ZERO);
            Thread.sleep(LONGER_THAN_ALLOWED_MS);
            assertTrue(getLockProvider().lock(job(Duration.ofSeconds(10))).isEmpty());
        };
        new DefaultLockingTaskExecutor(getLockProvider()).executeWithLock(task, job(Duration.ofSeconds(5)));
        assertFree();
    }

    @Test
    void keep_alive_goes_on_beyond_the_longest_lease() throws Exception {
        // Extends each second, and not each time half of lockAtMostFor has passed.
        var often = new ScheduledThreadPoolExecutor(1) {
            @Override
            public ScheduledFuture<?> scheduleAtFixedRate(Runnable extend, long delay, long period, TimeUnit unit) {
                return super.scheduleAtFixedRate(extend, 1, 1, TimeUnit.SECONDS);
            }
        };
        var lock = new KeepAliveLockProvider(getLockProvider(), often)
                .lock(job(Duration.ofSeconds(30)))
                .orElseThrow();
        Thread.sleep(LONGER_THAN_ALLOWED_MS);
        assertTrue(getLockProvider().lock(job(Duration.ofSeconds(10))).isEmpty());
        assertFalse(often.getQueue().isEmpty(), "it has stopped to extend");
        lock.unlock();
        often.shutdown();
        assertFree();
    }

    @Test
    void a_crash_frees_the_lock_after_the_longest_lease_or_the_session() throws Exception {
        for (Duration session : new Duration[] {null, Duration.ofSeconds(1)}) {
            var redisClient = RedisClient.create(fixture.server.url());
            try (var client = RLockClient.create(redisClient)) {
                new RLockProvider(client, "shedlock:", session)
                        .lock(job(Duration.ofMinutes(10)))
                        .orElseThrow();
                redisClient.shutdown(0, 0, TimeUnit.SECONDS);
                long start = System.nanoTime();
                await("the lock is free", () -> Probe.holders(fixture.redis, "shedlock:job") == 0);
                long millis = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start);
                assertTrue(session == null || millis < 3_000, "free after " + millis + " ms");
            }
        }
    }

    @Test
    void a_session_does_not_end_a_job() throws Exception {
        var provider = new RLockProvider(fixture.client, "shedlock:", Duration.ofSeconds(1));
        var lock = provider.lock(job(Duration.ofSeconds(20))).orElseThrow();
        Thread.sleep(LONGER_THAN_ALLOWED_MS);
        assertTrue(provider.lock(job(Duration.ofSeconds(10))).isEmpty());
        lock.unlock();
        assertFree();
    }
}
