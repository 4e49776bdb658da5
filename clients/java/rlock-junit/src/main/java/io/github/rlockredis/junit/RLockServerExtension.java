package io.github.rlockredis.junit;

import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/**
 * Starts a {@link RLockServer} for a test class, and empties it before each test. The server ends with the test run.
 *
 * <pre>{@code
 * @ExtendWith(RLockServerExtension.class)
 * class OrdersTest {
 *     @Test
 *     void ships_once(RLockServer server) {
 *         var redis = RedisClient.create(server.url());
 *     }
 * }
 * }</pre>
 *
 * <p>Settings that are read before the tests, and options of the server, need the extension itself:
 *
 * <pre>{@code
 * @RegisterExtension
 * static final RLockServerExtension rlock = new RLockServerExtension();
 *
 * @DynamicPropertySource
 * static void redis(DynamicPropertyRegistry registry) {
 *     registry.add("spring.data.redis.url", () -> rlock.server().url());
 * }
 * }</pre>
 *
 * <p>Nested classes share the server of their outer class. Subclasses of a class with such a static field share its
 * server, so that they can also share a context of Spring; subclasses of a class with {@code @ExtendWith} have one
 * each. Tests that share a server cannot run in parallel, since each empties it.
 */
public final class RLockServerExtension implements BeforeAllCallback, BeforeEachCallback, ParameterResolver {
    private static final ExtensionContext.Namespace SERVERS =
            ExtensionContext.Namespace.create(RLockServerExtension.class);

    private final String[] options;
    private RLockServer server;

    /** A server without further options. */
    public RLockServerExtension() {
        this(new String[0]);
    }

    /**
     * A server with further options.
     *
     * @param options as of the server's command line; not {@code --requirepass}, since the server is emptied without one
     */
    public RLockServerExtension(String... options) {
        this.options = options.clone();
    }

    /**
     * The server of the test class. It stays the same until the end of the test run.
     *
     * @return a server that is ready
     * @throws IllegalStateException no test class with this extension has begun, or the test run has ended
     */
    public synchronized RLockServer server() {
        if (server == null) {
            throw new IllegalStateException(
                    "the server starts before the first test of a class and ends with the test run; make the field static");
        }
        return server;
    }

    @Override
    public void beforeAll(ExtensionContext context) {
        context.getRoot().getStore(SERVERS).getOrComputeIfAbsent(this, key -> new Running());
    }

    @Override
    public void beforeEach(ExtensionContext context) {
        server().flush();
    }

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        return parameter.getParameter().getType() == RLockServer.class;
    }

    @Override
    public Object resolveParameter(ParameterContext parameter, ExtensionContext context) {
        return server();
    }

    private synchronized void run(RLockServer running) {
        server = running;
    }

    /** JUnit closes it at the end of the test run. */
    @SuppressWarnings("deprecation") // JUnit before 5.13 closes no other AutoCloseable.
    private final class Running implements ExtensionContext.Store.CloseableResource {
        private final RLockServer running = RLockServer.start(options);

        Running() {
            run(running);
        }

        @Override
        public void close() {
            run(null);
            running.close();
        }
    }
}
