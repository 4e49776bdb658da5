package example;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.rlockredis.RLockClient;
import io.github.rlockredis.junit.RLockServerExtension;
import java.util.ArrayList;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.boot.test.web.client.TestRestTemplate;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.http.HttpStatusCode;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;

/** Against a server with the module, which the extension starts. */
@SpringBootTest(webEnvironment = SpringBootTest.WebEnvironment.RANDOM_PORT)
class ShippingTest {
    @RegisterExtension
    static final RLockServerExtension rlock = new RLockServerExtension();

    @DynamicPropertySource
    static void redis(DynamicPropertyRegistry registry) {
        registry.add("spring.data.redis.url", () -> rlock.server().url());
    }

    @Autowired
    TestRestTemplate http;

    @Autowired
    RLockClient locks;

    @Autowired
    RedisConnectionFactory redis;

    @Autowired
    ShippingApplication.Shipping shipping;

    private HttpStatusCode ship() {
        return http.postForEntity("/orders/7/ship", null, String.class).getStatusCode();
    }

    @Test
    void requests_for_one_order_run_one_after_the_other() {
        shipping.log().clear();
        var statuses = IntStream.range(0, 10).parallel().mapToObj(i -> ship().value()).toList();
        assertThat(statuses).containsOnly(200);
        var expected = new ArrayList<String>();
        for (int i = 0; i < 10; i++) {
            expected.add("begin 7");
            expected.add("end 7");
        }
        assertThat(shipping.log()).containsExactlyElementsOf(expected);
        System.out.println("ok  spring-boot: requests for one order run one after the other");
    }

    @Test
    void an_order_that_is_locked_is_a_conflict() throws Exception {
        try (var hold = locks.lock("order:7").acquire()) {
            assertThat(hold.isHeld()).isTrue();
            assertThat(ship().value()).isEqualTo(409);
        }
        assertThat(ship().value()).isEqualTo(200);
        System.out.println("ok  spring-boot: a request that waits too long gets 409");
    }
    @Test
    void an_outage_is_no_conflict() {
        redis.getConnection().serverCommands().replicaOf("127.0.0.1", 1); // It refuses all writes.
        try {
            assertThat(ship().value()).isEqualTo(503);
        } finally {
            redis.getConnection().serverCommands().replicaOfNoOne();
        }
        System.out.println("ok  spring-boot: a request during an outage gets 503");
    }
}
