package io.github.rlockredis.spring.boot;

import io.github.rlockredis.Hold;
import io.micrometer.core.instrument.MeterRegistry;
import java.util.concurrent.TimeUnit;

/** {@code rlock.lost}, {@code rlock.wait} and {@code rlock.hold}. Keys are no tags, because they may be many. */
final class MicrometerLockMetrics implements LockMetrics {
    private final MeterRegistry registry;

    MicrometerLockMetrics(MeterRegistry registry) {
        this.registry = registry;
        registry.counter("rlock.lost");
    }

    @Override
    public void lost(Hold hold) {
        registry.counter("rlock.lost").increment();
    }

    @Override
    public void waited(String method, boolean acquired, long nanoseconds) {
        registry.timer("rlock.wait", "method", method, "acquired", Boolean.toString(acquired))
                .record(nanoseconds, TimeUnit.NANOSECONDS);
    }

    @Override
    public void held(String method, long nanoseconds) {
        registry.timer("rlock.hold", "method", method).record(nanoseconds, TimeUnit.NANOSECONDS);
    }
}
