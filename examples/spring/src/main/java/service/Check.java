package service;

import io.lettuce.core.KillArgs;
import io.lettuce.core.RedisClient;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.api.StatefulRedisConnection;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.function.BooleanSupplier;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.support.GenericApplicationContext;

/** Two instances of the service beside each other, and what may happen to them. `make test-examples` runs it. */
public final class Check {
    private static final HttpClient HTTP = HttpClient.newHttpClient();
    private static final Counter WAREHOUSE = new Counter();
    private static final String SERVER = "redis://127.0.0.1:" + System.getenv("PORT");
    private static final StatefulRedisConnection<String, String> DIRECT = RedisClient.create(SERVER).connect();

    /** It loses parcels if two work on one order at a time: nothing but the lock keeps them apart. */
    private static final class Counter implements Shipping.Warehouse {
        private final Map<String, Long> parcels = new ConcurrentHashMap<>();
        private final Map<String, Long> tokens = new ConcurrentHashMap<>();
        /** Whoever packs waits for it. */
        private volatile CountDownLatch gate = new CountDownLatch(0);

        @Override
        public long pack(String order) throws InterruptedException {
            var parcel = parcels.getOrDefault(order, 0L) + 1;
            Thread.sleep(5);
            gate.await();
            return parcel;
        }

        @Override
        public void ship(String order, long parcel, long token) {
            if (tokens.merge(order, token, Math::max) > token) throw new IllegalStateException("a stale token");
            parcels.put(order, parcel);
        }
    }

    private static void ok(String what) {
        System.out.println("ok  " + what);
    }

    private static void equal(Object got, Object wanted) {
        if (!got.equals(wanted)) throw new AssertionError(got + ", not " + wanted);
    }

    /** By a script, since Lettuce knows none of these commands. */
    private static Object ask(String... words) {
        return DIRECT.sync().eval("return redis.call(unpack(ARGV))", ScriptOutputType.INTEGER, new String[] {words[1]}, words);
    }

    private static void assertFree(String key) {
        equal(ask("RLOCK.PTTL", key), -2L);
    }

    private static ConfigurableApplicationContext instance() {
        return new SpringApplicationBuilder(Shipping.class)
            .initializers(context -> ((GenericApplicationContext) context).registerBean(Shipping.Warehouse.class, () -> WAREHOUSE))
            .properties("server.port=0", "server.address=127.0.0.1", "server.shutdown=graceful", "spring.main.banner-mode=off",
                "logging.level.root=OFF", "spring.data.redis.url=" + SERVER)
            .run();
    }

    private static CompletableFuture<Integer> ship(ConfigurableApplicationContext instance, String order) {
        var port = ((ServletWebServerApplicationContext) instance).getWebServer().getPort();
        var request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/orders/" + order + "/ship"))
            .POST(HttpRequest.BodyPublishers.noBody()).build();
        return HTTP.sendAsync(request, BodyHandlers.discarding()).thenApply(HttpResponse::statusCode);
    }

    private static void until(BooleanSupplier condition) throws InterruptedException {
        var deadline = System.nanoTime() + 20_000_000_000L;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) throw new AssertionError("it has not come true");
            Thread.sleep(5);
        }
    }

    private static boolean isHeld(String key) {
        return (Long) ask("RLOCK.PTTL", key) > 0;
    }

    /** Enough on a busy machine, unless a wait is meant to end. */
    private static void letWaitsLast(int seconds) {
        System.setProperty("shipping.wait-seconds", Integer.toString(seconds));
    }

    public static void main(String[] arguments) throws Exception {
        letWaitsLast(60);
        try (var one = instance(); var other = instance()) {
            List<CompletableFuture<Integer>> answers = new ArrayList<>();
            for (int i = 0; i < 40; i++) answers.add(ship(i % 2 == 0 ? one : other, "42"));
            for (var answer : answers) equal(answer.join(), 200);
            equal(WAREHOUSE.parcels.get("42"), 40L);
            assertFree("order:42");
            ok("Spring: 40 requests to two instances work on one order, one at a time, in the order of their tokens");

            WAREHOUSE.gate = new CountDownLatch(1);
            var slow = ship(one, "7");
            until(() -> isHeld("order:7"));
            letWaitsLast(1);
            equal(ship(other, "7").join(), 423);
            letWaitsLast(60);
            equal(ask("RLOCK.FORCERELEASE", "order:7"), 1L);
            Thread.sleep(4500); // The next renewal comes within a third of 10 s.
            WAREHOUSE.gate.countDown();
            equal(slow.join(), 409);
            assertFree("order:7");
            ok("Spring: a request that waits for too long is answered 423, one whose lock was taken away 409, and nothing is left");

            WAREHOUSE.gate = new CountDownLatch(1);
            slow = ship(one, "8");
            until(() -> isHeld("order:8"));
            var waits = ship(other, "8");
            Thread.sleep(300);
            DIRECT.sync().clientKill(KillArgs.Builder.typePubsub());
            DIRECT.sync().clientKill(KillArgs.Builder.typeNormal().skipme());
            Thread.sleep(500);
            WAREHOUSE.gate.countDown();
            equal(slow.join(), 200);
            equal(waits.join(), 200);
            assertFree("order:8");
            ok("Spring: requests go on when all connections are cut while one works and one waits");

            WAREHOUSE.gate = new CountDownLatch(1);
            slow = ship(one, "9");
            until(() -> isHeld("order:9"));
            var ending = CompletableFuture.runAsync(one::close);
            Thread.sleep(500);
            WAREHOUSE.gate.countDown();
            equal(slow.join(), 200);
            ending.join();
            assertFree("order:9");
            equal(ship(other, "9").join(), 200);
            ok("Spring: an instance that is shut down ends its work first, and leaves no lock behind");
        }
        System.exit(0);
    }
}
