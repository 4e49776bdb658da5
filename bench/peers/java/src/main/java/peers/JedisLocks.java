package peers;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.util.SafeEncoder;

/**
 * rlock without a dedicated client: its commands with Jedis, and waits with BLOCK. As in
 * docs/clients.md, each acquisition has its own owner and says ONCE, and each waiting client has
 * its own connection.
 *
 * <p>{@code jedis-wait} also waits until the replica has the grant. WAIT covers only what its
 * connection wrote last, so after a wait the ACQUIRE is repeated, which renews the lease.
 */
final class JedisLocks implements Locks {
    /** How much longer than BLOCK the client waits for the answer. */
    private static final int SOCKET_MARGIN_MS = 1000;
    private static final long REPLICA_WAIT_MS = 1000;
    private static final long RETRY_FOR_NANOS = 10_000_000_000L;
    private static final long RETRY_PAUSE_NANOS = 20_000_000L;

    private final Arguments arguments;
    private final String family;
    private final String mode;
    private final boolean waitsForReplica;

    JedisLocks(Arguments arguments) {
        this.arguments = arguments;
        family =
                switch (arguments.lock()) {
                    case "mutex" -> "RLOCK";
                    case "fair" -> "RFAIRLOCK";
                    case "read", "write" -> "RRWLOCK";
                    case "semaphore" -> "RSEMAPHORE";
                    default -> throw arguments.noSuchLock();
                };
        waitsForReplica = arguments.peer().equals("jedis-wait");
        mode = family.equals("RRWLOCK") ? arguments.lock().toUpperCase() : null;
    }

    @Override
    public Client connect(int client) {
        return new Held(client);
    }

    @Override
    public void close() {}

    private final class Held implements Client {
        private final String name;
        private Connection connection;
        private String key;
        private String owner;
        private String token;
        private long acquisitions;

        Held(int client) {
            name = ProcessHandle.current().pid() + "-" + client + "-";
            connection = open();
        }

        private Connection open() {
            int timeoutMs = (int) (arguments.seconds() * 1000) + SOCKET_MARGIN_MS + 60_000;
            var config = DefaultJedisClientConfig.builder().socketTimeoutMillis(timeoutMs).build();
            return new Connection(new HostAndPort(arguments.host(), arguments.port()), config);
        }

        @Override
        public boolean acquire(String key, long waitMs) {
            if (!key.equals(this.key)) {
                this.key = key;
                if (family.equals("RSEMAPHORE")) {
                    call(family + ".INIT", key, "" + arguments.permits());
                }
            }
            owner = name + ++acquisitions;
            List<String> words = head();
            words.addAll(List.of("PX", "" + arguments.leaseMs(), "ONCE"));
            if (arguments.hold()) {
                words.addAll(List.of("SESSION", "0"));
            }
            if (waitsForReplica && acquireOnReplica(words)) {
                return true;
            }
            Long answer = call(family + ".ACQUIRE", with(words, "BLOCK", "" + waitMs));
            token = String.valueOf(answer);
            return answer != null && (!waitsForReplica || acquireOnReplica(words));
        }

        /** Acquires, or repeats it, and waits until the replica has the grant. Returns false if the lock is taken. */
        private boolean acquireOnReplica(List<String> words) {
            send(family + ".ACQUIRE", words.toArray(String[]::new));
            send("WAIT", "1", "" + REPLICA_WAIT_MS);
            Long answer = connection.getIntegerReply();
            long replicas = connection.getIntegerReply();
            token = String.valueOf(answer);
            if (answer != null && replicas < 1) {
                release();
                throw new IllegalStateException("the replica did not confirm within " + REPLICA_WAIT_MS + " ms");
            }
            return answer != null;
        }

        private void send(String command, String... words) {
            if (connection == null) {
                connection = open();
            }
            connection.sendCommand(() -> SafeEncoder.encode(command), words);
        }

        private static String[] with(List<String> words, String... more) {
            List<String> all = new ArrayList<>(words);
            all.addAll(List.of(more));
            return all.toArray(String[]::new);
        }

        @Override
        public void release() {
            List<String> words = head();
            words.addAll(List.of("TOKEN", token));
            call(family + ".RELEASE", words.toArray(String[]::new));
        }

        private List<String> head() {
            List<String> words = new ArrayList<>(10);
            words.add(key);
            words.add(owner);
            if (mode != null) {
                words.add(mode);
            }
            return words;
        }

        /** Repeats a command until it is answered: ONCE and TOKEN make that safe. */
        private Long call(String command, String... words) {
            long giveUpNanos = System.nanoTime() + RETRY_FOR_NANOS;
            boolean isRepeated = false;
            while (true) {
                try {
                    send(command, words);
                    return connection.getIntegerReply();
                } catch (JedisDataException refused) {
                    if (isRepeated && refused.getMessage().startsWith("NOTOWNER ")) {
                        return 0L; // The first attempt succeeded, and its answer was lost.
                    }
                    if (!refused.getMessage().startsWith("LOADING ") || System.nanoTime() > giveUpNanos) {
                        throw refused;
                    }
                } catch (JedisConnectionException broken) {
                    close();
                    if (System.nanoTime() > giveUpNanos) {
                        throw broken;
                    }
                }
                isRepeated = true;
                LockSupport.parkNanos(RETRY_PAUSE_NANOS);
            }
        }

        @Override
        public void close() {
            if (connection != null) {
                connection.close();
                connection = null;
            }
        }
    }
}
