package io.github.rlockredis.spring.integration;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rlockredis.LockOptions;
import io.github.rlockredis.RLockClient;
import io.github.rlockredis.TestServer;
import java.time.Duration;
import org.junit.jupiter.api.Test;

/** The same where the server allows leases of 5 s at most. */
class RLockRegistryUnderMaxLeaseTest extends RLockRegistryTest {
    @Override
    TestServer server() throws Exception {
        return TestServer.withoutTwoHolders();
    }

    @Test
    void a_lock_outlasts_the_longest_lease() throws Exception {
        try (var client = RLockClient.create(redisClient);
                var other = RLockClient.create(redisClient)) {
            for (var options :
                    new LockOptions[] {LockOptions.DEFAULT, LockOptions.DEFAULT.withFixedLease(Duration.ofSeconds(30))
                    }) {
                var lock = new RLockRegistry(client, "registry", options).obtain("k");
                lock.lock();
                Thread.sleep(7_000);
                assertFalse(new RLockRegistry(other, "registry").obtain("k").tryLock());
                assertTrue(lock.isHeldByCurrentThread());
                lock.unlock();
            }
        }
    }
}
