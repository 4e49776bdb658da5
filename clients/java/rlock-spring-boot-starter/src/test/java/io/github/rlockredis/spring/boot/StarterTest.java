package io.github.rlockredis.spring.boot;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rlockredis.Probe;
import io.github.rlockredis.RLockClient;
import io.github.rlockredis.RLockException;
import io.github.rlockredis.TestServer;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.sync.RedisCommands;
import io.micrometer.core.instrument.Meter;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.config.MeterFilter;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.boot.Banner;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Import;
import org.springframework.scheduling.annotation.Async;
import org.springframework.scheduling.annotation.EnableAsync;
import org.springframework.test.util.ReflectionTestUtils;

@Timeout(90)
class StarterTest {
    private static TestServer server;
    private static RedisClient redisClient;
    private static RedisCommands<String, String> redis;

    @SpringBootConfiguration
    @EnableAutoConfiguration
    @EnableAsync
    @Import(Orders.class)
    static class Application {}

    /** A service as an application has it. */
    static class Orders {
        @DistributedLock(key = "'orders:' + #id")
        public <T> T ship(int id, Callable<T> work) throws Exception {
            return work.call();
        }

        @DistributedLock(key = "'orders:' + #id", timeout = "${app.timeout:100ms}", lease = "5s", fair = false)
        public String tryToShip(int id) {
            return "shipped";
        }

        @Async
        @DistributedLock(key = "'async'")
        public void later(Runnable work) {
            work.run();
        }

        @DistributedLock(key = "'futures'")
        public CompletableFuture<String> future() {
            return CompletableFuture.completedFuture("too late");
        }
    }

    @BeforeAll
    static void start() throws Exception {
        server = new TestServer("--requirepass", "secret");
        redisClient = RedisClient.create("redis://:secret@127.0.0.1:" + server.port() + "/2");
        redis = redisClient.connect().sync();
    }

    @AfterAll
    static void end() throws Exception {
        redisClient.shutdown(0, 1, TimeUnit.SECONDS);
        server.close();
    }

    private static ConfigurableApplicationContext application(int port, String... more) {
        var arguments = new ArrayList<>(List.of(
                "--spring.data.redis.port=" + port,
                "--spring.data.redis.password=secret",
                "--spring.data.redis.database=2",
                "--rlock.key-prefix=app:",
                "--rlock.session=" + GRACE.toMillis() + "ms",
                "--rlock.note=a test",
                "--logging.level.root=error"));
        arguments.addAll(List.of(more));
        return new SpringApplicationBuilder(Application.class)
                .web(WebApplicationType.NONE)
                .bannerMode(Banner.Mode.OFF)
                .run(arguments.toArray(String[]::new));
    }

    @Test
    void an_annotated_method_runs_under_its_lock() throws Exception {
        try (var one = application(server.port());
                var other = application(server.port())) {
            Orders orders = one.getBean(Orders.class);
            var entered = new CountDownLatch(1);
            var leave = new CountDownLatch(1);
            var shipping = CompletableFuture.supplyAsync(() -> {
                try {
                    return orders.ship(7, () -> {
                        entered.countDown();
                        leave.await();
                        return orders.tryToShip(7) + Probe.holders(redis, "app:orders:7"); // Enters again.
                    });
                } catch (Exception failed) {
                    throw new IllegalStateException(failed);
                }
            });
            entered.await();
            assertTrue(Probe.ask(redis, "RLOCK.INFO", "app:orders:7").toString().contains("a test"));
            assertThrows(RLockException.LockTimeoutException.class, () -> other.getBean(Orders.class)
                    .tryToShip(7));
            assertEquals("shipped", other.getBean(Orders.class).tryToShip(8));
            leave.countDown();
            assertEquals("shipped1", shipping.get(10, TimeUnit.SECONDS));
            assertEquals("shipped", other.getBean(Orders.class).tryToShip(7));
            assertEquals(0, Probe.holders(redis, "app:orders:7"));
            assertThrows(IllegalStateException.class, orders::future);
            var meters = other.getBean(MeterRegistry.class);
            assertEquals(
                    1,
                    meters.get("rlock.wait").tags("acquired", "false").timer().count());
            assertEquals(
                    2, meters.get("rlock.wait").tags("acquired", "true").timer().count());
            assertNotNull(meters.get("rlock.hold").timer());
        }
    }

    @Test
    void a_lost_hold_is_counted_and_thrown_unless_the_method_throws() throws Exception {
        try (var application = application(server.port())) {
            var orders = application.getBean(Orders.class);
            Callable<String> lose = () -> {
                var losses = application.getBean(MeterRegistry.class).counter("rlock.lost");
                double before = losses.count();
                redis.del("app:orders:9");
                // Renewed at a third of the session, and lost by that.
                TestServer.await("the loss is counted", () -> losses.count() == before + 1);
                return "done";
            };
            assertThrows(RLockException.LockLostException.class, () -> orders.ship(9, lose));
            var failed = assertThrows(
                    IOException.class,
                    () -> orders.ship(9, () -> {
                        throw new IOException(lose.call());
                    }));
            assertEquals(RLockException.LockLostException.class, failed.getSuppressed()[0].getClass());
        }
    }

