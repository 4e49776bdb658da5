package io.github.rlockredis;

import io.github.rlockredis.RLockException.ClosedException;
import io.github.rlockredis.RLockException.LockTimeoutException;
import io.github.rlockredis.RLockException.UnavailableException;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.Function;

/**
 * A lock or semaphore that is acquired as a {@link Hold}. One object serves all threads.
 *
 * <p>All methods throw an {@link RLockException} if the request fails; one that has waited without
 * success or was cancelled leaves nothing behind on the server.
 */
public abstract sealed class Lockable permits RLock, RSemaphore {
    final RLockClient client;
    final Resource resource;
    final LockOptions options;

    Lockable(RLockClient client, Resource resource, LockOptions options) {
        this.client = client;
        this.resource = resource;
        this.options = options;
    }

    /** The owner of the calling thread, or null for a fresh one per acquisition. */
    abstract String currentOwner();

    /**
     * Waits without a limit. A lost connection does not end the wait.
     *
     * @return the hold
     * @throws InterruptedException if the thread is interrupted; the request is withdrawn
     */
    public Hold acquire() throws InterruptedException {
        return await(begin(options, currentOwner(), Acquisition.FOR_EVER));
    }

    /**
     * Waits for some time.
     *
     * @param timeout less than 1 ms tries once, 365 days or more is without a limit
     * @return the hold
     * @throws LockTimeoutException if it was not acquired in time; it has a cause if the server was silent or
     *     refused at the end
     * @throws InterruptedException if the thread is interrupted; the request is withdrawn
     */
    public Hold acquire(Duration timeout) throws InterruptedException {
        Acquisition request = begin(options, currentOwner(), Deadline.millis(timeout));
        try {
            Hold hold = await(request);
            if (hold != null) return hold;
        } catch (UnavailableException outage) {
            if (Deadline.millis(timeout) < 1) throw outage;
        }
        throw new LockTimeoutException(
                "did not acquire " + resource + " in " + Deadline.millis(timeout) + " ms", request.lastError);
    }

    /**
     * Tries once.
     *
     * @return the hold, or nothing if another owner holds it
     * @throws InterruptedException if the thread is interrupted
     */
    public Optional<Hold> tryAcquire() throws InterruptedException {
        return tryAcquire(Duration.ZERO);
    }

    /**
     * Waits for some time.
     *
     * @param timeout less than 1 ms tries once, 365 days or more is without a limit
     * @return the hold, or nothing if it was not acquired in time
     * @throws UnavailableException if the server was silent or refused at the end
     * @throws InterruptedException if the thread is interrupted; the request is withdrawn
     */
    public Optional<Hold> tryAcquire(Duration timeout) throws InterruptedException {
        return Optional.ofNullable(await(begin(options, currentOwner(), Deadline.millis(timeout))));
    }

    /**
     * Waits without a limit and without a thread. Each acquisition has an owner of its own, unless
     * {@link LockOptions#withOwner} names one. Cancel the future to withdraw the request.
     *
     * @return completes with the hold on the executor of the client
     */
    public CompletableFuture<Hold> acquireAsync() {
        return async(options, Acquisition.FOR_EVER, hold -> hold);
    }

    /**
     * Waits for some time, without a thread; as {@link #acquireAsync()}.
     *
     * @param timeout less than 1 ms tries once, 365 days or more is without a limit
     * @return completes with the hold, or with nothing if it was not acquired in time; with an
     *     UnavailableException if the server was silent or refused at the end
     */
    public CompletableFuture<Optional<Hold>> tryAcquireAsync(Duration timeout) {
        return async(options, Deadline.millis(timeout), Optional::ofNullable);
    }

    /**
     * Calls a function while it holds, and returns what that returns.
     *
     * @param work the function
     * @param <T> the type of its result
     * @return its result
     * @throws RLockException.LockLostException if the function has returned, but the hold was lost before
     * @throws Exception what the function throws, with a loss as a suppressed exception; or
     *     InterruptedException
     */
    public <T> T callLocked(Callable<T> work) throws Exception {
        Hold hold = acquire();
        try (hold) {
            return work.call();
        }
    }

    /** Begins to acquire, or enters again. */
    Acquisition begin(LockOptions options, String owner, long wait) {
        boolean reentrant = owner != null;
        var request =
                new Acquisition(client, resource, options, reentrant ? owner : client.freshOwner(), reentrant, wait);
        Hold hold = reentrant && !client.isClosed() ? client.heldBy(owner, resource) : null;
        if (hold != null && hold.enter()) request.result.complete(hold);
        else client.execute(request::start);
        if (client.isEnded()) request.result.completeExceptionally(new ClosedException());
        return request;
    }

    static Hold await(Acquisition request) throws InterruptedException {
        try {
            return notLost(request.result.get());
        } catch (InterruptedException interrupted) {
            request.abandon();
            // Until this is done, the thread may seem to hold it.
            giveBack(request.result.handle((hold, error) -> hold).join());
            throw interrupted;
        } catch (ExecutionException failed) {
            throw RLockClient.here(failed);
        }
    }

    /** Throws, before the work begins, if the thread has slept and the hold was lost meanwhile. */
    static Hold notLost(Hold hold) {
        if (hold != null && !hold.isHeld()) hold.close();
        return hold;
    }

    private static void giveBack(Hold hold) {
        if (hold != null) hold.releaseAsync();
    }

    /** The application's own future: nothing that it attaches runs in the client's steps. */
    <T> CompletableFuture<T> async(LockOptions options, long wait, Function<Hold, T> map) {
        Acquisition request = begin(options, options.owner(), wait);
        var result = new CompletableFuture<T>();
        request.result.whenCompleteAsync(
                (hold, error) -> {
                    if (error != null) result.completeExceptionally(error);
                    else if (!result.complete(map.apply(hold))) giveBack(hold);
                },
                client.executor);
        // Also if it ends in another way than by the request, as by orTimeout.
        result.whenComplete((value, error) -> {
            if (!request.result.isDone()) request.abandon();
        });
        return result;
    }
}
