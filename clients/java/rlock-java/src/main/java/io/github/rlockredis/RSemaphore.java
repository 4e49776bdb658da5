package io.github.rlockredis;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;

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
     * @return a semaphore whose holds have so many permits
     */
    public RSemaphore withPermits(int permits) {
        return new RSemaphore(client, new Resource(resource.kind(), resource.keys(), permits), options);
    }

    @Override
    String currentOwner() {
        return options.owner();
    }

    /**
     * Makes the semaphore, unless it is there.
     *
     * @param permits how many there are
     * @return false if it was there; then it is left as it is
     * @throws InterruptedException if the thread is interrupted
     */
    public boolean init(int permits) throws InterruptedException {
        return init(permits, Duration.ZERO);
    }

    /**
     * Makes the semaphore, unless it is there, and sets when it is deleted.
     *
     * @param permits how many there are
     * @param idle the server deletes it after so long without holders and waiters; zero for never
     * @return false if it was there; then only its idle time changes
     * @throws InterruptedException if the thread is interrupted
     */
    public boolean init(int permits, Duration idle) throws InterruptedException {
        var call = resource.init(permits, idle.toMillis());
        var made = new CompletableFuture<Object>();
        client.execute(() -> client.then(client.wire.send(call, Long.MAX_VALUE), (reply, error) -> {
            if (error == null) made.complete(reply);
            else made.completeExceptionally(RLockException.of(error));
        }));
        try {
            return made.get().toString().equals("1");
        } catch (ExecutionException failed) {
            throw RLockClient.here(failed);
        }
    }
}
