package io.github.rlockredis.spring.boot;

import io.github.rlockredis.LockOptions;
import io.github.rlockredis.RLockClient;
import java.time.Duration;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;

/** Acquires and releases a lock of its own: the server is there, takes writes, has the module, and grants. */
record HealthCheck(RLockClient client) {
    static final String FAILED = "rlock does not answer";

    private static final Duration LEASE = Duration.ofSeconds(5);

    Map<String, Object> run() throws InterruptedException {
        var lock = client.lock("health:" + UUID.randomUUID()).with(LockOptions.DEFAULT.withFixedLease(LEASE));
        long start = System.nanoTime();
        try (var hold = lock.acquire(Duration.ofSeconds(2))) {
            return Map.of("token", hold.token(), "millis", TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start));
        }
    }
}
