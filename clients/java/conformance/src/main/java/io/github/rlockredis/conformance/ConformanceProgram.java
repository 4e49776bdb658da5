package io.github.rlockredis.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.github.rlockredis.Hold;
import io.github.rlockredis.LeaderElection;
import io.github.rlockredis.LockClock;
import io.github.rlockredis.LockOptions;
import io.github.rlockredis.Lockable;
import io.github.rlockredis.RLock;
import io.github.rlockredis.RLockClient;
import io.github.rlockredis.RLockException;
import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.resource.ClientResources;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/** Speaks the line protocol of clients/conformance/PROTOCOL.md. */
public final class ConformanceProgram {
    /** Abilities, and the rules that the package keeps of those that are not kept everywhere yet. */
    private static final List<String> FEATURES = List.of(
            "cluster", "sentinel", "tls", "clock", "threads", "timed", "B29", "B30", "B31", "B33", "B34", "B35");

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final ClientResources RESOURCES = ClientResources.create();

    private final Map<String, Client> clients = new ConcurrentHashMap<>();
    private final Map<String, Hold> holds = new ConcurrentHashMap<>();
    private final Map<String, ExecutorService> tasks = new ConcurrentHashMap<>();
    private final Map<Long, Call> calls = new ConcurrentHashMap<>();

    private record Client(RLockClient locks, AbstractRedisClient redis, Clock clock) {}

    /** A request that runs, and can be interrupted. */
    private static final class Call {
        private Thread thread;
        private boolean cancelled;

        synchronized void begin() {
            thread = Thread.currentThread();
            if (cancelled) thread.interrupt();
        }

        synchronized void cancel() {
            cancelled = true;
            if (thread != null) thread.interrupt();
        }

        synchronized void end() {
            thread = null;
            Thread.interrupted();
        }
    }

    private static final class Clock implements LockClock {
        private final AtomicLong advanced = new AtomicLong();

        @Override
        public long nanoTime() {
            return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(advanced.get());
        }

        @Override
        public long currentTimeMillis() {
            return System.currentTimeMillis() + advanced.get();
        }
    }

    private static final class Unsupported extends RuntimeException {
        private static final long serialVersionUID = 1;

        Unsupported(String what) {
            super(what);
        }
    }

