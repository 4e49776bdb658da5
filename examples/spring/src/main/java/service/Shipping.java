package service;

import example.LettuceLocks;
import example.RenewedLock;
import io.lettuce.core.RedisClient;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.core.env.Environment;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.http.HttpStatus;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.server.ResponseStatusException;

/**
 * A service of which several instances run, and only one of them may work on an order at a time. The lock is the java.util.concurrent Lock of
 * examples/java: copy LettuceLocks and RenewedLock. Where the server is, Spring's own settings say: spring.data.redis.url.
 */
@SpringBootApplication
public class Shipping {
    /** How long an instance that has crashed holds an order. One that runs renews it. */
    private static final Duration LEASE = Duration.ofSeconds(10);

    public static void main(String[] arguments) {
        SpringApplication.run(Shipping.class, arguments);
    }

    /** One for the whole service: its requests share two connections, however many of them wait. Not RedisTemplate.execute, which throws at a token. */
    @Bean
    LettuceLocks locks(LettuceConnectionFactory connections) {
        return new LettuceLocks((RedisClient) connections.getRequiredNativeClient());
    }

    @RestController
    static class Orders {
        private final LettuceLocks locks;
        private final Warehouse warehouse;
        private final Environment settings;

        Orders(LettuceLocks locks, Warehouse warehouse, Environment settings) {
            this.locks = locks;
            this.warehouse = warehouse;
            this.settings = settings;
        }

        /** Answers the fencing token under which the order was shipped; 423 if another one works on it for too long; 409 if the lock was lost. */
        @PostMapping("/orders/{id}/ship")
        long ship(@PathVariable String id) throws InterruptedException {
            // One for each request: a lock is held by a thread of control, not by the service.
            var lock = new RenewedLock(locks, "order:" + id, LEASE);
            var waitSeconds = settings.getProperty("shipping.wait-seconds", Long.class, 3L);
            if (!lock.tryLock(waitSeconds, TimeUnit.SECONDS)) throw new ResponseStatusException(HttpStatus.LOCKED);
            try {
                var parcel = warehouse.pack(id);
                // What takes long looks before it goes on. What is written carries the token, in case that it was lost just now.
                if (lock.isLost()) throw new ResponseStatusException(HttpStatus.CONFLICT);
                warehouse.ship(id, parcel, lock.token());
                return lock.token();
            } finally {
                lock.unlock();
            }
        }
    }

    /** What the orders are about: it refuses a token that is lower than one that it has seen. */
    interface Warehouse {
        long pack(String order) throws InterruptedException;

        void ship(String order, long parcel, long token);
    }
}
