package example;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ByteArrayOutput;
import io.lettuce.core.protocol.CommandArgs;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.util.SafeEncoder;

/** Provokes what goes wrong with locks, and looks whether the classes beside this one survive it. `make test-examples` runs it. */
public final class Check {
    private static final int ROUNDS = 20;
    private static final Duration LEASE = Duration.ofSeconds(30);
    private static final Duration SECOND = Duration.ofSeconds(1);
    private static final HostAndPort SERVER = new HostAndPort("127.0.0.1", Integer.parseInt(System.getenv("PORT")));
    private static final HostAndPort LOSING = new HostAndPort("127.0.0.1", Integer.parseInt(System.getenv("LOSING_PORT")));
    private static final Jedis DIRECT = new Jedis(SERVER);

    private static void ok(String what) {
        System.out.println("ok  " + what);
    }

    private static void equal(Object got, Object wanted) {
        if (!got.equals(wanted)) throw new AssertionError(got + ", not " + wanted);
    }

    private static Object ask(String command, String... words) {
        return DIRECT.sendCommand(() -> SafeEncoder.encode(command), words);
    }

    private static int waiters(String key) {
        return ((List<?>) ask("RLOCK.WAITERS", key)).size();
    }

    private static void assertFree(String key) {
        equal(waiters(key), 0);
        equal(ask("RLOCK.PTTL", key), -2L);
    }

    /** How many requests for locks the server was sent. */
    private static int requests() {
        var calls = Pattern.compile("cmdstat_rlock\\.(?:acquire|cancel|release):calls=(\\d+)", Pattern.CASE_INSENSITIVE);
        return calls.matcher(DIRECT.info("commandstats")).results().mapToInt(one -> Integer.parseInt(one.group(1))).sum();
    }

    /** Of two that wait in one owner's name. */
    private static void inOneName(String library, Callable<Boolean> older, Callable<Boolean> newer) throws Exception {
        ask("RLOCK.ACQUIRE", "in-one-name", "holder");
        var before = requests();
        var threads = Executors.newFixedThreadPool(2);
        var superseded = threads.submit(older);
        while (waiters("in-one-name") == 0) Thread.sleep(10);
        var granted = threads.submit(newer);
        threads.shutdown(); // Otherwise its threads outlive a failed check.
        Thread.sleep(5000);
        var made = requests() - before;
        if (made >= 10) throw new AssertionError(made + " requests in 5 s");
        try {
            superseded.get();
            throw new AssertionError("the older one was not told");
        } catch (ExecutionException told) {
            equal(told.getCause().getMessage().startsWith("SUPERSEDED "), true);
        }
        ask("RLOCK.RELEASE", "in-one-name", "holder");
        equal(granted.get(), true);
        assertFree("in-one-name");
        ok(library + ": of two that wait in one owner's name the newer goes on, and the older asks no more");
    }

