package io.github.rlockredis.spring.integration;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rlockredis.LockOptions;
import io.github.rlockredis.Probe;
import io.github.rlockredis.RLockClient;
import io.github.rlockredis.TestServer;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.sync.RedisCommands;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.Timeout;
import org.springframework.context.support.GenericApplicationContext;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.leader.event.DefaultLeaderEventPublisher;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;

@Timeout(60)
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
class RLockRegistryTest {
    private TestServer server;
    RedisClient redisClient;
    RedisCommands<String, String> redis;

    TestServer server() throws Exception {
        return new TestServer();
    }

    @BeforeAll
    void start() throws Exception {
        server = server();
        redisClient = RedisClient.create(server.url());
        redis = redisClient.connect().sync();
    }

    @AfterAll
    void end() throws Exception {
        redisClient.shutdown(0, 1, TimeUnit.SECONDS);
        server.close();
    }

    /** An application that wants to lead. */
    private GenericApplicationContext application(String id) {
        var context = new GenericApplicationContext();
        context.registerBean(RLockClient.class, () -> RLockClient.create(redisClient));
        context.registerBean(
                RLockRegistry.class,
                () -> new RLockRegistry(
                        context.getBean(RLockClient.class),
                        "leaders",
                        LockOptions.DEFAULT.withLease(Duration.ofMillis(900))));
        context.registerBean(LockRegistryLeaderInitiator.class, () -> {
            var initiator = new LockRegistryLeaderInitiator(
                    context.getBean(RLockRegistry.class), new DefaultCandidate(id, "role"));
            initiator.setLeaderEventPublisher(new DefaultLeaderEventPublisher(context));
            initiator.setHeartBeatMillis(200);
            return initiator;
        });
        context.refresh();
        return context;
    }

    private static boolean leads(GenericApplicationContext application) {
        return application
                .getBean(LockRegistryLeaderInitiator.class)
                .getContext()
                .isLeader();
    }

    @Test
    void one_of_two_applications_leads_and_the_other_takes_over() throws Exception {
        try (var first = application("first")) {
            TestServer.await("the first leads", () -> leads(first));
            try (var second = application("second")) {
                TestServer.await("the second waits", () -> Probe.waiters(redis, "leaders:role") == 1);
                assertFalse(leads(second));
                // A leader whose lock is taken away is revoked, and another one elected.
                redis.del("leaders:role");
                TestServer.await("the second leads", () -> leads(second) && !leads(first));
                second.close();
                TestServer.await("the first leads again", () -> leads(first));
            }
        }
        assertEquals(0, Probe.holders(redis, "leaders:role"));
    }

    @Test
    void locks_of_one_key_are_one_reentrant_lock() throws Exception {
        try (var client = RLockClient.create(redisClient)) {
            var registry = new RLockRegistry(client, "registry");
            Lock lock = registry.obtain("k");
            lock.lock();
            assertTrue(registry.obtain("k").tryLock());
            assertEquals(1, Probe.holders(redis, "registry:k"));
            registry.obtain("k").unlock();
            lock.unlock();
            assertEquals(0, Probe.holders(redis, "registry:k"));
        }
    }
}
