package io.github.rlockredis.spring.integration;

import io.github.rlockredis.LockOptions;
import io.github.rlockredis.RLock;
import io.github.rlockredis.RLockClient;
import org.springframework.integration.support.locks.LockRegistry;

/**
 * Hands out distributed locks, for {@code LockRegistryLeaderInitiator}, aggregators and the like. The client renews
 * held locks, so the registry needs no task scheduler, and no lock expires during the work.
 *
 * <p>A lock that was lost throws a {@link io.github.rlockredis.RLockException.LockLostException} when its thread locks
 * it again or unlocks it; a leader is revoked by that.
 */
// Spring Integration 7 has given the interface a type parameter.
@SuppressWarnings("rawtypes")
public final class RLockRegistry implements LockRegistry {
    private final RLockClient client;
    private final String prefix;
    private final LockOptions options;

    /**
     * Locks with the default options.
     *
     * @param client stays open
     * @param registryKey locks live under {@code <registryKey>:<lockKey>}
     */
    public RLockRegistry(RLockClient client, String registryKey) {
        this(client, registryKey, LockOptions.DEFAULT);
    }

    /**
     * Locks with other options; with {@link LockOptions#withSession} a crash of a leader is noticed at once.
     *
     * @param client stays open
     * @param registryKey locks live under {@code <registryKey>:<lockKey>}
     * @param options of all locks
     */
    public RLockRegistry(RLockClient client, String registryKey, LockOptions options) {
        this.client = client;
        this.prefix = registryKey + ":";
        this.options = options;
    }

    /**
     * The lock of a key. Objects for the same key are the same lock.
     *
     * @param lockKey its text is the key
     * @return a reentrant lock
     */
    @Override
    public RLock obtain(Object lockKey) {
        return client.lock(prefix + lockKey).with(options);
    }
}
