package io.github.rlockredis.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rlockredis.Probe;
import java.time.Duration;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.test.support.AbstractExtensibleLockProviderIntegrationTest;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;

/** ShedLock's own tests of providers. */
abstract class ProviderTest extends AbstractExtensibleLockProviderIntegrationTest {
    static Fixture fixture;

    @AfterAll
    static void end() throws Exception {
        fixture.close();
    }

    @Override
    protected ExtensibleLockProvider getLockProvider() {
        return new RLockProvider(fixture.client);
    }

    @Override
    protected void assertUnlocked(String name) {
        assertTrue((Long) Probe.one(fixture.redis, "RLOCK.PTTL", "shedlock:" + name) < 0);
    }

    @Override
    protected void assertLocked(String name) {
        assertTrue((Long) Probe.one(fixture.redis, "RLOCK.PTTL", "shedlock:" + name) > 0);
    }

    @Test
    void the_note_names_the_lock() {
        var lock = getLockProvider()
                .lock(lockConfig("job", Duration.ofSeconds(5), Duration.ZERO))
                .orElseThrow();
        assertTrue(Probe.ask(fixture.redis, "RLOCK.INFO", "shedlock:job")
                .toString()
                .contains("ShedLock job"));
        lock.unlock();
        assertEquals(0, Probe.holders(fixture.redis, "shedlock:job"));
    }
}
