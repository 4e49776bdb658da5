package example;

import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.SafeEncoder;

/** One acquisition on Jedis and a server with rlock: short commands over the pool, and each wait over a connection of its own. */
public final class JedisLock {
    /** How much longer than the server the client waits for the answer of BLOCK. */
    private static final int SOCKET_MARGIN_MS = 1000;

    private final JedisPool pool;
    private final HostAndPort server;
    private final String key;
    private final Duration lease;
    private String owner;
    private long token;

    public JedisLock(JedisPool pool, HostAndPort server, String key, Duration lease) {
        this.pool = pool;
        this.server = server;
        this.key = key;
        this.lease = lease;
    }

    public boolean acquire(Duration wait) throws InterruptedException {
        // A name for this one acquisition: with ONCE a repeated command is no second hold.
        return acquire(UUID.randomUUID().toString(), wait);
    }

    boolean acquire(String owner, Duration wait) throws InterruptedException {
        this.owner = owner;
        token = 0;
        boolean isSuperseded = false;
        long deadline = System.nanoTime() + wait.toNanos();
        long left = Math.max(1, wait.toMillis());
        try {
            while (token == 0 && left > 0) {
                try {
                    token = waitFor((int) left);
                } catch (JedisDataException refused) {
                    isSuperseded = refused.getMessage().startsWith("SUPERSEDED "); // A newer request in this owner's name goes on.
                    throw refused;
                } catch (JedisException ofTheConnection) {
                    Thread.sleep(100); // Cut off while it waited: ask again, for what is left.
                }
                left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
            }
            return token != 0;
        } finally {
            if (token == 0 && !isSuperseded) settle();
        }
    }

    /** The timeout of the socket is above that of the wait. A pooled connection's, 2 s, would end it and leave the waiter behind. */
    private long waitFor(int ms) {
        var config = DefaultJedisClientConfig.builder().socketTimeoutMillis(ms + SOCKET_MARGIN_MS).build();
        try (var own = new Connection(server, config)) {
            own.sendCommand(() -> SafeEncoder.encode("RLOCK.ACQUIRE"), key, owner, "PX", "" + lease.toMillis(), "ONCE", "BLOCK", "" + ms);
            var answer = own.getIntegerReply();
            return answer == null ? 0 : answer;
        }
    }

    /** Leaves neither a waiter nor a hold behind. */
    private void settle() {
        try {
            call("RLOCK.CANCEL");
            call("RLOCK.RELEASE");
        } catch (JedisException notOwnerAsARule) {
            // If the server cannot be reached, the lease ends what there is.
        }
    }

    public boolean renew() {
        return isMine("RLOCK.RENEW", "TOKEN", "" + token, "PX", "" + lease.toMillis());
    }

    /** False if the lock had been lost, or if an earlier RELEASE was carried out whose reply was lost. */
    public boolean release() {
        return isMine("RLOCK.RELEASE", "TOKEN", "" + token);
    }

    private boolean isMine(String command, String... options) {
        try {
            call(command, options);
            return true;
        } catch (JedisDataException error) {
            if (!error.getMessage().startsWith("NOTOWNER ")) throw error;
            return false;
        }
    }

    private void call(String command, String... options) {
        var words = new String[options.length + 2];
        words[0] = key;
        words[1] = owner;
        System.arraycopy(options, 0, words, 2, options.length);
        try (Jedis jedis = pool.getResource()) {
            jedis.sendCommand(() -> SafeEncoder.encode(command), words);
        }
    }

    public String owner() {
        return owner;
    }
}
