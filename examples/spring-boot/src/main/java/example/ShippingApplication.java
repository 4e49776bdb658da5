package example;

import io.github.rlockredis.RLockException.LockTimeoutException;
import io.github.rlockredis.spring.boot.DistributedLock;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.http.HttpStatus;
import org.springframework.http.ResponseEntity;
import org.springframework.stereotype.Service;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RestController;

/** A service that ships an order once at a time, on however many machines it runs. */
@SpringBootApplication
public class ShippingApplication {
    public static void main(String[] arguments) {
        SpringApplication.run(ShippingApplication.class, arguments);
    }

    @Service
    static class Shipping {
        /** Stands for the database. */
        private final Queue<String> log = new ConcurrentLinkedQueue<>();

        /** The lock is acquired before a transaction of this method would begin, and released after it. */
        @DistributedLock(key = "'order:' + #id", timeout = "1s")
        public void ship(long id) throws InterruptedException {
            log.add("begin " + id);
            Thread.sleep(10);
            log.add("end " + id);
        }

        public Queue<String> log() {
            return log;
        }
    }

    @RestController
    static class Orders {
        private final Shipping shipping;

        Orders(Shipping shipping) {
            this.shipping = shipping;
        }

        @PostMapping("/orders/{id}/ship")
        void ship(@PathVariable("id") long id) throws InterruptedException {
            shipping.ship(id);
        }

        /** A timeout has a cause if the server was silent or refused at its end. */
        @ExceptionHandler
        ResponseEntity<String> notAcquired(LockTimeoutException timeout) {
            return timeout.getCause() == null
                    ? ResponseEntity.status(HttpStatus.CONFLICT).body("the order is being shipped")
                    : ResponseEntity.status(HttpStatus.SERVICE_UNAVAILABLE).body("try again");
        }
    }
}
