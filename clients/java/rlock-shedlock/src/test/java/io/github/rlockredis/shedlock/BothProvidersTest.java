package io.github.rlockredis.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rlockredis.Probe;
import io.github.rlockredis.TestServer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.HashSet;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The provider of docs/operations/migration.md, which holds the old lock as well. */
class BothProvidersTest {
    record BothProviders(LockProvider rlock, LockProvider old, Runnable metOld) implements LockProvider {
        private static final Logger log = LoggerFactory.getLogger(BothProviders.class);

        @Override
        public Optional<SimpleLock> lock(LockConfiguration job) {
            var outer = rlock.lock(job);
            if (outer.isEmpty()) return outer;
            Optional<SimpleLock> inner = Optional.empty();
            try {
                inner = old.lock(job);
                if (inner.isEmpty()) {
                    metOld.run(); // A process that takes only the old lock holds it, or a crash has left it.
                    unlock(outer.get());
                    return inner;
                }
                // The old provider may have answered late, so the lease of the new lock starts again.
                var longer = outer.get().extend(job.getLockAtMostFor(), job.getLockAtLeastFor());
                var older = inner.get();
                if (longer.isEmpty()) unlock(older);
                return longer.map(newer -> () -> {
                    unlock(older); // Before the new one.
                    unlock(newer);
                });
            } catch (RuntimeException failed) {
                inner.ifPresent(BothProviders::unlock);
                unlock(outer.get());
                throw failed;
            }
        }

        private static void unlock(SimpleLock lock) {
            try {
                lock.unlock();
            } catch (RuntimeException failed) {
                log.warn("a lock was not released; it ends after lockAtMostFor", failed);
            }
        }
    }

    private static Fixture fixture;

    @BeforeAll
    static void start() throws Exception {
        fixture = new Fixture(new TestServer());
    }

    @AfterAll
    static void end() throws Exception {
        fixture.close();
    }

    private static LockConfiguration job(String name) {
        return new LockConfiguration(Instant.now(), name, Duration.ofSeconds(30), Duration.ZERO);
    }

    @Test
    void each_of_three_releases_excludes_the_one_before_and_the_one_after() {
        var names = new HashSet<String>();
        LockProvider old = configuration -> names.add(configuration.getName())
                ? Optional.of(() -> names.remove(configuration.getName()))
                : Optional.empty();
        var rlock = new RLockProvider(fixture.client);
        var met = new AtomicInteger();
        var both = new BothProviders(rlock, old, met::incrementAndGet);

        var held = old.lock(job("j")).orElseThrow();
        assertTrue(both.lock(job("j")).isEmpty());
        assertEquals(0, Probe.holders(fixture.redis, "shedlock:j")); // What it had taken is released.
        assertEquals(1, met.get());
        held.unlock();

        held = rlock.lock(job("j")).orElseThrow();
        assertTrue(both.lock(job("j")).isEmpty());
        held.unlock();

        held = both.lock(job("j")).orElseThrow();
        assertTrue(old.lock(job("j")).isEmpty());
        assertTrue(rlock.lock(job("j")).isEmpty());
        assertTrue(both.lock(job("j")).isEmpty());
        held.unlock();
        assertEquals(1, met.get(), "a process that holds both is not counted");
        old.lock(job("j")).orElseThrow();
        rlock.lock(job("j")).orElseThrow();
    }

    @Test
    void a_failure_of_the_old_provider_keeps_no_lock() {
        var failing = new BothProviders(
                new RLockProvider(fixture.client),
                configuration -> {
                    throw new IllegalStateException("no connection");
                },
                () -> {});
        var error = assertThrows(IllegalStateException.class, () -> failing.lock(job("f")));
        assertEquals("no connection", error.getMessage());
        assertEquals(0, Probe.holders(fixture.redis, "shedlock:f"));
    }

    @Test
    void the_lease_of_the_new_lock_starts_again_after_the_old_provider_has_answered() throws Exception {
        var both = new BothProviders(new RLockProvider(fixture.client), takes(1_500, () -> {}), () -> {});
        var held = both.lock(new LockConfiguration(Instant.now(), "s", Duration.ofSeconds(3), Duration.ZERO))
                .orElseThrow();
        Thread.sleep(2_000); // 3.5 s after the new lock was acquired.
        assertEquals(1, Probe.holders(fixture.redis, "shedlock:s"));
        held.unlock();
        assertEquals(0, Probe.holders(fixture.redis, "shedlock:s"));
    }

    @Test
    void no_job_runs_if_the_new_lock_has_ended_before_the_old_provider_answers() {
        var released = new AtomicInteger();
        var both =
                new BothProviders(new RLockProvider(fixture.client), takes(600, released::incrementAndGet), () -> {});
        var job = new LockConfiguration(Instant.now(), "l", Duration.ofMillis(300), Duration.ZERO);
        assertTrue(both.lock(job).isEmpty());
        assertEquals(1, released.get());
    }

    @Test
    void an_old_lock_that_cannot_be_released_keeps_no_new_lock_and_hides_no_result() {
        LockProvider broken = configuration -> Optional.of(() -> {
            throw new IllegalStateException("no connection");
        });
        new BothProviders(new RLockProvider(fixture.client), broken, () -> {})
                .lock(job("b"))
                .orElseThrow()
                .unlock();
        assertEquals(0, Probe.holders(fixture.redis, "shedlock:b"));
    }

    /** A provider that needs a time to lock. */
    private static LockProvider takes(long milliseconds, SimpleLock lock) {
        return configuration -> {
            try {
                Thread.sleep(milliseconds);
            } catch (InterruptedException interrupted) {
                throw new IllegalStateException(interrupted);
            }
            return Optional.of(lock);
        };
    }

    @Test
    void the_page_shows_this_provider() throws Exception {
        String page = Files.readString(Path.of("../../../docs/operations/migration.md"));
        String source = Files.readString(Path.of("src/test/java/io/github/rlockredis/shedlock/BothProvidersTest.java"));
        String shown = page.substring(page.indexOf("record BothProviders"));
        shown = shown.substring(0, shown.indexOf("```"));
        assertTrue(source.contains(shown.indent(4).replace("    \n", "\n")), shown);
    }
}
