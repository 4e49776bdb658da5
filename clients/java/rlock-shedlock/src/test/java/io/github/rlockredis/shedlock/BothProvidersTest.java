package io.github.rlockredis.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rlockredis.Probe;
import io.github.rlockredis.RLockClient;
import io.github.rlockredis.TestServer;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.sync.RedisCommands;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.HashSet;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** The provider of docs/operations/migration.md, which holds the old lock as well. */
class BothProvidersTest {
    record BothProviders(LockProvider rlock, LockProvider old) implements LockProvider {
        @Override
        public Optional<SimpleLock> lock(LockConfiguration configuration) {
            var outer = rlock.lock(configuration);
            if (outer.isEmpty()) return outer;
            Optional<SimpleLock> inner = Optional.empty();
            try {
                inner = old.lock(configuration);
            } finally {
                if (inner.isEmpty()) outer.get().unlock();
            }
            return inner.map(it -> () -> {
                try {
                    it.unlock();
                } finally {
                    outer.get().unlock();
                }
            });
        }
    }

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

    private static LockConfiguration job(String name) {
        return new LockConfiguration(Instant.now(), name, Duration.ofSeconds(30), Duration.ZERO);
    }

    @Test
    void each_of_three_releases_excludes_the_one_before_and_the_one_after() {
        var names = new HashSet<String>();
        LockProvider old = configuration -> names.add(configuration.getName())
                ? Optional.of(() -> names.remove(configuration.getName()))
                : Optional.empty();
        var rlock = new RLockProvider(client);
        var both = new BothProviders(rlock, old);

        var held = old.lock(job("j")).orElseThrow();
        assertTrue(both.lock(job("j")).isEmpty());
        assertEquals(0, Probe.holders(redis, "shedlock:j")); // What it had taken is released.
        held.unlock();

        held = rlock.lock(job("j")).orElseThrow();
        assertTrue(both.lock(job("j")).isEmpty());
        held.unlock();

        held = both.lock(job("j")).orElseThrow();
        assertTrue(old.lock(job("j")).isEmpty());
        assertTrue(rlock.lock(job("j")).isEmpty());
        assertTrue(both.lock(job("j")).isEmpty());
        held.unlock();
        old.lock(job("j")).orElseThrow();
        rlock.lock(job("j")).orElseThrow();
    }

    @Test
    void a_failure_of_the_old_provider_keeps_no_lock() {
        var failing = new BothProviders(new RLockProvider(client), configuration -> {
            throw new IllegalStateException("no connection");
        });
        var error = assertThrows(IllegalStateException.class, () -> failing.lock(job("f")));
        assertEquals("no connection", error.getMessage());
        assertEquals(0, Probe.holders(redis, "shedlock:f"));
    }

    @Test
    void the_page_shows_this_provider() throws Exception {
        String page = Files.readString(Path.of("../../../docs/operations/migration.md"));
        String source = Files.readString(Path.of("src/test/java/io/github/rlockredis/shedlock/BothProvidersTest.java"));
        String shown = page.substring(page.indexOf("record BothProviders"));
        shown = shown.substring(0, shown.indexOf("```"));
        assertTrue(source.contains(shown.indent(4)), shown);
    }
}
