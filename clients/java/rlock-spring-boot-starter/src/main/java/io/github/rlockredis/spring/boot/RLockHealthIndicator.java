package io.github.rlockredis.spring.boot;

import io.github.rlockredis.LockOptions;
import io.github.rlockredis.RLockClient;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.springframework.boot.actuate.health.AbstractHealthIndicator;
import org.springframework.boot.actuate.health.Health;

/** Acquires and releases a lock of its own: the server is there, takes writes, has the module, and grants. */
final class RLockHealthIndicator extends AbstractHealthIndicator {
    private static final Duration LEASE = Duration.ofSeconds(5);

    private final RLockClient client;

    RLockHealthIndicator(RLockClient client) {
        super("rlock does not answer");
        this.client = client;
    }

    @Override
    protected void doHealthCheck(Health.Builder builder) throws Exception {
        var lock = client.lock("health:" + UUID.randomUUID()).with(LockOptions.DEFAULT.withFixedLease(LEASE));
        long start = System.nanoTime();
        try (var hold = lock.acquire(Duration.ofSeconds(2))) {
            builder.up()
                    .withDetail("token", hold.token())
                    .withDetail("millis", TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start));
        }
    }
}
