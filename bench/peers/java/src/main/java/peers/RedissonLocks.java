package peers;

import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson as documented: one client per process with its default pools, and locks without a lease,
 * which its watchdog keeps alive. The driver's lease is the watchdog's. With a replica, Redisson sends
 * WAIT after each acquisition, except to a server that is configured as the only one.
 */
final class RedissonLocks implements Locks {
    private final RedissonClient redisson;
    private final Arguments arguments;

    RedissonLocks(Arguments arguments) {
        this.arguments = arguments;
        var config = new Config();
        config.setLockWatchdogTimeout(arguments.leaseMs());
        String address = "redis://" + arguments.host() + ":" + arguments.port();
        if (arguments.peer().equals("redisson-wait")) {
            config.useReplicatedServers().addNodeAddress(address);
        } else {
            config.useSingleServer().setAddress(address);
        }
        redisson = Redisson.create(config);
    }

    @Override
    public Client connect(int client) {
        return arguments.lock().equals("semaphore") ? new Permit() : new Held();
    }

    @Override
    public void close() {
        redisson.shutdown();
    }

    private RLock lock(String key) {
        return switch (arguments.lock()) {
            case "mutex" -> redisson.getLock(key);
            case "fair" -> redisson.getFairLock(key);
            case "read" -> redisson.getReadWriteLock(key).readLock();
            case "write" -> redisson.getReadWriteLock(key).writeLock();
            default -> throw arguments.noSuchLock();
        };
    }

    private RSemaphore semaphore(String key) {
        var semaphore = redisson.getSemaphore(key);
        semaphore.trySetPermits(arguments.permits());
        return semaphore;
    }

    private final class Held implements Client {
        private final LastUsed<RLock> locks = new LastUsed<>(key -> lock(key));
        private RLock held;

        @Override
        public boolean acquire(String key, long waitMs) throws InterruptedException {
            held = locks.of(key);
            return held.tryLock(waitMs, TimeUnit.MILLISECONDS);
        }

        @Override
        public void release() {
            held.unlock();
        }
    }

    private final class Permit implements Client {
        private final LastUsed<RSemaphore> semaphores = new LastUsed<>(key -> semaphore(key));
        private RSemaphore held;

        @Override
        public boolean acquire(String key, long waitMs) throws InterruptedException {
            held = semaphores.of(key);
            return held.tryAcquire(1, java.time.Duration.ofMillis(waitMs));
        }

        @Override
        public void release() {
            held.release();
        }
    }
}
