package io.github.rlockredis.shedlock;

import io.github.rlockredis.Hold;
import io.github.rlockredis.LockOptions;
import io.github.rlockredis.RLock;
import io.github.rlockredis.RLockClient;
import io.github.rlockredis.RLockException;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletionException;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Lets ShedLock lock on rlock, whatever the clocks of the nodes show. {@code lockAtMostFor} limits the hold; if the
 * server allows only shorter leases ({@code rlock.max-lease-ms}), the client renews the hold until then, and a crash of
 * the node frees the lock earlier. {@code lockAtLeastFor} keeps the lock closed after the job has ended.
 *
 * <p>The server's NOTE shows which lock of ShedLock it is. Extending never shortens a lock.
 */
public final class RLockProvider implements ExtensibleLockProvider {
    private static final Logger log = LoggerFactory.getLogger(RLockProvider.class);

    private final RLockClient client;
    private final String prefix;
    private final Duration session;

    /**
     * Locks under {@code shedlock:<name>}.
     *
     * @param client stays open
     */
    public RLockProvider(RLockClient client) {
        this(client, "shedlock:");
    }

    /**
     * Locks under a prefix and the name.
     *
     * @param client stays open
     * @param prefix what comes before the names of locks
     */
    public RLockProvider(RLockClient client, String prefix) {
        this(client, prefix, null);
    }

    /**
     * Binds the locks to the connection, so that a crash of a node frees its locks early.
     *
     * @param client stays open
     * @param prefix what comes before the names of locks
     * @param session how long a lock outlives its connection, 10 ms or more; null for none
     */
    public RLockProvider(RLockClient client, String prefix, Duration session) {
        this.client = client;
        this.prefix = prefix;
        this.session = session;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        RLock lock = client.lock(prefix + configuration.getName())
                .with(LockOptions.DEFAULT
                        .withFixedLease(configuration.getLockAtMostFor())
                        .withSession(session)
                        .withNote("ShedLock " + configuration.getName()));
        try {
            // An owner of its own: ShedLock's locks are not reentrant.
            return lock.tryAcquireAsync(Duration.ZERO).join().map(hold -> new HeldLock(configuration, hold));
        } catch (CompletionException failed) {
            throw failed.getCause() instanceof RLockException typed ? typed : failed;
        }
    }

    private static final class HeldLock extends AbstractSimpleLock {
        private final Hold hold;

        HeldLock(LockConfiguration configuration, Hold hold) {
            super(configuration);
            this.hold = hold;
        }

        @Override
        protected void doUnlock() {
            Duration keep = Duration.between(ClockProvider.now(), lockConfiguration.getLockAtLeastUntil());
            try {
                hold.releaseAndKeep(keep);
            } catch (RLockException.LockLostException late) {
                log.warn("the lock was lost before the job ended: {}", lockConfiguration);
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration longer) {
            try {
                hold.extend(longer.getLockAtMostFor());
                return Optional.of(new HeldLock(longer, hold));
            } catch (RLockException.LockLostException late) {
                return Optional.empty();
            }
        }
    }
}
