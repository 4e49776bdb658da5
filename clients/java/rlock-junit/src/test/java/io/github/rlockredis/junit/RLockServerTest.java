package io.github.rlockredis.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(60)
class RLockServerTest {
    private static final String MODULE = System.getenv("RLOCK_MODULE");

    private static Map<String, String> environment(String... changes) {
        var environment = new HashMap<>(System.getenv());
        for (int i = 0; i < changes.length; i += 2) environment.put(changes[i], changes[i + 1]);
        return environment;
    }

    private static String refusal(String installed, String... changes) {
        return assertThrows(IllegalStateException.class, () -> RLockServer.start(environment(changes), installed))
                .getMessage();
    }

    @Test
    void the_module_that_the_variable_names_or_the_installed_one_is_loaded() {
        try (var named = RLockServer.start(environment(), "/nowhere/librlock.so");
                var installed = RLockServer.start(environment("RLOCK_MODULE", ""), MODULE)) {
            assertNotEquals(named.port(), installed.port());
        }
    }

    @Test
    void what_is_missing_is_named(@TempDir Path folder) throws Exception {
        assertEquals(
                "the rlock module is missing: RLOCK_MODULE is not set and /nowhere/librlock.so does not exist; "
                        + "install the module, or set RLOCK_MODULE to the path of librlock.so",
                refusal("/nowhere/librlock.so", "RLOCK_MODULE", ""));
        assertEquals(
                "RLOCK_MODULE is '/else/librlock.so', which is not a file; expected the path of librlock.so",
                refusal(MODULE, "RLOCK_MODULE", "/else/librlock.so"));
        assertEquals(
                "the server is missing: RLOCK_SERVER is 'no-such-server'; "
                        + "expected a program of Redis 7.0 or newer, or Valkey",
                refusal(MODULE, "RLOCK_SERVER", "no-such-server"));
        assertEquals(
                "the server is missing: RLOCK_SERVER is '" + folder + "'; "
                        + "expected a program of Redis 7.0 or newer, or Valkey",
                refusal(MODULE, "RLOCK_SERVER", folder.toString()));
        assertTrue(refusal(MODULE, "RLOCK_SERVER", "", "PATH", folder.toString())
                .contains("found neither redis-server nor valkey-server in PATH"));
        Path wrong = Files.writeString(folder.resolve("wrong.so"), "no module");
        String refusal = refusal(MODULE, "RLOCK_MODULE", wrong.toString());
        assertTrue(refusal.contains("ended; its log ends with:"), refusal);
        assertTrue(refusal.contains("wrong.so"), refusal);
    }

    @Test
    void a_port_that_another_process_has_is_not_used() throws Exception {
        try (var server = RLockServer.start()) {
            String program = RLockServer.program(System.getenv());
            assertNull(RLockServer.tryStart(List.of(program, "--bind", "127.0.0.1"), server.port()));
        }
    }

    @Test
    void a_server_that_logs_nothing_to_its_output_is_ready() throws Exception {
        for (var options : List.of(new String[] {"--logfile", "elsewhere"}, new String[] {"--loglevel", "warning"})) {
            try (var server = RLockServer.start(options)) {
                server.flush();
                String program = RLockServer.program(System.getenv());
                assertNull(RLockServer.tryStart(
                        List.of(program, "--bind", "127.0.0.1", options[0], options[1]), server.port()));
            }
        }
    }

    /** Starts a server while the program exits. */
    static final class Exiting {
        public static void main(String... arguments) {
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                try {
                    RLockServer.start();
                } catch (IllegalStateException refused) {
                    System.out.println(refused.getMessage());
                }
            }));
        }
    }

    @Test
    void a_program_that_exits_leaves_no_server(@TempDir Path folder) throws Exception {
        var java = List.of(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                "-Djava.io.tmpdir=" + folder,
                "-cp",
                System.getProperty("java.class.path"),
                Exiting.class.getName());
        var exiting = new ProcessBuilder(java).redirectErrorStream(true).start();
        assertEquals("Shutdown in progress", new String(exiting.getInputStream().readAllBytes()).strip());
        try (var left = Files.list(folder)) {
            assertEquals(List.of(), left.toList());
        }
        assertEquals(List.of(), workingIn(folder));
    }

    private static List<ProcessHandle> workingIn(Path folder) {
        return ProcessHandle.allProcesses()
                .filter(it -> {
                    try {
                        return Files.readSymbolicLink(Path.of("/proc/" + it.pid() + "/cwd"))
                                .startsWith(folder);
                    } catch (IOException gone) {
                        return false;
                    }
                })
                .toList();
    }

    @Test
    void a_closed_server_leaves_neither_process_nor_folder() throws Exception {
        var server = RLockServer.start("--requirepass", "secret");
        Path folder = Files.readSymbolicLink(Path.of("/proc/" + server.pid() + "/cwd"));
        assertTrue(assertThrows(IllegalStateException.class, server::flush)
                .getMessage()
                .startsWith("FLUSHALL was refused: NOAUTH"));
        server.close();
        server.close();
        assertFalse(ProcessHandle.of(server.pid()).isPresent());
        assertFalse(Files.exists(folder));
    }
}
