package peers;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/**
 * Runs the clients, each in a thread, and records what each of them did. It calculates nothing.
 *
 * <p>System.nanoTime is CLOCK_MONOTONIC on Linux, so the times compare with those of other
 * processes.
 */
public final class Main {
    private static final int WARM_UPS = 20;
    /** With this many clients, the warm-up of each is short. */
    private static final int MANY_CLIENTS = 1000;
    private static final long STACK_BYTES = 256 * 1024;
    private static final long WARM_UP_WAIT_MS = 60_000;
    /** How long the clients then compete as they will later, because the JVM compiles what runs often. */
    private static final long COMPILE_NANOS = 4_000_000_000L;
    private static final long PAUSE_AFTER_ERROR_MS = 10;
    private static final boolean STREAM = "1".equals(System.getenv("PEERS_STREAM"));

    private final Arguments arguments;
    private final Locks locks;
    private final CountDownLatch ready;
    private final CountDownLatch go = new CountDownLatch(1);
    private final AtomicInteger errors = new AtomicInteger();
    private volatile long endNanos;

    private Main(Arguments arguments, Locks locks) {
        this.arguments = arguments;
        this.locks = locks;
        this.ready = new CountDownLatch(arguments.clients());
    }

    public static void main(String[] words) throws Exception {
        var arguments = Arguments.parse(words);
        Locks locks =
                switch (arguments.peer()) {
                    case "redisson", "redisson-wait" -> new RedissonLocks(arguments);
                    case "rlock-java", "rlock-java-failover" -> new RlockLocks(arguments);
                    case "jedis", "jedis-wait" -> new JedisLocks(arguments);
                    case "curator" -> new CuratorLocks(arguments);
                    default -> throw new IllegalArgumentException("unknown peer " + arguments.peer());
                };
        int pairs = new Main(arguments, locks).run();
        System.out.flush();
        // Threads of the libraries would run for seconds.
        Runtime.getRuntime().halt(pairs < 0 ? 1 : 0);
    }

    private int run() throws Exception {
        List<Worker> workers = new ArrayList<>();
        for (int i = 0; i < arguments.clients(); i++) {
            var worker = new Worker(arguments.first() + i);
            workers.add(worker);
            worker.thread.start();
        }
        ready.await();
        for (var worker : workers) {
            if (worker.failure != null) {
                System.err.println("client " + worker.client + " could not start: " + worker.failure);
                return -1;
            }
        }
        say("ready");
        if (!"go".equals(new BufferedReader(new InputStreamReader(System.in)).readLine())) {
            return -1;
        }
        endNanos = System.nanoTime() + (long) (arguments.seconds() * 1e9);
        go.countDown();
        for (var worker : workers) {
            worker.thread.join();
        }
        int pairs = write(workers);
        say("done " + pairs + " " + errors.get());
        return pairs;
    }

    private int write(List<Worker> workers) throws IOException {
        int pairs = 0;
        try (BufferedWriter file = Files.newBufferedWriter(Path.of(arguments.out()))) {
            for (var worker : workers) {
                for (int i = 0; i < worker.count; i += 4) {
                    file.write(worker.client + "," + worker.lock());
                    for (int k = 0; k < 4; k++) {
                        file.write("," + worker.times[i + k]);
                    }
                    file.write('\n');
                    pairs++;
                }
            }
        }
        return pairs;
    }

    private static void say(String line) {
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    /** One client. */
    private final class Worker {
        final int client;
        final Thread thread;
        volatile Exception failure;
        long[] times = new long[4 * 256];
        int count;

        Worker(int client) {
            this.client = client;
            this.thread = new Thread(null, this::live, "client-" + client, STACK_BYTES);
        }

        int lock() {
            return client % arguments.locks();
        }

        void live() {
            try (Locks.Client own = locks.connect(client)) {
                warmUp(own);
                ready.countDown();
                go.await();
                if (arguments.hold()) {
                    hold(own);
                } else {
                    work(own);
                }
            } catch (Exception error) {
                failure = error;
                ready.countDown();
                if (endNanos != 0) {
                    fail(error);
                }
            }
        }

        private void warmUp(Locks.Client own) throws Exception {
            int times = arguments.clients() < MANY_CLIENTS ? WARM_UPS : 2;
            for (int i = 0; i < times; i++) {
                if (own.acquire(arguments.key() + ":warm:" + client, WARM_UP_WAIT_MS)) {
                    own.release();
                }
            }
            if (arguments.hold() || arguments.clients() >= MANY_CLIENTS) {
                return;
            }
            long end = System.nanoTime() + COMPILE_NANOS;
            while (System.nanoTime() < end) {
                if (own.acquire(arguments.key() + ":warm-up:" + lock(), WARM_UP_WAIT_MS)) {
                    own.release();
                }
            }
        }

        private void hold(Locks.Client own) throws Exception {
            own.acquire(arguments.key() + ":" + lock(), WARM_UP_WAIT_MS);
            say("held");
            TimeUnit.NANOSECONDS.sleep(endNanos - System.nanoTime());
        }

        private void work(Locks.Client own) throws InterruptedException {
            String key = arguments.key() + ":" + lock();
            while (true) {
                long asked = System.nanoTime();
                long waitMs = (endNanos - asked + 999_999) / 1_000_000;
                if (waitMs <= 0) {
                    return;
                }
                try {
                    if (!own.acquire(key, waitMs)) {
                        continue;
                    }
                    long got = System.nanoTime();
                    if (STREAM) {
                        say("got " + client + " " + lock() + " " + got);
                    }
                    work();
                    long free = System.nanoTime();
                    own.release();
                    record(asked, got, free, System.nanoTime());
                } catch (Exception error) {
                    fail(error);
                    Thread.sleep(PAUSE_AFTER_ERROR_MS);
                }
            }
        }

        private void work() {
            long end = System.nanoTime() + arguments.sectionMicros() * 1000;
            for (long left = end - System.nanoTime(); arguments.sectionMicros() > 0 && left > 0; left = end - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
        }

        private void record(long asked, long got, long free, long freed) {
            if (count == times.length) {
                times = java.util.Arrays.copyOf(times, 2 * count);
            }
            times[count++] = asked;
            times[count++] = got;
            times[count++] = free;
            times[count++] = freed;
        }

        private void fail(Exception error) {
            if (errors.getAndIncrement() == 0) {
                System.err.println("client " + client + ": " + error);
            }
        }
    }
}
