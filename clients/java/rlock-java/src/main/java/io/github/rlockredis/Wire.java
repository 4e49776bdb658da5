package io.github.rlockredis;

import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.models.partitions.Partitions;
import io.lettuce.core.cluster.pubsub.StatefulRedisClusterPubSubConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.RedisPubSubListener;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BiFunction;
import java.util.function.Supplier;

/**
 * The connections of one client: one for commands, and one for messages that is made at the first
 * wait. Its methods run in the client's steps, and it calls back there.
 */
final class Wire {
    /** How connections are made; the cluster is null without one. */
    record Source(
            Supplier<? extends StatefulConnection<String, String>> commands,
            Supplier<? extends StatefulRedisPubSubConnection<String, String>> messages,
            RedisClusterClient cluster) {}

    private static final long FOLLOW_MS = 1000;
    // A failover takes about the node timeout, 15 s by default, and an election.
    private static final long FAILOVER_MS = 30_000;

    private final Source source;
    private final RLockClient client;
    private final String prefix;
    private final Map<String, CompletableFuture<Void>> channels = new HashMap<>();
    private final Map<Integer, String> slots = new HashMap<>();
    private final Map<String, RedisURI> homes = new HashMap<>();
    private final Map<StatefulConnection<?, ?>, Boolean> watched = new WeakHashMap<>();
    private final Listener listener = new Listener();
    private CompletableFuture<StatefulConnection<String, String>> commands;
    private CompletableFuture<StatefulRedisPubSubConnection<String, String>> messages;
    private boolean following;
    private Deadline unsettled; // While the map of the cluster is likely to change; null without a lost connection.
    private CompletableFuture<Void> refreshing = CompletableFuture.completedFuture(null);

    /** Milliseconds that one command may take: those of the connection. */
    volatile long timeout = RedisURI.DEFAULT_TIMEOUT_DURATION.toMillis();

    /** A command may have been carried out twice if this has changed since. */
    long doubts;

    Wire(Source source, RLockClient client, String prefix) {
        this.source = source;
        this.client = client;
        this.prefix = prefix;
    }

    /** Completes when commands can be sent. */
    CompletableFuture<?> ready() {
        if (commands == null || commands.isCompletedExceptionally()) {
            commands = CompletableFuture.<StatefulConnection<String, String>>supplyAsync(
                            source.commands::get, RLockClient::connect)
                    .thenApplyAsync(this::prepare, client::execute);
        }
        return commands.copy().orTimeout(timeout, TimeUnit.MILLISECONDS);
    }

    /** Whether a connection that a wait needs is being made, without a failure so far. */
    boolean connects() {
        return !commands.isDone() || messages == null || !messages.isDone();
    }

    private StatefulConnection<String, String> prepare(StatefulConnection<String, String> connection) {
        if (source.cluster == null) connection.addListener(listener);
        timeout = Deadline.millis(connection.getTimeout());
        if (timeout == 0) timeout = Deadline.YEAR_MS; // To Lettuce 0 is no limit.
        return connection;
    }

    /** Sends a command, and fails if no answer has come in time. Cancel it to give it up. */
    CompletableFuture<Object> send(Resource.Call call, long milliseconds) {
        var result = new CompletableFuture<Object>();
        long limit = Math.max(1, Math.min(milliseconds, timeout));
        var timer = client.schedule(() -> result.completeExceptionally(new TimeoutException()), limit);
        ready().thenCompose(ready -> watch(commands.join(), call.slotKey()))
                .thenCompose(watched -> {
                    if (result.isDone()) return result;
                    var command = dispatch(commands.join(), call.command(), call.arguments());
                    // Lettuce must not send later what its caller has given up.
                    result.whenComplete((reply, error) -> command.cancel(true));
                    return command;
                })
                .whenComplete(RLockClient.into(result));
        result.whenComplete((reply, error) -> timer.cancel(false));
        return result;
    }