    /**
     * Reads requests until the input ends.
     *
     * @param arguments none
     * @throws Exception if the input fails
     */
    public static void main(String[] arguments) throws Exception {
        var program = new ConformanceProgram();
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) program.accept(JSON.readTree(line));
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void say(Map<String, ?> line) {
        try {
            System.out.println(JSON.writeValueAsString(line));
            System.out.flush();
        } catch (com.fasterxml.jackson.core.JsonProcessingException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static long now() {
        return System.nanoTime() / 1000;
    }

    private void accept(JsonNode request) {
        String what = request.path("do").asText();
        if (what.equals("exit")) Runtime.getRuntime().halt(0);
        long id = request.path("id").asLong();
        var call = new Call();
        calls.put(id, call);
        // A thread is an owner, so requests share one only if they are to.
        Executor thread = request.hasNonNull("task")
                ? tasks.computeIfAbsent(request.get("task").asText(), name -> Executors.newSingleThreadExecutor())
                : work -> new Thread(work).start();
        thread.execute(() -> {
            call.begin();
            Map<String, Object> answer = new HashMap<>();
            try {
                answer.put("ok", answer(what, request));
            } catch (Exception failed) {
                answer.putAll(error(failed));
            } finally {
                call.end();
                calls.remove(id);
            }
            answer.put("id", id);
            say(answer);
        });
    }

    private static Map<String, Object> error(Throwable failed) {
        String name = failed.getClass().getSimpleName();
        String code = "";
        if (failed instanceof RLockException typed) {
            name = name.replace("Exception", "").replace("Lock", "");
            name = name.equals("Timeout") || name.equals("Lost") ? "Lock" + name : name;
            code = typed.code();
        } else if (failed instanceof InterruptedException || failed instanceof CancellationException) {
            name = "Cancelled";
        }
        String cause = failed.getCause() == null ? "" : failed.getCause().toString();
        return Map.of("error", name, "code", code, "message", String.valueOf(failed.getMessage()), "cause", cause);
    }

    private Object answer(String what, JsonNode request) throws Exception {
        return switch (what) {
            case "hello" ->
                Map.of(
                        "language", "java",
                        "package", "rlock-java",
                        "features", FEATURES);
            case "connect" -> connect(request);
            case "acquire" -> acquire(request);
            case "release" -> release(request);
            case "held" -> held(request);
            case "extend" -> {
                hold(request).extend(millis(request, "lease_ms"));
                yield Map.of();
            }
            case "work" -> work(request);
            case "run" -> run(request);
            case "lead" -> lead(request);
            case "init" ->
                Map.of(
                        "made",
                        client(request)
                                .locks
                                .semaphore(request.path("keys").path(0).asText())
                                .init(
                                        request.path("permits").asInt(1),
                                        request.hasNonNull("idle_ms") ? millis(request, "idle_ms") : Duration.ZERO));
            case "cancel" -> {
                Call call = calls.get(request.path("request").asLong());
                if (call != null) call.cancel();
                yield Map.of();
            }
            case "clock" -> {
                client(request)
                        .clock
                        .advanced
                        .addAndGet(request.path("advance_ms").asLong());
                yield Map.of();
            }
            case "close" -> close(request);
            case "stats" -> {
                System.gc();
                var runtime = Runtime.getRuntime();
                String[] handles = new File("/proc/self/fd").list();
                yield Map.of(
                        "memory_bytes",
                        runtime.totalMemory() - runtime.freeMemory(),
                        "handles",
                        handles == null ? 0 : handles.length,
                        "tasks",
                        Thread.activeCount());
            }
            default -> throw new Unsupported(what);
        };
    }

    private Client client(JsonNode request) {
        return clients.get(request.path("client").asText());
    }

    private Object connect(JsonNode request) {
        for (String field : List.of("decode", "pool", "driver")) {
            if (request.hasNonNull(field)) throw new Unsupported(field);
        }
        RedisURI uri = RedisURI.create(request.path("url").asText("redis://127.0.0.1"));
        if (request.hasNonNull("sentinel")) {
            uri.setSentinelMasterId(request.get("sentinel").path("master").asText());
            for (JsonNode node : request.get("sentinel").path("nodes")) {
                String[] parts = node.asText().split(":");
                uri.getSentinels().add(RedisURI.create(parts[0], Integer.parseInt(parts[1])));
            }
        }
        if (request.hasNonNull("command_timeout_ms")) {
            uri.setTimeout(Duration.ofMillis(request.get("command_timeout_ms").asLong()));
        }
        var ssl = SslOptions.builder();
        if (request.hasNonNull("ca_file"))
            ssl.trustManager(new File(request.get("ca_file").asText()));
        AbstractRedisClient redis;
        RLockClient.Builder builder;
        if (request.path("cluster").asBoolean()) {
            var cluster = RedisClusterClient.create(RESOURCES, uri);
            cluster.setOptions(ClusterClientOptions.builder()
                    .sslOptions(ssl.build())
                    .topologyRefreshOptions(ClusterTopologyRefreshOptions.builder()
                            .enableAllAdaptiveRefreshTriggers()
                            .build())
                    .build());
            builder = RLockClient.builder(cluster);
            redis = cluster;
        } else {
            var single = RedisClient.create(RESOURCES, uri);
            single.setOptions(ClientOptions.builder().sslOptions(ssl.build()).build());
            builder = RLockClient.builder(single);
            redis = single;
        }
        var clock = new Clock();
        var locks = builder.clock(clock)
                .keyPrefix(request.path("key_prefix").asText(""))
                .build();
        clients.put(request.path("client").asText(), new Client(locks, redis, clock));
        return Map.of();
    }

    private Object close(JsonNode request) {
        Client client = client(request);
        client.locks.close();
        client.redis.shutdown(0, 100, TimeUnit.MILLISECONDS);
        return Map.of();
    }

    private static LockOptions options(JsonNode request) {
        var options = LockOptions.DEFAULT;
        if (request.hasNonNull("lease_ms")) options = options.withLease(millis(request, "lease_ms"));
        if (request.hasNonNull("fixed_lease_ms")) options = options.withFixedLease(millis(request, "fixed_lease_ms"));
        if (request.hasNonNull("session_ms")) options = options.withSession(millis(request, "session_ms"));
        if (request.hasNonNull("grace_ms")) options = options.withGrace(millis(request, "grace_ms"));
        if (request.hasNonNull("owner"))
            options = options.withOwner(request.get("owner").asText());
        if (request.hasNonNull("note"))
            options = options.withNote(request.get("note").asText());
        return options;
    }

    /** A duration: milliseconds, or the name of an extreme value. */
    private static Duration millis(JsonNode request, String field) {
        JsonNode value = request.get(field);
        if (value.isNumber()) return Duration.ofNanos((long) (value.asDouble() * 1e6));
        return switch (value.asText()) {
            case "max" -> ChronoUnit.FOREVER.getDuration();
            case "min" -> Duration.ofSeconds(Long.MIN_VALUE);
            default -> throw new Unsupported(field + " of " + value);
        };
    }

    private Lockable lockable(JsonNode request) {
        RLockClient locks = client(request).locks;
        var keys = new ArrayList<String>();
        request.path("keys").forEach(key -> keys.add(key.asText()));
        String kind = request.path("kind").asText("mutex");
        var options = options(request);
        return switch (kind) {
            case "mutex" -> locks.lock(keys.get(0)).with(options);
            case "fair" -> locks.fairLock(keys.get(0)).with(options);
            case "read" -> locks.readWriteLock(keys.get(0)).readLock().with(options);
            case "write" -> locks.readWriteLock(keys.get(0)).writeLock().with(options);
            case "many" -> locks.multiLock(keys.toArray(String[]::new)).with(options);
            case "semaphore" ->
                locks.semaphore(keys.get(0))
                        .with(options)
                        .withPermits(request.path("permits").asInt(1));
            default -> throw new Unsupported(kind);
        };
    }

    private static Hold acquire(Lockable lock, JsonNode request) throws InterruptedException {
        if (!request.hasNonNull("wait_ms")) return lock.acquire();
        return lock.tryAcquire(millis(request, "wait_ms")).orElse(null);
    }

    private Object acquire(JsonNode request) throws Exception {
        Hold hold = acquire(lockable(request), request);
        if (hold == null) return Map.of("tokens", List.of(), "at_us", now());
        Object answer = Map.of(
                "tokens",
                hold.tokens(),
                "at_us",
                now(),
                "valid_ms",
                hold.remaining().toMillis());
        announce(hold, request);
        return answer;
    }

    private void announce(Hold hold, JsonNode request) {
        String name = request.path("hold").asText();
        holds.put(name, hold);
        hold.onLost(lost -> say(Map.of("event", "lost", "hold", name, "at_us", now())));
    }

    private Hold hold(JsonNode request) {
        Hold hold = holds.get(request.path("hold").asText());
        if (hold == null) throw new IllegalStateException("no such hold");
        return hold;
    }

    private Object release(JsonNode request) {
        Hold hold = hold(request);
        if (request.hasNonNull("keep_ms")) hold.releaseAndKeep(millis(request, "keep_ms"));
        else hold.close();
        return Map.of();
    }

    private Object held(JsonNode request) {
        Hold hold = hold(request);
        long at = now();
        return Map.of("held", hold.isHeld(), "valid_ms", hold.remaining().toMillis(), "at_us", at);
    }

    private Object run(JsonNode request) throws Exception {
        Lockable lock = lockable(request);
        try (Hold hold = request.hasNonNull("wait_ms") ? lock.acquire(millis(request, "wait_ms")) : lock.acquire()) {
            announce(hold, request);
            Thread.sleep(request.path("work_ms").asLong());
            say(Map.of("event", "step", "hold", request.path("hold").asText(), "at_us", now()));
            if (request.hasNonNull("fails")) {
                throw new Exception(request.get("fails").asText());
            }
        }
        return Map.of("result", "done");
    }

    private Object lead(JsonNode request) throws Exception {
        String name = request.path("hold").asText();
        var election = LeaderElection.start((RLock) lockable(request), hold -> {
            announce(hold, request);
            say(Map.of("event", "elected", "hold", name, "token", hold.token(), "at_us", now()));
            new CountDownLatch(1).await();
        });
        try {
            new CountDownLatch(1).await();
        } finally {
            election.close();
        }
        return Map.of();
    }

    private Object work(JsonNode request) throws Exception {
        if (request.hasNonNull("spread")) return new Crowd(request).work();
        Lockable lock = lockable(request);
        var done = new AtomicInteger();
        var notAcquired = new AtomicInteger();
        var lost = new AtomicInteger();
        var errors = new TreeMap<String, Integer>();
        long until = request.hasNonNull("for_ms")
                ? System.nanoTime()
                        + TimeUnit.MILLISECONDS.toNanos(request.get("for_ms").asLong())
                : 0;
        int times = request.path("times").asInt(until == 0 ? 1 : Integer.MAX_VALUE);
        var workers = new ArrayList<Thread>();
        for (int i = 0; i < request.path("tasks").asInt(1); i++) {
            var worker = new Thread(() -> {
                for (int n = 0; n < times && (until == 0 || System.nanoTime() < until); n++) {
                    try {
                        Boolean held = workOnce(lock, request);
                        if (held == null) notAcquired.incrementAndGet();
                        else if (held) done.incrementAndGet();
                        else lost.incrementAndGet();
                    } catch (InterruptedException cancelled) {
                        return;
                    } catch (RuntimeException failed) {
                        synchronized (errors) {
                            errors.merge((String) error(failed).get("error"), 1, Integer::sum);
                        }
                    }
                }
            });
            workers.add(worker);
            worker.start();
        }
        try {
            for (Thread worker : workers) worker.join();
        } catch (InterruptedException cancelled) {
            workers.forEach(Thread::interrupt);
            throw cancelled;
        }
        return Map.of("done", done, "not_acquired", notAcquired, "lost", lost, "errors", errors);
    }

    /** Whether it was held to the end; null if it was not acquired. */
    private static Boolean workOnce(Lockable lock, JsonNode request) throws InterruptedException {
        long asked = now();
        Hold hold = acquire(lock, request);
        if (hold == null) return null;
        long from = now();
        long end = System.nanoTime()
                + TimeUnit.MILLISECONDS.toNanos(request.path("hold_ms").asLong());
        var lostAt = new AtomicLong(Long.MAX_VALUE);
        hold.onLost(told -> lostAt.set(now()));
        long deadline = from;
        try {
            while (hold.isHeld()) {
                deadline = Math.max(deadline, deadline(hold));
                long left = end - System.nanoTime();
                if (left <= 0) break;
                TimeUnit.NANOSECONDS.sleep(Math.min(left, 20_000_000));
            }
        } finally {
            long to = Math.min(now(), Math.min(lostAt.get(), deadline));
            if (to > from) {
                sayIntervals(hold, asked, from, to);
            }
        }
        try {
            hold.close();
            return true;
        } catch (RLockException.LockLostException told) {
            return false;
        }
    }

    /** The deadline of a hold; 0 if it has ended, perhaps long ago. */
    private static long deadline(Hold hold) {
        // Read in this order, it is not later than the deadline that is believed in.
        long at = now();
        long left = hold.remaining().toMillis();
        return left > 0 ? at + left * 1000 : 0;
    }

    private static void sayIntervals(Hold hold, long asked, long from, long to) {
        for (int i = 0; i < hold.keys().size(); i++) {
            var line = new HashMap<String, Object>();
            line.put("event", "interval");
            line.put("key", hold.keys().get(i));
            line.put("token", hold.tokens().get(i));
            line.put("asked_us", asked);
            line.put("from_us", from);
            line.put("to_us", to);
            say(line);
        }
    }

    /** The tasks of `work` over many keys. They use the asynchronous form, so none needs a thread. */
    private final class Crowd {
        private final ScheduledExecutorService timer = Executors.newScheduledThreadPool(2);
        private final List<Lockable> locks = new ArrayList<>();
        private final int tasks;
        private final long over;
        private final long lasts;
        private final long holds;
        private final long step;
        private final AtomicInteger done = new AtomicInteger();
        private final AtomicInteger lost = new AtomicInteger();
        private final Map<String, Integer> errors = new ConcurrentHashMap<>();
        private final CountDownLatch running;

        Crowd(JsonNode request) {
            RLockClient client = client(request).locks;
            for (int n = 0; n < request.get("spread").asInt(); n++) {
                locks.add(client.lock(request.path("keys").path(0).asText() + n).with(options(request)));
            }
            tasks = request.path("tasks").asInt(1);
            running = new CountDownLatch(tasks);
            over = request.path("over_ms").asLong();
            lasts = request.path("for_ms").asLong() * 1000;
            holds = request.path("hold_ms").asLong() * 1000;
            // Shorter than from a renewal to its deadline, so each deadline is seen.
            step = Math.max(20_000, request.path("lease_ms").asLong() * 100);
        }

        Object work() throws InterruptedException {
            for (int n = 0; n < tasks; n++) {
                Lockable lock = locks.get(n % locks.size());
                timer.schedule(() -> again(lock, now() + lasts), over * n / tasks, TimeUnit.MILLISECONDS);
            }
            running.await();
            timer.shutdown();
            return Map.of("done", done, "not_acquired", 0, "lost", lost, "errors", errors);
        }

        private void again(Lockable lock, long until) {
            long asked = now();
            if (asked >= until) {
                running.countDown();
                return;
            }
            lock.acquireAsync().whenComplete((hold, failed) -> {
                if (hold != null) {
                    long from = now();
                    var told = new AtomicLong(Long.MAX_VALUE);
                    hold.onLost(any -> told.set(now()));
                    hold(lock, hold, until, new long[] {asked, from, Math.min(from + holds, until), from}, told);
                    return;
                }
                Throwable cause = failed.getCause() == null ? failed : failed.getCause();
                errors.merge((String) error(cause).get("error"), 1, Integer::sum);
                timer.schedule(() -> again(lock, until), 10, TimeUnit.MILLISECONDS);
            });
        }

        /** {@code span}: asked, from, the end of the work, and the deadline that was seen last. */
        private void hold(Lockable lock, Hold hold, long until, long[] span, AtomicLong told) {
            span[3] = Math.max(span[3], deadline(hold));
            boolean isHeld = hold.isHeld();
            long rest = span[2] - now();
            if (isHeld && rest > 0) {
                long left = Math.min(step, rest);
                timer.schedule(() -> hold(lock, hold, until, span, told), left, TimeUnit.MICROSECONDS);
                return;
            }
            long to = Math.min(now(), Math.min(told.get(), span[3]));
            if (to > span[1]) sayIntervals(hold, span[0], span[1], to);
            hold.releaseAsync().whenComplete((released, failed) -> {
                (isHeld && failed == null ? done : lost).incrementAndGet();
                timer.execute(() -> again(lock, until));
            });
        }
    }
}