    @Test
    void an_asynchronous_method_holds_the_lock_in_its_own_thread() throws Exception {
        try (var application = application(server.port())) {
            var lock = application.getBean(RLockClient.class).lock("async");
            var held = new CompletableFuture<Boolean>();
            application.getBean(Orders.class).later(() -> held.complete(lock.isHeldByCurrentThread()));
            assertTrue(held.get(10, TimeUnit.SECONDS));
        }
    }

    @Test
    void metrics_that_fail_leave_no_hold_and_hide_no_result() throws Exception {
        try (var application = application(server.port())) {
            application.getBean(MeterRegistry.class).config().meterFilter(new MeterFilter() {
                @Override
                public Meter.Id map(Meter.Id id) {
                    if (id.getName().startsWith("rlock.")) throw new IllegalStateException("no meters");
                    return id;
                }
            });
            assertEquals("done", application.getBean(Orders.class).ship(10, () -> "done"));
            assertEquals(0, Probe.holders(redis, "app:orders:10"));
        }
    }

    @Test
    void closing_the_context_is_a_loss_to_a_method_that_still_works() throws Exception {
        var application = application(server.port());
        assertThrows(
                RLockException.LockLostException.class,
                () -> application.getBean(Orders.class).ship(11, () -> {
                    application.close();
                    return "done";
                }));
    }

    @Test
    void closing_the_context_releases_what_is_held() throws Exception {
        try (var application = application(server.port())) {
            application.getBean(RLockClient.class).lock("held").lock();
            assertEquals(1, Probe.holders(redis, "app:held"));
        }
        assertEquals(0, Probe.holders(redis, "app:held"));
    }

    @Test
    void health_is_that_of_the_server_and_its_module() throws Exception {
        try (var application = application(server.port());
                var plain = new TestServer(false, "--requirepass", "secret");
                var without = application(plain.port())) {
            String health = health(application);
            assertTrue(health.startsWith("UP ") && health.contains("token"), health);
            health = health(without);
            assertTrue(health.startsWith("DOWN ") && health.contains("unknown command"), health);
        }
    }

    /** Status and details. By name, since Spring Boot 4 has other types than Spring Boot 3. */
    private static String health(ConfigurableApplicationContext application) {
        Object health = ReflectionTestUtils.invokeMethod(application.getBean("rlockHealthIndicator"), "health");
        return ReflectionTestUtils.invokeMethod(health, "getStatus") + " "
                + ReflectionTestUtils.invokeMethod(health, "getDetails");
    }

    @Test
    void nothing_is_made_if_it_is_disabled() {
        try (var application = application(server.port(), "--rlock.enabled=false")) {
            assertTrue(application.getBeansOfType(RLockClient.class).isEmpty());
        }
    }

    /** Holds a lock until it is killed. */
    static class Holder {
        public static void main(String[] arguments) throws Exception {
            application(Integer.parseInt(arguments[0])).getBean(Orders.class).ship(1, () -> {
                System.out.println("held");
                Thread.sleep(60_000);
                return null;
            });
        }
    }

    private static final Duration GRACE = Duration.ofMillis(500);
    private static final Duration AFTER_GRACE = Duration.ofMillis(100);

    @Test
    @Timeout(300) // Starts up to three further virtual machines.
    void the_next_holder_follows_a_killed_process_within_the_session_and_100_ms() throws Exception {
        Duration after = nextHolderAfterKill();
        // A busy machine may be late, but not each time.
        for (int i = 0; i < 2 && after.compareTo(GRACE.plus(AFTER_GRACE)) > 0; i++) after = nextHolderAfterKill();
        System.out.println("from kill -9 to the next holder: " + after.toMillis() + " ms");
        assertTrue(after.compareTo(GRACE.plus(AFTER_GRACE)) <= 0, "after " + after.toMillis() + " ms");
    }

    private static Duration nextHolderAfterKill() throws Exception {
        var process = new ProcessBuilder(
                        System.getProperty("java.home") + "/bin/java",
                        "-cp",
                        System.getProperty("java.class.path"),
                        Holder.class.getName(),
                        Integer.toString(server.port()))
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        try (var application = application(server.port())) {
            var output = process.inputReader();
            String line;
            while (!"held".equals(line = output.readLine())) assertNotNull(line, "the holder has ended");
            var next = CompletableFuture.supplyAsync(() -> {
                try {
                    return application.getBean(Orders.class).ship(1, System::nanoTime);
                } catch (Exception failed) {
                    throw new IllegalStateException(failed);
                }
            });
            TestServer.await("it waits", () -> Probe.waiters(redis, "app:orders:1") == 1);
            long killed = System.nanoTime();
            process.destroyForcibly(); // kill -9
            return Duration.ofNanos(next.get(20, TimeUnit.SECONDS) - killed);
        } finally {
            process.destroyForcibly();
        }
    }
}