    private static AsyncCommand<String, String, Object> dispatch(
            StatefulConnection<String, String> connection, String name, CommandArgs<String, String> arguments) {
        var reply = new Reply();
        reply.command = new AsyncCommand<>(new Command<>(new Keyword(name), reply, arguments));
        connection.dispatch(reply.command);
        return reply.command;
    }

    /** The channel on which waits for a key are answered: one, or in a cluster one per slot. */
    String channel(String key) {
        if (source.cluster == null) return prefix;
        return slots.computeIfAbsent(slot(key), slot -> {
            int tag = 0;
            while (slot(Integer.toString(tag)) != slot) tag++;
            return prefix + ":{" + tag + "}";
        });
    }

    private static int slot(String key) {
        return SlotHash.getSlot(key.getBytes(StandardCharsets.UTF_8));
    }

    /** Completes when the server has confirmed the subscription. */
    CompletableFuture<Void> subscribe(String channel) {
        if (source.cluster != null && !following) {
            following = true;
            client.schedule(this::follow, FOLLOW_MS);
        }
        var known = channels.get(channel);
        if (known != null && !known.isCompletedExceptionally()) return known;
        // With RESP2 Lettuce may take a message for the answer of SUBSCRIBE. So only a failure of the
        // command counts, and the listener confirms.
        var confirmed = new CompletableFuture<Void>();
        channels.put(channel, confirmed);
        homes.put(channel, home(channel));
        messages()
                .thenCompose(connection -> watch(connection, channel).thenApply(done -> connection.async()))
                .thenCompose(it -> source.cluster != null ? it.ssubscribe(channel) : it.subscribe(channel))
                .exceptionally(error -> {
                    confirmed.completeExceptionally(error);
                    return null;
                });
        return confirmed.orTimeout(timeout, TimeUnit.MILLISECONDS);
    }

    /** The node that serves the slot of a channel, or null. */
    private RedisURI home(String channel) {
        var connected = messages == null || messages.isCompletedExceptionally() ? null : messages.getNow(null);
        if (!(connected instanceof StatefulRedisClusterPubSubConnection<String, String> cluster)) return null;
        var node = cluster.getPartitions().getPartitionBySlot(slot(channel));
        return node == null ? null : node.getUri();
    }

    /**
     * Subscribes again at the nodes that serve the slots now. Lettuce renews a subscription at the node where it
     * was made, which may be a replica by now. The master undoes a grant if it finds no subscriber of its own.
     *
     * <p>For some time after a connection was lost, it asks for the map of the cluster each time: by default Lettuce
     * does so once in 30 seconds.
     */
    private void follow() {
        if (unsettled != null && unsettled.left() > 0 && refreshing.isDone()) {
            refreshing = source.cluster.refreshPartitionsAsync().toCompletableFuture();
        }
        for (var channel : List.copyOf(homes.keySet())) {
            var home = home(channel);
            if (home == null || home.equals(homes.put(channel, home))) continue;
            forget(channel);
        }
        following = !client.waits.isEmpty();
        if (following) client.schedule(this::follow, FOLLOW_MS);
    }

    /** Makes all that wait on a channel subscribe again, also those that wait for the subscription. */
    private void forget(String channel) {
        var pending = channels.remove(channel);
        if (pending != null) pending.completeExceptionally(new RedisException("the subscription has moved"));
        client.interrupted(channel);
    }

    private CompletableFuture<StatefulRedisPubSubConnection<String, String>> messages() {
        if (messages == null || messages.isCompletedExceptionally()) {
            messages = CompletableFuture.<StatefulRedisPubSubConnection<String, String>>supplyAsync(
                            source.messages::get, RLockClient::connect)
                    .thenApplyAsync(
                            connection -> {
                                connection.addListener((RedisPubSubListener<String, String>) listener);
                                if (source.cluster == null)
                                    connection.addListener((RedisConnectionStateListener) listener);
                                return connection;
                            },
                            client::execute);
        }
        return messages;
    }

