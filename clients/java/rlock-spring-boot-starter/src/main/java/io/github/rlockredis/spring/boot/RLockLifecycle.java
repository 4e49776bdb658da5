package io.github.rlockredis.spring.boot;

import io.github.rlockredis.RLockClient;
import org.springframework.context.SmartLifecycle;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

/** Releases what is held after the web server has ended its requests, and before the connections are closed. */
final class RLockLifecycle implements SmartLifecycle {
    private final RLockClient client;
    private final LettuceConnectionFactory connections;
    private volatile boolean running;

    RLockLifecycle(RLockClient client, LettuceConnectionFactory connections) {
        this.client = client;
        this.connections = connections;
    }

    @Override
    public void start() {
        running = true;
    }

    @Override
    public void stop() {
        running = false;
        client.close();
    }

    @Override
    public boolean isRunning() {
        return running;
    }

    @Override
    public int getPhase() {
        return connections.getPhase() + 1;
    }
}
