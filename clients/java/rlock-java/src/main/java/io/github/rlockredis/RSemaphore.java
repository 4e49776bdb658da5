package io.github.rlockredis;

import java.time.Duration;

/**
 * A number of permits that many processes share, first come, first served. Each acquisition is a
 * {@link Hold} of its own, which may be released by any thread.
 */
public final class RSemaphore extends Lockable {
    RSemaphore(RLockClient client, Resource resource, LockOptions options) {
        super(client, resource, options);
    }

    /**
     * The same semaphore, acquired in another way.
     *
     * @param options the options
     * @return a semaphore with these options
     */
    public RSemaphore with(LockOptions options) {
        return new RSemaphore(client, resource, options);
    }

    /**
     * The same semaphore, of which several permits at a time are acquired.
     *
     * @param permits 1 or more
     * @return a semaphore whose holds have that number of permits
     * @throws IllegalArgumentException if it is less than 1
     */
    public RSemaphore withPermits(int permits) {
        atLeastOne(permits);
        return new RSemaphore(client, new Resource(resource.kind(), resource.keys(), permits), options);
    }

    private static void atLeastOne(int permits) {
        if (permits < 1) throw new IllegalArgumentException("permits is " + permits + "; expected 1 or more");
    }

    @Override
    String currentOwner() {
        return options.owner();
    }

    /**
     * Makes the semaphore, unless it is there.
     *
     * @param permits how many there are, 1 or more
     * @return false if it was there; then it is left as it is
     * @throws IllegalArgumentException if it is less than 1
     */
    public boolean init(int permits) {
        return init(permits, Duration.ZERO);
    }

    /**
     * Makes the semaphore, unless it is there, and sets when it is deleted.
     *
     * @param permits how many there are, 1 or more
     * @param idle the server deletes it after so long without holders and waiters; less than 1 ms for never
     * @return false if it was there; then only its idle time changes
     * @throws IllegalArgumentException if there is less than 1
     */
    public boolean init(int permits, Duration idle) {
        atLeastOne(permits);
        var init = resource.init(permits, Deadline.millis(idle));
        return client.ask(() -> client.wire.send(init, Long.MAX_VALUE))
                .toString()
                .equals("1");
    }
}
