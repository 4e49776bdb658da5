package io.github.rlockredis.junit;

import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/**
 * Starts a {@link RLockServer} for a test class, and empties it before each test.
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
 */
public final class RLockServerExtension
        implements BeforeAllCallback, BeforeEachCallback, AfterAllCallback, ParameterResolver {
    private final String[] options;
    private RLockServer server;
    private int classes;

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
     * The server of the test class.
     *
     * @return a server that is ready
     * @throws IllegalStateException no test class with this extension runs
     */
    public synchronized RLockServer server() {
        if (server == null) {
            throw new IllegalStateException("the server runs during the tests of a class; make the field static");
        }
        return server;
    }

    // Nested classes and subclasses share the extension, and the last one ends the server.
    @Override
    public synchronized void beforeAll(ExtensionContext context) {
        if (server == null) server = RLockServer.start(options);
        classes++;
    }

    @Override
    public void beforeEach(ExtensionContext context) {
        server().flush();
    }

    @Override
    public synchronized void afterAll(ExtensionContext context) {
        if (--classes > 0 || server == null) return;
        server.close();
        server = null;
    }

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        return parameter.getParameter().getType() == RLockServer.class;
    }

    @Override
    public Object resolveParameter(ParameterContext parameter, ExtensionContext context) {
        return server();
    }
}