    private static <T> T within(long ms, Callable<T> work) throws Exception {
        var started = System.nanoTime();
        var result = work.call();
        var took = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - started);
        if (took > ms) throw new AssertionError("it took " + took + " ms of " + ms);
        return result;
    }

    private static void jedis() throws Exception {
        try (var losing = new JedisPool(LOSING.getHost(), LOSING.getPort())) {
            for (int round = 0; round < ROUNDS; round++) {
                var lock = new JedisLock(losing, LOSING, "cut:jedis", LEASE);
                equal(lock.acquire(Duration.ofSeconds(20)), true);
                equal(ask("RLOCK.HOLDS", "cut:jedis", lock.owner()), 1L);
                try {
                    lock.release();
                } catch (redis.clients.jedis.exceptions.JedisConnectionException lostReply) {
                    // The RELEASE was carried out.
                }
                assertFree("cut:jedis");
            }
            ok("Jedis: " + ROUNDS + " rounds with both replies lost: one hold, one RELEASE frees it");
            var first = new JedisLock(losing, LOSING, "job", LEASE);
            var second = new JedisLock(losing, LOSING, "job", LEASE);
            first.acquire(SECOND);
            equal(within(1500, () -> second.acquire(Duration.ofMillis(500))), false);
            equal(waiters("job"), 0);
            // What the pool's connections do by themselves.
            try (var pooled = losing.getResource()) {
                pooled.sendCommand(() -> SafeEncoder.encode("RLOCK.ACQUIRE"), "job", "pooled", "BLOCK", "4000");
                throw new AssertionError("a pooled connection waits for longer than 2 s: this check proves nothing");
            } catch (redis.clients.jedis.exceptions.JedisConnectionException timeout) {
                ok("Jedis: a pooled connection gives up after 2 s");
            }
            var helper = Executors.newSingleThreadExecutor();
            var granted = helper.submit(() -> second.acquire(Duration.ofSeconds(8)));
            Thread.sleep(500);
            ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
            Thread.sleep(3000);
            try {
                first.release();
            } catch (redis.clients.jedis.exceptions.JedisConnectionException cut) {
                first.release();
            }
            equal(within(1500, granted::get), true);
            equal(second.release(), true);
            assertFree("job");
            helper.shutdown();
            ok("Jedis: a wait that ends leaves nothing behind; one of 3.5 s, beyond the timeout of 2 s, goes on when it is cut off");
        }
    }

    private static boolean jedisInOneName(JedisPool pool) throws InterruptedException {
        var lock = new JedisLock(pool, SERVER, "in-one-name", LEASE);
        return lock.acquire("one-owner", Duration.ofSeconds(20)) && lock.release();
    }

    private static boolean lettuceInOneName(LettuceLocks locks) throws InterruptedException {
        return locks.release(locks.acquire("in-one-name", "one-owner", LEASE, Duration.ofSeconds(20)));
    }

    private static void inOneName() throws Exception {
        try (var pool = new JedisPool(SERVER.getHost(), SERVER.getPort())) {
            inOneName("Jedis", () -> jedisInOneName(pool), () -> jedisInOneName(pool));
        }
        try (var client = lettuceOf(SERVER, Duration.ofSeconds(60)); var older = new LettuceLocks(client); var newer = new LettuceLocks(client)) {
            inOneName("Lettuce", () -> lettuceInOneName(older), () -> lettuceInOneName(newer));
        }
    }

    private static RedisClient lettuceOf(HostAndPort address, Duration timeout) {
        return RedisClient.create(RedisURI.builder().withHost(address.getHost()).withPort(address.getPort()).withTimeout(timeout).build());
    }

    private static void lostReplies() throws Exception {
        try (var client = lettuceOf(LOSING, Duration.ofSeconds(60)); var locks = new LettuceLocks(client)) {
            for (int round = 0; round < ROUNDS; round++) {
                var hold = locks.acquire("cut:lettuce", LEASE, Duration.ofSeconds(20));
                equal(ask("RLOCK.HOLDS", "cut:lettuce", hold.owner()), 1L);
                locks.release(hold);
                assertFree("cut:lettuce");
            }
            ok("Lettuce: " + ROUNDS + " rounds with both replies lost: one hold, one RELEASE frees it");
        }
        try (var client = lettuceOf(LOSING, Duration.ofMillis(500)); var locks = new LettuceLocks(client)) {
            var hold = within(10_000, () -> locks.acquire("late:lettuce", LEASE, Duration.ofSeconds(9)));
            equal(ask("RLOCK.HOLDS", "late:lettuce", hold.owner()), 1L);
            ask("RLOCK.FORCERELEASE", "late:lettuce");
            Thread.sleep(2000);
            assertFree("late:lettuce");
            ok("Lettuce: a command timeout that keeps the connection leaves no hold for nobody");
        }
    }

    private static void lettuce() throws Exception {
        var threads = Executors.newCachedThreadPool();
        try (var client = lettuceOf(SERVER, Duration.ofSeconds(60)); var locks = new LettuceLocks(client)) {
            var first = new RenewedLock(locks, "shared", Duration.ofMillis(1500));
            first.lock();
            var tokens = Collections.synchronizedList(new ArrayList<Long>());
            for (int i = 0; i < 50; i++) {
                threads.submit(() -> {
                    var lock = new RenewedLock(locks, "shared", LEASE);
                    lock.lock();
                    tokens.add(lock.token());
                    lock.unlock();
                });
            }
            Thread.sleep(4000);
            equal(waiters("shared"), 50);
            equal(first.isLost(), false);
            within(500, () -> {
                first.unlock();
                return null;
            });
            threads.shutdown();
            equal(threads.awaitTermination(20, TimeUnit.SECONDS), true);
            equal(tokens.size(), 50);
            equal(tokens, tokens.stream().sorted().toList());
            assertFree("shared");
            ok("Lettuce: 50 threads wait over one connection, which serves the RELEASE that they wait for; renewed for longer than its lease");

            try (var plain = client.connect()) {
                var words = new CommandArgs<>(StringCodec.UTF8).add("spring").add("nobody");
                plain.sync().dispatch(() -> "RLOCK.ACQUIRE".getBytes(), new ByteArrayOutput<>(StringCodec.UTF8), words);
                throw new AssertionError("an output for bytes takes an integer: this check proves nothing");
            } catch (RuntimeException thrown) {
                equal(ask("RLOCK.HOLDS", "spring", "nobody"), 1L);
                ask("RLOCK.FORCERELEASE", "spring");
                locks.release(locks.acquire("spring", LEASE, SECOND));
                assertFree("spring");
                ok("Lettuce: the output that Spring takes throws, and the lock stays held; one for integers takes the token");
            }

            first.lock();
            var second = new RenewedLock(locks, "shared", LEASE);
            equal(second.tryLock(), false);
            equal(within(1500, () -> second.tryLock(500, TimeUnit.MILLISECONDS)), false);
            var waiter = new Thread(second::lock);
            waiter.start();
            Thread.sleep(300);
            ask("CLIENT", "KILL", "TYPE", "pubsub");
            ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
            ask("RLOCK.FORCERELEASE", "shared");
            Thread.sleep(1000);
            equal(first.isLost(), true);
            waiter.join(3500);
            equal(waiter.isAlive(), false);
            second.unlock();
            first.unlock();
            assertFree("shared");
            ok("Lettuce: waits end in time; a wait goes on when all connections are cut; a holder hears of its loss");
        }
    }

    public static void main(String[] arguments) throws Exception {
        java.util.logging.LogManager.getLogManager().reset(); // Lettuce tells of each connection that the checks cut.
        jedis();
        lostReplies();
        lettuce();
        inOneName();
        System.exit(0);
    }
}
