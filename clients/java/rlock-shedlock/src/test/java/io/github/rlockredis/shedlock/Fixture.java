package io.github.rlockredis.shedlock;

import io.github.rlockredis.RLockClient;
import io.github.rlockredis.TestServer;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.sync.RedisCommands;

/** A server, and a client of it. */
final class Fixture implements AutoCloseable {
    private final TestServer server = new TestServer();
    private final RedisClient redisClient = RedisClient.create(server.url());
    final RedisCommands<String, String> redis = redisClient.connect().sync();
    final RLockClient client = RLockClient.create(redisClient);

    Fixture() throws Exception {}

    @Override
    public void close() throws Exception {
        client.close();
        redisClient.shutdown();
        server.close();
    }
}
