package io.github.rlockredis.spring.boot;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Calls the method while a distributed lock is held. The lock is acquired before a transaction of the method begins, and
 * released after it has ended. Threads own locks, so nested calls with the same key enter at once.
 *
 * <p>If the method has returned, but the hold was lost before, the caller gets a {@link
 * io.github.rlockredis.RLockException.LockLostException}. An exception of the method reaches the caller, with a
 * loss as a suppressed exception. Not for methods that return a future or a publisher: their work goes on afterwards.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
public @interface DistributedLock {
    /**
     * The key, in SpEL: parameters by name ({@code #id}), beans ({@code @name}), and the object itself as root.
     *
     * @return an expression, such as {@code 'orders:' + #id}
     */
    String key();

    /**
     * How long to wait before a LockTimeoutException is thrown, such as {@code 500ms} or {@code PT5S}; {@code 0} tries
     * once. May have placeholders.
     *
     * @return a duration; empty for no limit
     */
    String timeout() default "";

    /**
     * The lease, which is renewed during the call. May have placeholders.
     *
     * @return a duration; empty for that of the property {@code rlock.lease}
     */
    String lease() default "";

    /**
     * Whether the queue of the lock survives restarts and failovers of the server.
     *
     * @return true for a fair lock
     */
    boolean fair() default false;
}
