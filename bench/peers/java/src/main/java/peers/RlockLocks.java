package peers;

import io.github.rlockredis.Hold;
import io.github.rlockredis.LockOptions;
import io.github.rlockredis.Lockable;
import io.github.rlockredis.RLockClient;
import io.lettuce.core.RedisClient;
import java.time.Duration;

/** The package rlock-java as documented: one client per process, and locks that it renews. */
final class RlockLocks implements Locks {
    /** How long a hold outlives the connection of a process that was killed. */
    private static final Duration SESSION = Duration.ofMillis(200);

    private final Arguments arguments;
    private final RedisClient redis;
    private final RLockClient client;

    RlockLocks(Arguments arguments) {
        this.arguments = arguments;
        redis = RedisClient.create("redis://" + arguments.host() + ":" + arguments.port());
        var options = LockOptions.DEFAULT.withLease(Duration.ofMillis(arguments.leaseMs()));
        client = RLockClient.builder(redis)
                .defaults(arguments.hold() ? options.withSession(SESSION) : options)
                .build();
    }

    @Override
    public Client connect(int client) {
        return new Held();
    }

    @Override
    public void close() {
        client.close();
        redis.close();
    }

    private Lockable lock(String key) {
        return switch (arguments.lock()) {
            case "mutex" -> client.lock(key);
            case "fair" -> client.fairLock(key);
            case "read" -> client.readWriteLock(key).readLock();
            case "write" -> client.readWriteLock(key).writeLock();
            case "semaphore" -> {
                var semaphore = client.semaphore(key);
                semaphore.init(arguments.permits());
                yield semaphore;
            }
            default -> throw arguments.noSuchLock();
        };
    }

    private final class Held implements Client {
        private final LastUsed<Lockable> locks = new LastUsed<>(key -> lock(key));
        private Hold hold;

        @Override
        public boolean acquire(String key, long waitMs) throws InterruptedException {
            hold = locks.of(key).tryAcquire(Duration.ofMillis(waitMs)).orElse(null);
            return hold != null;
        }

        @Override
        public void release() {
            hold.close();
        }
    }
}
