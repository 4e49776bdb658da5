package example;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisException;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;

/** Locks on Lettuce and a server with rlock. All threads share one connection and one subscription, and none blocks the connection. */
public final class LettuceLocks implements AutoCloseable {
    /** A message may be lost with the connection that it was for. So whoever waits asks again so often, with the same number: that keeps its place. */
    private static final long ASK_AGAIN_MS = 2000;

    /** One acquisition that was granted. */
    public record Hold(String key, String owner, Duration lease, long token) {}

    private enum Command implements ProtocolKeyword {
        ACQUIRE, RELEASE, RENEW, CANCEL;

        @Override
        public byte[] getBytes() {
            return ("RLOCK." + name()).getBytes(StandardCharsets.US_ASCII);
        }
    }

    private final StatefulRedisConnection<String, String> connection;
    private final StatefulRedisPubSubConnection<String, String> subscription;
    private final String channel = "rlock:" + UUID.randomUUID();
    private final AtomicLong ids = new AtomicLong(); // Unique on the channel.
    private final Map<Long, CompletableFuture<String>> waiting = new ConcurrentHashMap<>();

    public LettuceLocks(RedisClient client) {
        connection = client.connect();
        subscription = client.connectPubSub();
        subscription.addListener(new RedisPubSubAdapter<>() {
            @Override
            public void message(String channel, String text) { // granted ID TOKEN | nil ID | error ID CODE TEXT
                var future = waiting.remove(Long.parseLong(text.split(" ")[1]));
                if (future != null) future.complete(text);
            }
        });
        subscription.sync().subscribe(channel);
    }

    /** A hold, or null when the wait is over. */
    public Hold acquire(String key, Duration lease, Duration wait) throws InterruptedException {
        // A name for this one acquisition: nothing that is repeated for it can become a second hold.
        return acquire(key, UUID.randomUUID().toString(), lease, wait);
    }

    Hold acquire(String key, String owner, Duration lease, Duration wait) throws InterruptedException {
        long token = 0;
        boolean isSuperseded = false;
        try {
            token = token(key, owner, lease, System.nanoTime() + wait.toNanos());
        } catch (RedisCommandExecutionException refused) {
            isSuperseded = refused.getMessage().startsWith("SUPERSEDED "); // A newer request in this owner's name goes on.
            throw refused;
        } finally {
            if (token == 0 && !isSuperseded) settle(key, owner);
        }
        return token == 0 ? null : new Hold(key, owner, lease, token);
    }

    private long token(String key, String owner, Duration lease, long deadline) throws InterruptedException {
        long id = ids.incrementAndGet();
        long left;
        while ((left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime())) > 0) {
            var message = new CompletableFuture<String>();
            waiting.put(id, message);
            try {
                // WAITING: the answer comes on the channel.
                Object answer = call(Command.ACQUIRE, key, owner, "PX", lease.toMillis(), "ONCE", "REQ", id, "BLOCK", left, "NOTIFY", channel);
                if (!"WAITING".equals(answer)) return answer == null ? 0 : (Long) answer;
                var words = message.get(Math.min(ASK_AGAIN_MS, left), TimeUnit.MILLISECONDS).split(" ", 3);
                if (words[0].equals("granted")) return Long.parseLong(words[2]);
                id = ids.incrementAndGet(); // The number is used up.
                if (words[0].equals("error") && !words[2].startsWith("UNBLOCKED")) throw new RedisCommandExecutionException(words[2]);
            } catch (RedisCommandExecutionException refused) {
                throw refused;
            } catch (RedisException ofTheConnection) { // Also a command timeout: the same number asks what came of it.
                Thread.sleep(100);
            } catch (TimeoutException noMessage) {
                continue;
            } catch (ExecutionException impossible) {
                throw new IllegalStateException(impossible);
            } finally {
                waiting.remove(id);
            }
        }
        Object answer = call(Command.ACQUIRE, key, owner, "PX", lease.toMillis(), "ONCE", "REQ", id); // Ends the wait, or is granted.
        return answer == null ? 0 : (Long) answer;
    }

    /** Leaves neither a waiter nor a hold behind. */
    private void settle(String key, String owner) {
        try {
            call(Command.CANCEL, key, owner);
            call(Command.RELEASE, key, owner);
        } catch (RedisException notOwnerAsARule) {
            // If the server cannot be reached, the lease ends what there is.
        }
    }

    public boolean renew(Hold hold) {
        return isMine(Command.RENEW, hold.key, hold.owner, "TOKEN", hold.token, "PX", hold.lease.toMillis());
    }

    /** False if the lock had been lost, or if an earlier RELEASE was carried out whose reply was lost. */
    public boolean release(Hold hold) {
        return isMine(Command.RELEASE, hold.key, hold.owner, "TOKEN", hold.token);
    }

    private boolean isMine(Command command, Object... words) {
        try {
            call(command, words);
            return true;
        } catch (RedisCommandExecutionException error) {
            if (!error.getMessage().startsWith("NOTOWNER ")) throw error;
            return false;
        }
    }

    /** What the server answers: a Long, a String, or null. Each of Lettuce's own outputs, which RedisTemplate.execute takes, throws at one of them. */
    private static final class Answer extends CommandOutput<String, String, Object> {
        Answer() {
            super(StringCodec.UTF8, null);
        }

        @Override
        public void set(long integer) {
            output = integer;
        }

        @Override
        public void set(ByteBuffer text) {
            output = text == null ? null : codec.decodeValue(text);
        }
    }

    private Object call(Command command, Object... words) {
        var arguments = new CommandArgs<>(StringCodec.UTF8);
        for (var word : words) arguments.add(word.toString());
        return connection.sync().dispatch(command, new Answer(), arguments);
    }

    @Override
    public void close() {
        subscription.close();
        connection.close();
    }
}
