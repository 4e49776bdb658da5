package io.github.rlockredis;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.RedisClient;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class ClusterTest {
    private static List<TestServer> servers;
    private static RedisClusterClient redis;

    @BeforeAll
    static void startCluster() throws Exception {
        servers = TestServer.cluster();
        redis = RedisClusterClient.create(servers.get(0).url());
        redis.setOptions(ClusterClientOptions.builder()
                .topologyRefreshOptions(ClusterTopologyRefreshOptions.builder()
                        .enableAllAdaptiveRefreshTriggers()
                        .build())
                .build());
    }

    @AfterAll
    static void endCluster() throws Exception {
        redis.shutdown(0, 1, TimeUnit.SECONDS);
        for (var server : servers) server.close();
    }

    private static void killConnections(String type) throws Exception {
        for (var server : servers) {
            var client = RedisClient.create(server.url());
            Probe.ask(client.connect().sync(), "CLIENT", "KILL", "TYPE", type);
            client.shutdown(0, 0, TimeUnit.SECONDS);
        }
    }

    @Test
    void waits_on_many_slots_are_answered_also_after_lost_connections() throws Exception {
        try (var holder = RLockClient.create(redis);
                var waiter = RLockClient.create(redis)) {
            for (String killed : List.of("", "normal", "pubsub")) {
                var holds = new ArrayList<Hold>();
                var waits = new ArrayList<CompletableFuture<Hold>>();
                for (String key : List.of("a", "b", "c", "d", "{x}y", "odd}{", "{}z", "äöü")) {
                    holds.add(holder.lock(key).acquire());
                    waits.add(waiter.lock(key).acquireAsync());
                }
                holds.add(holder.multiLock("{t}1", "{t}2").acquire());
                waits.add(waiter.multiLock("{t}2", "{t}1").acquireAsync());
                Thread.sleep(300);
                if (!killed.isEmpty()) killConnections(killed);
                Thread.sleep(killed.isEmpty() ? 0 : 500);
                for (Hold hold : holds) hold.close();
                long start = System.nanoTime();
                for (var wait : waits) {
                    assertDoesNotThrow(() -> wait.get(15, TimeUnit.SECONDS), killed + waits.indexOf(wait))
                            .close();
                }
                assertTrue(System.nanoTime() - start < TimeUnit.SECONDS.toNanos(10), killed);
            }
        }
    }

    @Test
    void a_session_is_renewed_over_the_new_connection_of_its_node() throws Exception {
        try (var client = RLockClient.create(redis)) {
            Hold hold = client.lock("session")
                    .with(LockOptions.DEFAULT.withSession(Duration.ofSeconds(2)))
                    .acquire();
            killConnections("normal");
            Thread.sleep(2_500);
            assertTrue(hold.isHeld());
            hold.close();
        }
    }

    @Test
    void a_moved_slot_takes_its_waiters_along() throws Exception {
        try (var holder = RLockClient.create(redis);
                var waiter = RLockClient.create(redis)) {
            holder.lock("warm").acquire().close();
            String key = "moving";
            int slot = SlotHash.getSlot(key);
            var nodes = redis.getPartitions();
            var from = nodes.getPartitionBySlot(slot);
            var to = nodes.stream().filter(node -> node != from).findFirst().orElseThrow();
            Hold hold = holder.lock(key).acquire();
            var wait = waiter.lock(key).acquireAsync();
            Thread.sleep(300);
            var source = RedisClient.create(from.getUri());
            var target = RedisClient.create(to.getUri());
            try {
                var sourceCommands = source.connect().sync();
                var targetCommands = target.connect().sync();
                targetCommands.clusterSetSlotImporting(slot, from.getNodeId());
                sourceCommands.clusterSetSlotMigrating(slot, to.getNodeId());
                sourceCommands.migrate(to.getUri().getHost(), to.getUri().getPort(), key, 0, 5_000);
                targetCommands.clusterSetSlotNode(slot, to.getNodeId());
                sourceCommands.clusterSetSlotNode(slot, to.getNodeId());
                assertEquals(1, Probe.holders(targetCommands, key));
                hold.close();
                wait.get(20, TimeUnit.SECONDS).close();
            } finally {
                source.shutdown(0, 1, TimeUnit.SECONDS);
                target.shutdown(0, 1, TimeUnit.SECONDS);
            }
        }
    }

    @Test
    void a_slow_first_subscription_is_waited_for() throws Exception {
        for (var node : redis.getPartitions()) {
            String key = "slow";
            while (!node.hasSlot(SlotHash.getSlot(key))) key += "er";
            var admin = RedisClient.create(node.getUri());
            try (var client = RLockClient.create(redis)) {
                Probe.ask(admin.connect().sync(), "CLIENT", "PAUSE", "2500", "ALL");
                client.lock(key).acquire(Duration.ofSeconds(20)).close();
            } finally {
                admin.shutdown(0, 1, TimeUnit.SECONDS);
            }
        }
    }

    @Test
    void a_request_that_was_given_up_does_not_follow_its_slot() throws Exception {
        try (var client = RLockClient.create(redis)) {
            String key = "given up";
            int slot = SlotHash.getSlot(key);
            client.lock(key).acquire().close();
            var from = redis.getPartitions().getPartitionBySlot(slot);
            var to = redis.getPartitions().stream()
                    .filter(node -> node != from)
                    .findFirst()
                    .orElseThrow();
            var source = RedisClient.create(from.getUri());
            var target = RedisClient.create(to.getUri());
            try {
                var sourceCommands = source.connect().sync();
                var targetCommands = target.connect().sync();
                Probe.ask(sourceCommands, "CLIENT", "PAUSE", "30000", "WRITE");
                var request = client.lock(key).tryAcquireAsync(Duration.ZERO);
                Thread.sleep(300); // The node has it, and answers only after the pause: with MOVED.
                targetCommands.clusterSetSlotImporting(slot, from.getNodeId());
                targetCommands.clusterSetSlotNode(slot, to.getNodeId());
                sourceCommands.clusterSetSlotNode(slot, to.getNodeId());
                TestServer.await("the slot has moved", () -> {
                    redis.refreshPartitions();
                    return redis.getPartitions()
                            .getPartitionBySlot(slot)
                            .getNodeId()
                            .equals(to.getNodeId());
                });
                request.cancel(true);
                Thread.sleep(300); // Settled at the new node.
                Probe.ask(sourceCommands, "CLIENT", "UNPAUSE");
                Thread.sleep(500);
                assertEquals(0, Probe.holders(targetCommands, key));
            } finally {
                source.shutdown(0, 1, TimeUnit.SECONDS);
                target.shutdown(0, 1, TimeUnit.SECONDS);
            }
        }
    }
}
