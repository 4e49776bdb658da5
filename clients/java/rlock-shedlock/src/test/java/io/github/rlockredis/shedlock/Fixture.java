package io.github.rlockredis.shedlock;

import io.github.rlockredis.RLockClient;
import io.github.rlockredis.TestServer;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.sync.RedisCommands;

/** A server, and a client of it. */
final class Fixture implements AutoCloseable {
    final TestServer server;
    private final RedisClient redisClient;
    final RedisCommands<String, String> redis;
    final RLockClient client;

    Fixture(TestServer server) {
        this.server = server;
        redisClient = RedisClient.create(server.url());
        redis = redisClient.connect().sync();
        client = RLockClient.create(redisClient);
    }

    @Override
    public void close() throws Exception {
        client.close();
        redisClient.shutdown();
        server.close();
    }
}