    /** Listens to the state of the node's connection that serves a key. */
    private CompletableFuture<?> watch(StatefulConnection<String, String> connection, String key) {
        if (connection instanceof StatefulRedisClusterConnection<String, String> cluster) {
            return watch(cluster.getPartitions(), key, cluster::getConnectionAsync);
        }
        if (connection instanceof StatefulRedisClusterPubSubConnection<String, String> cluster) {
            return watch(cluster.getPartitions(), key, cluster::getConnectionAsync);
        }
        return CompletableFuture.completedFuture(null);
    }

    private <C extends StatefulConnection<String, String>> CompletableFuture<?> watch(
            Partitions nodes, String key, BiFunction<String, Integer, CompletableFuture<C>> connect) {
        var node = nodes.getPartitionBySlot(slot(key));
        if (node == null) return CompletableFuture.completedFuture(null);
        // Lettuce sends commands of a slot over the connection of this host and port.
        return connect.apply(node.getUri().getHost(), node.getUri().getPort())
                .thenAcceptAsync(
                        connection -> {
                            if (watched.put(connection, true) == null) connection.addListener(listener);
                        },
                        client::execute);
    }

    /**
     * Closes the connections, in another thread: Lettuce waits for the connections of a cluster to be
     * closed, which its own threads do, and this may be one of them.
     */
    void close() {
        if (commands != null) commands.thenAcceptAsync(StatefulConnection::closeAsync);
        if (messages != null) messages.thenAcceptAsync(StatefulConnection::closeAsync);
    }

    private final class Listener extends RedisPubSubAdapter<String, String> implements RedisConnectionStateListener {
        @Override
        public void onRedisConnected(RedisChannelHandler<?, ?> connection, SocketAddress address) {
            if (!(connection instanceof StatefulRedisPubSubConnection)) client.execute(client::connected);
        }

        @Override
        public void onRedisDisconnected(RedisChannelHandler<?, ?> connection) {
            client.execute(() -> {
                unsettled = Deadline.in(client.clock, FAILOVER_MS);
                if (connection instanceof StatefulRedisPubSubConnection) {
                    var interrupted = new RedisException("the subscription was interrupted");
                    channels.values().forEach(pending -> pending.completeExceptionally(interrupted));
                    channels.clear();
                    client.interrupted(null);
                } else {
                    doubts++;
                    client.disconnected();
                }
            });
        }

        @Override
        public void message(String channel, String text) {
            client.execute(() -> client.message(text));
        }

        @Override
        public void smessage(String channel, String text) {
            message(channel, text);
        }

        @Override
        public void subscribed(String channel, long count) {
            client.execute(() -> {
                // Lettuce also renews subscriptions that were given up, maybe at a former master. If one of
                // them confirms too early, the right confirmation makes the waits repeat their requests.
                var confirmed = channels.get(channel);
                if (confirmed != null && !confirmed.complete(null)) client.interrupted(channel);
            });
        }

        @Override
        public void ssubscribed(String channel, long count) {
            subscribed(channel, count);
        }

        @Override
        public void sunsubscribed(String channel, long count) {
            client.execute(() -> forget(channel));
        }
    }

    /** The name of a command that Lettuce does not know. */
    private record Keyword(String word) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return word.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public String toString() {
            return word;
        }
    }

    /** An integer, a text, nil, or a list of these. Lettuce's own outputs throw at some of them. */
    private static final class Reply extends CommandOutput<String, String, Object> {
        private AsyncCommand<String, String, Object> command;
        private List<Object> list;

        Reply() {
            super(StringCodec.UTF8, null);
        }

        @Override
        public void set(long integer) {
            add(integer);
        }

        @Override
        public void set(ByteBuffer text) {
            add(text == null ? null : codec.decodeValue(text));
        }

        @Override
        public void multi(int count) {
            if (count >= 0) output = list = new ArrayList<>(count);
        }

        private void add(Object item) {
            if (list == null) output = item;
            else list.add(item);
        }

        /** After a MOVED, Lettuce would send a cancelled command again, to another node. */
        @Override
        public String getError() {
            return command.isCancelled() ? null : super.getError();
        }
    }
}
