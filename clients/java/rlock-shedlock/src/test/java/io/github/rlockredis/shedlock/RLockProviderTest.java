package io.github.rlockredis.shedlock;

import io.github.rlockredis.TestServer;
import org.junit.jupiter.api.BeforeAll;

class RLockProviderTest extends ProviderTest {
    @BeforeAll
    static void start() throws Exception {
        fixture = new Fixture(new TestServer());
    }
}
