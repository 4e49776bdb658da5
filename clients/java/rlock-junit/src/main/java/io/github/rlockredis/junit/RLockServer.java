package io.github.rlockredis.junit;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/**
 * A server with the module, on a free port of 127.0.0.1, without persistence, in a temporary folder.
 *
 * <p>The module is the file that the environment variable {@code RLOCK_MODULE} names, else
 * {@code /usr/lib/redis/modules/librlock.so}. The server is the program that {@code RLOCK_SERVER} names, else
 * {@code redis-server}, else {@code valkey-server}. An empty variable counts as unset.
 */
public final class RLockServer implements AutoCloseable {
    private static final String INSTALLED_MODULE = "/usr/lib/redis/modules/librlock.so";
    private static final int PORTS_TRIED = 10;
    private static final long START_SECONDS = 30;

    private final Path folder;
    private final int port;
    private final Process process;
    private final Thread atExit;

    private RLockServer(Path folder, int port, Process process) {
        this.folder = folder;
        this.port = port;
        this.process = process;
        this.atExit = new Thread(() -> remove(folder, process), "rlock-server-exit");
        try {
            Runtime.getRuntime().addShutdownHook(atExit);
        } catch (IllegalStateException exiting) {
            remove(folder, process);
            throw exiting;
        }
    }

    /**
     * Starts a server.
     *
     * @param options further options of the server, such as {@code "--maxmemory", "100mb"}
     * @return a server that is ready
     * @throws IllegalStateException the module or the server is missing, or the server did not start
     */
    public static RLockServer start(String... options) {
        return start(System.getenv(), INSTALLED_MODULE, options);
    }

