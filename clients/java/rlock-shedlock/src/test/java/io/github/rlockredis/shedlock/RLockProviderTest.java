package io.github.rlockredis.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rlockredis.Probe;
import io.github.rlockredis.RLockClient;
import io.github.rlockredis.TestServer;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.sync.RedisCommands;
import java.time.Duration;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.test.support.AbstractExtensibleLockProviderIntegrationTest;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** ShedLock's own tests of providers. */
class RLockProviderTest extends AbstractExtensibleLockProviderIntegrationTest {
    private static TestServer server;
    private static RedisClient redisClient;
    private static RedisCommands<String, String> redis;
    private static RLockClient client;

    @BeforeAll
    static void start() throws Exception {
        server = new TestServer();
        redisClient = RedisClient.create(server.url());
        redis = redisClient.connect().sync();
        client = RLockClient.create(redisClient);
    }

    @AfterAll
    static void end() throws Exception {
        client.close();
        redisClient.shutdown();
        server.close();
    }

    @Override
    protected ExtensibleLockProvider getLockProvider() {
        return new RLockProvider(client);
    }

    @Override
    protected void assertUnlocked(String name) {
        assertTrue((Long) Probe.one(redis, "RLOCK.PTTL", "shedlock:" + name) < 0);
    }

    @Override
    protected void assertLocked(String name) {
        assertTrue((Long) Probe.one(redis, "RLOCK.PTTL", "shedlock:" + name) > 0);
    }

    @Test
    void the_note_names_the_lock() {
        var lock = getLockProvider()
                .lock(lockConfig("job", Duration.ofSeconds(5), Duration.ZERO))
                .orElseThrow();
        assertTrue(Probe.ask(redis, "RLOCK.INFO", "shedlock:job").toString().contains("ShedLock job"));
        lock.unlock();
        assertEquals(0, Probe.holders(redis, "shedlock:job"));
    }
}
