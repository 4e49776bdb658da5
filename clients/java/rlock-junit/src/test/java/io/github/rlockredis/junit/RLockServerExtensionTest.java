package io.github.rlockredis.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.platform.engine.discovery.DiscoverySelectors.selectClass;

import io.github.rlockredis.RLockClient;
import io.lettuce.core.RedisClient;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.platform.testkit.engine.EngineTestKit;

@Timeout(60)
class RLockServerExtensionTest {
    private static final List<RLockServer> seen = new ArrayList<>();

    private static void leaveALockBehind(RLockServer server) throws Exception {
        seen.add(server);
        var redis = RedisClient.create(server.url());
        try (var connection = redis.connect();
                var client = RLockClient.create(redis)) {
            assertEquals(0, connection.sync().dbsize());
            assertTrue(client.lock("left").tryLock());
            connection.sync().set("also", "left");
        } finally {
            redis.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }

    // Static classes, so that only the test kit runs them.
    @ExtendWith(RLockServerExtension.class)
    static class Application {
        @RepeatedTest(2)
        void locks(RLockServer server) throws Exception {
            leaveALockBehind(server);
        }

        @Nested
        class Within {
            @Test
            void locks(RLockServer server) throws Exception {
                leaveALockBehind(server);
            }
        }
    }

    static class Other {
        @RegisterExtension
        static final RLockServerExtension rlock = new RLockServerExtension("--databases", "3");

        @Test
        void locks() throws Exception {
            leaveALockBehind(rlock.server());
            var redis = RedisClient.create(rlock.server().url());
            try (var connection = redis.connect()) {
                assertEquals("3", connection.sync().configGet("databases").get("databases"));
            } finally {
                redis.shutdown(0, 1, TimeUnit.SECONDS);
            }
        }
    }

    static class Base {
        @RegisterExtension
        static final RLockServerExtension rlock = new RLockServerExtension();

        @Test
        void locks(RLockServer server) throws Exception {
            leaveALockBehind(server);
        }
    }

    static class First extends Base {}

    static class Second extends Base {}

    @Test
    void subclasses_share_the_server_of_a_static_field() {
        seen.clear();
        EngineTestKit.engine("junit-jupiter")
                .selectors(selectClass(First.class), selectClass(Second.class))
                .execute()
                .testEvents()
                .assertStatistics(tests -> tests.succeeded(2).failed(0));
        assertEquals(2, seen.size());
        assertSame(seen.get(0), seen.get(1));
        assertFalse(ProcessHandle.of(seen.get(0).pid()).isPresent());
    }

    @Test
    void each_class_has_a_server_that_each_test_finds_empty() {
        seen.clear();
        EngineTestKit.engine("junit-jupiter")
                .selectors(selectClass(Application.class), selectClass(Other.class))
                .execute()
                .testEvents()
                .assertStatistics(tests -> tests.succeeded(4).failed(0));
        assertEquals(4, seen.size());
        assertSame(seen.get(0), seen.get(1));
        assertSame(seen.get(0), seen.get(2));
        assertNotEquals(seen.get(0), seen.get(3));
        for (var server : seen) {
            assertFalse(ProcessHandle.of(server.pid()).isPresent());
        }
        assertThrows(IllegalStateException.class, Other.rlock::server);
    }
}