    static RLockServer start(Map<String, String> environment, String installedModule, String... options) {
        var command = new ArrayList<String>(List.of(program(environment), "--bind", "127.0.0.1", "--save", ""));
        command.addAll(List.of("--loadmodule", module(environment.get("RLOCK_MODULE"), installedModule)));
        command.addAll(List.of(options));
        try {
            for (int i = 0; i < PORTS_TRIED; i++) {
                // Another process may take the port before the server does.
                var server = tryStart(command, freePort());
                if (server != null) return server;
            }
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
        throw new IllegalStateException(command.get(0) + " found each of " + PORTS_TRIED + " free ports in use");
    }

    private static String module(String named, String installed) {
        boolean unset = named == null || named.isEmpty();
        String path = unset ? installed : named;
        if (Files.isRegularFile(Path.of(path)))
            return Path.of(path).toAbsolutePath().toString();
        throw new IllegalStateException(
                unset
                        ? "the rlock module is missing: RLOCK_MODULE is not set and " + installed
                                + " does not exist; install the module, or set RLOCK_MODULE to the path of librlock.so"
                        : "RLOCK_MODULE is '" + named + "', which is not a file; expected the path of librlock.so");
    }

    static String program(Map<String, String> environment) {
        String named = environment.get("RLOCK_SERVER");
        boolean unset = named == null || named.isEmpty();
        var names = unset ? List.of("redis-server", "valkey-server") : List.of(named);
        var folders = environment.getOrDefault("PATH", "").split(File.pathSeparator);
        for (String name : names) {
            // A name without a folder is searched in PATH, as a shell does.
            var places = name.contains("/")
                    ? Stream.of(Path.of(name))
                    : Stream.of(folders).map(it -> Path.of(it, name));
            var found = places.filter(it -> Files.isRegularFile(it) && Files.isExecutable(it))
                    .findFirst();
            if (found.isPresent()) return found.get().toAbsolutePath().toString();
        }
        throw new IllegalStateException("the server is missing: "
                + (unset ? "found neither redis-server nor valkey-server in PATH" : "RLOCK_SERVER is '" + named + "'")
                + "; expected a program of Redis 7.0 or newer, or Valkey");
    }

    private static int freePort() throws IOException {
        try (var socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return socket.getLocalPort();
        }
    }

    /** Null if the port was in use. */
    static RLockServer tryStart(List<String> command, int port) throws IOException {
        Path folder = Files.createTempDirectory("rlock-test-");
        Path log = folder.resolve("log");
        var words = new ArrayList<>(command);
        words.addAll(List.of("--port", Integer.toString(port), "--dir", folder.toString()));
        var process = new ProcessBuilder(words)
                .redirectErrorStream(true)
                .redirectOutput(log.toFile())
                .start();
        var server = new RLockServer(folder, port, process);
        boolean ready = false;
        try {
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(START_SECONDS);
            while (!server.answers()) {
                boolean ended = !process.isAlive();
                if (ended && inUse(port)) return null;
                if (ended || System.nanoTime() > deadline) {
                    var lines = new String(Files.readAllBytes(log), StandardCharsets.UTF_8)
                            .lines()
                            .toList();
                    throw new IllegalStateException(command.get(0)
                            + (ended ? " ended" : " was not ready within " + START_SECONDS + " s")
                            + "; its log ends with:\n"
                            + String.join("\n", lines.subList(Math.max(0, lines.size() - 10), lines.size())));
                }
                TimeUnit.MILLISECONDS.sleep(5);
            }
            ready = true;
            return server;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while the server started", interrupted);
        } finally {
            if (!ready) server.close();
        }
    }

    private static boolean inUse(int port) {
        try {
            new ServerSocket(port, 1, InetAddress.getLoopbackAddress()).close();
            return false;
        } catch (IOException used) {
            return true;
        }
    }

    /** Whether the server is ready. Another process on its port does not count. */
    private boolean answers() {
        try (var socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
            socket.setSoTimeout(1_000);
            socket.getOutputStream().write("PING\r\nINFO server\r\nQUIT\r\n".getBytes(StandardCharsets.US_ASCII));
            String reply = new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            // A password, or an ACL, hides the process id.
            return reply.startsWith("+PONG\r\n") && reply.contains("\r\nprocess_id:" + pid() + "\r\n")
                    || (reply.startsWith("-NOAUTH") || reply.startsWith("-NOPERM")) && process.isAlive();
        } catch (IOException notYet) {
            return false;
        }
    }

    private static void remove(Path folder, Process process) {
        process.destroyForcibly().onExit().join();
        try (var files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) Files.deleteIfExists(file);
        } catch (IOException | UncheckedIOException left) {
            // A file that stays in the temporary folder fails no test.
        }
    }

    /**
     * The address of the server.
     *
     * @return always 127.0.0.1
     */
    public String host() {
        return "127.0.0.1";
    }

    /**
     * The port of the server.
     *
     * @return a new one for each server
     */
    public int port() {
        return port;
    }

    /**
     * The address for clients, and for {@code spring.data.redis.url}.
     *
     * @return {@code redis://127.0.0.1:<port>}
     */
    public String url() {
        return "redis://127.0.0.1:" + port;
    }

    /**
     * The id of the server's process.
     *
     * @return as the operating system has it
     */
    public long pid() {
        return process.pid();
    }

    /**
     * Deletes all keys, and with them all holds.
     *
     * @throws IllegalStateException the server refused, for instance because the options set a password
     */
    public void flush() {
        try (var socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
            socket.setSoTimeout(10_000);
            socket.getOutputStream().write("FLUSHALL\r\n".getBytes(StandardCharsets.US_ASCII));
            String reply = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8))
                    .readLine();
            if (!"+OK".equals(reply)) {
                throw new IllegalStateException(
                        "FLUSHALL was refused: " + (reply == null ? "no reply" : reply.substring(1)));
            }
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
    }

    /** Kills the server, and deletes its folder. */
    @Override
    public void close() {
        remove(folder, process);
        try {
            Runtime.getRuntime().removeShutdownHook(atExit);
        } catch (IllegalStateException exiting) {
            // The hook runs already.
        }
    }
}
