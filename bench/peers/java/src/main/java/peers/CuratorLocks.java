package peers;

import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Curator's recipes on ZooKeeper, with one framework per process, as documented. The driver's lease
 * is the session timeout, after which ZooKeeper frees the locks of a dead process.
 */
final class CuratorLocks implements Locks {
    private static final int CONNECTION_TIMEOUT_MS = 15_000;

    private final CuratorFramework curator;
    private final Arguments arguments;

    CuratorLocks(Arguments arguments) throws InterruptedException {
        this.arguments = arguments;
        curator =
                CuratorFrameworkFactory.newClient(
                        arguments.host() + ":" + arguments.port(),
                        (int) arguments.leaseMs(),
                        CONNECTION_TIMEOUT_MS,
                        new ExponentialBackoffRetry(1000, 3));
        curator.start();
        curator.blockUntilConnected();
    }

    @Override
    public Client connect(int client) {
        return arguments.lock().equals("semaphore") ? new Permit() : new Held();
    }

    @Override
    public void close() {
        curator.close();
    }

    private InterProcessMutex lock(String key) {
        var path = "/" + key;
        return switch (arguments.lock()) {
            // The recipe serves in the order of arrival, so it is also the fair lock.
            case "mutex", "fair" -> new InterProcessMutex(curator, path);
            case "read" -> new InterProcessReadWriteLock(curator, path).readLock();
            case "write" -> new InterProcessReadWriteLock(curator, path).writeLock();
            default -> throw arguments.noSuchLock();
        };
    }

    private InterProcessSemaphoreV2 semaphore(String key) {
        return new InterProcessSemaphoreV2(curator, "/" + key, arguments.permits());
    }

    private final class Held implements Client {
        private final LastUsed<InterProcessMutex> locks = new LastUsed<>(key -> lock(key));
        private InterProcessMutex held;

        @Override
        public boolean acquire(String key, long waitMs) throws Exception {
            held = locks.of(key);
            return held.acquire(waitMs, TimeUnit.MILLISECONDS);
        }

        @Override
        public void release() throws Exception {
            held.release();
        }
    }

    private final class Permit implements Client {
        private final LastUsed<InterProcessSemaphoreV2> semaphores = new LastUsed<>(key -> semaphore(key));
        private InterProcessSemaphoreV2 semaphore;
        private Lease lease;

        @Override
        public boolean acquire(String key, long waitMs) throws Exception {
            semaphore = semaphores.of(key);
            lease = semaphore.acquire(waitMs, TimeUnit.MILLISECONDS);
            return lease != null;
        }

        @Override
        public void release() {
            semaphore.returnLease(lease);
        }
    }
}
