package io.github.rlockredis;

import io.lettuce.core.RedisClient;
import io.lettuce.core.api.sync.RedisCommands;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/** A server with the module, in a folder of its own. */
public final class TestServer implements AutoCloseable {
    private final Process process;
    private final Path folder;
    private final int port;

    public TestServer(String... options) throws Exception {
        this(true, options);
    }

    public TestServer(boolean withModule, String... options) throws Exception {
        port = freePort();
        folder = Files.createTempDirectory("rlock-test");
        var command = new ArrayList<String>(List.of(
                System.getProperty("rlock.server", "redis-server"),
                "--port",
                Integer.toString(port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--dir",
                folder.toString()));
        if (withModule) command.addAll(List.of("--loadmodule", System.getProperty("rlock.module")));
        command.addAll(List.of(options));
        process = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(folder.resolve("log").toFile())
                .start();
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
        try {
            await("the server listens", () -> {
                if (!process.isAlive()) throw new IllegalStateException("the server has ended; see " + folder);
                try (var socket = new Socket("127.0.0.1", port)) {
                    return socket.isConnected();
                } catch (IOException notYet) {
                    return false;
                }
            });
        } catch (RuntimeException failed) {
            process.destroyForcibly();
            throw failed;
        }
    }

    /** One server with the settings of "Failover without two holders" in docs/operations/failover.md, when it grants. */
    public static TestServer withoutTwoHolders() throws Exception {
        var server = new TestServer(
                "--rlock.max-lease-ms", "5000", "--rlock.quarantine-after", "restart", "--rlock.quarantine-ms", "6000");
        var client = RedisClient.create(server.url());
        try (var connection = client.connect()) {
            await(
                    "the quarantine has ended",
                    () -> connection.sync().info("rlock").contains("rlock_may_grant:1"));
        } finally {
            client.shutdown(0, 0, TimeUnit.SECONDS);
        }
        return server;
    }

    static int freePort() throws IOException {
        try (var socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            // A cluster's bus has a port 10,000 above.
            return socket.getLocalPort() < 50_000 ? socket.getLocalPort() : freePort();
        }
    }

    public int port() {
        return port;
    }

    public String url() {
        return "redis://127.0.0.1:" + port;
    }

    public long pid() {
        return process.pid();
    }

    public void kill() throws Exception {
        process.destroyForcibly().waitFor();
    }

    /** Waits for a condition, for 20 s at most. */
    public static void await(String what, BooleanSupplier condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) throw new AssertionError("waited in vain until " + what);
            Thread.sleep(10);
        }
    }

    /** Every holder and waiter that the server knows of a key, as text. */
    public static String left(RedisCommands<String, String> redis, String key) {
        return Probe.ask(redis, "RLOCK.INFO", key) + " " + Probe.ask(redis, "RLOCK.WAITERS", key);
    }

    @Override
    public void close() throws Exception {
        process.destroyForcibly().waitFor();
        try (var files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) Files.deleteIfExists(file);
        }
    }

    /** Three masters without replicas. */
    public static List<TestServer> cluster() throws Exception {
        var servers = new ArrayList<TestServer>();
        for (int i = 0; i < 3; i++) servers.add(new TestServer("--cluster-enabled", "yes"));
        var command = new ArrayList<String>(List.of("redis-cli", "--cluster", "create"));
        servers.forEach(server -> command.add("127.0.0.1:" + server.port));
        command.add("--cluster-yes");
        var create = new ProcessBuilder(command).redirectErrorStream(true).start();
        String output = new String(create.getInputStream().readAllBytes());
        if (create.waitFor() != 0) throw new IllegalStateException(output);
        for (var server : servers) {
            var client = RedisClient.create(server.url());
            try (var connection = client.connect()) {
                await("the cluster is up", () -> connection.sync().clusterInfo().contains("cluster_state:ok"));
            } finally {
                client.shutdown(0, 0, TimeUnit.SECONDS);
            }
        }
        return servers;
    }

    /** A port that leads to a server, and can stall, cut and delay. */
    public static final class Proxy implements AutoCloseable {
        private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        private final List<Socket> sockets = new ArrayList<>();
        private final int target;
        private volatile boolean stalled;
        private volatile boolean repliesStalled;
        private volatile boolean refusing;
        private volatile long delay;

        public Proxy(TestServer server) throws IOException {
            target = server.port;
            start(this::accept);
        }

        private static void start(Runnable work) {
            var thread = new Thread(work, "proxy");
            thread.setDaemon(true);
            thread.start();
        }

        private void accept() {
            while (!listener.isClosed()) {
                try {
                    var client = listener.accept();
                    if (refusing) {
                        client.close();
                        continue;
                    }
                    var server = new Socket("127.0.0.1", target);
                    client.setTcpNoDelay(true);
                    server.setTcpNoDelay(true);
                    synchronized (sockets) {
                        sockets.add(client);
                        sockets.add(server);
                    }
                    start(() -> pump(client, server, true));
                    start(() -> pump(server, client, false));
                } catch (IOException closed) {
                    // Ends with the listener.
                }
            }
        }

        private record Chunk(byte[] bytes, long due) {}

        private void pump(Socket from, Socket to, boolean requests) {
            var chunks = new java.util.concurrent.LinkedBlockingQueue<Chunk>();
            start(() -> forward(chunks, to, requests));
            try {
                InputStream in = from.getInputStream();
                var buffer = new byte[65536];
                int n;
                while ((n = in.read(buffer)) > 0) {
                    long due = System.nanoTime() + (requests ? TimeUnit.MILLISECONDS.toNanos(delay) : 0);
                    chunks.add(new Chunk(java.util.Arrays.copyOf(buffer, n), due));
                }
            } catch (IOException ended) {
                // Both ends are closed below.
            }
            chunks.add(new Chunk(new byte[0], 0));
        }

        private void forward(java.util.concurrent.BlockingQueue<Chunk> chunks, Socket to, boolean requests) {
            try {
                OutputStream out = to.getOutputStream();
                while (true) {
                    Chunk chunk = chunks.take();
                    if (chunk.bytes.length == 0) break;
                    long early = chunk.due - System.nanoTime();
                    if (early > 0) TimeUnit.NANOSECONDS.sleep(early);
                    while (stalled || !requests && repliesStalled) Thread.sleep(5);
                    out.write(chunk.bytes);
                }
            } catch (IOException | InterruptedException ended) {
                // Closed below.
            }
            try {
                to.close();
            } catch (IOException closed) {
                // It is.
            }
        }

        public String url() {
            return "redis://127.0.0.1:" + listener.getLocalPort();
        }

        public void stall(boolean on) {
            stalled = on;
        }

        public void stallReplies(boolean on) {
            repliesStalled = on;
        }

        public void refuse(boolean on) {
            refusing = on;
        }

        public void delay(long milliseconds) {
            delay = milliseconds;
        }

        public void cut() throws IOException {
            synchronized (sockets) {
                for (var socket : sockets) socket.close();
                sockets.clear();
            }
        }

        @Override
        public void close() throws IOException {
            listener.close();
            stalled = repliesStalled = false;
            cut();
        }
    }
}
