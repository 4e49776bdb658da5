package io.github.rlockredis;

import io.github.rlockredis.RLockException.ClosedException;
import io.github.rlockredis.RLockException.ModuleTooOldException;
import io.github.rlockredis.RLockException.SupersededException;
import io.github.rlockredis.RLockException.UnavailableException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * One request for a hold, from the first command until it is granted or given up. All of it but
 * {@link #abandon()} runs in the client's steps.
 */
final class Acquisition {
    /** Waits without a limit. */
    static final long FOR_EVER = Long.MAX_VALUE;

    private static final long ASK_AGAIN_MS = 30_000;
    private static final long CLAIM_MS = 2_000;
    // The server's own nil arrives a little after the limit, and saves a CANCEL. Without it, the server is silent.
    private static final long PATIENCE_MS = 800;
    // A first connection may take longer than a short wait.
    private static final long CONNECTING_MS = 2_000;

    final Resource resource;
    final LockOptions options;
    final String owner;
    final boolean reentrant;

    /** The hold, null if another owner has it, or an RLockException. */
    final CompletableFuture<Hold> result = new CompletableFuture<>();

    /** Why the last attempt failed, unless the server has answered it. */
    volatile RLockException lastError;

    private final RLockClient client;
    private final CompletableFuture<Void> ended = new CompletableFuture<>(); // Nothing of it is left to be sent.
    private final long wait;
    private final long start = System.nanoTime();
    private String channel;
    private long id;
    private Deadline first; // The first sending of this id.
    private int copies; // Sent with this id, unless the server has done with it.
    private int round;
    private long pause = RLockClient.SHORTEST_PAUSE_MS;
    private boolean waiting;
    private boolean interrupted; // The next answer may be out of date.
    private boolean unanswered; // A copy was lost, which the server may still receive.
    private CompletableFuture<Object> sent = CompletableFuture.completedFuture(null);
    private Future<?> timer = CompletableFuture.completedFuture(null);
    private Future<?> limit = CompletableFuture.completedFuture(null);

    /**
     * Waits for that number of milliseconds; tries once if it is below 1. A year or more is without a limit.
     */
    Acquisition(
            RLockClient client, Resource resource, LockOptions options, String owner, boolean reentrant, long wait) {
        this.client = client;
        this.resource = resource;
        this.options = options;
        this.owner = owner;
        this.reentrant = reentrant;
        this.wait = wait >= Deadline.YEAR_MS ? FOR_EVER : Math.max(0, wait);
    }

    void start() {
        if (client.isClosed()) {
            result.completeExceptionally(new ClosedException());
            return;
        }
        channel = client.wire.channel(resource.keys().get(0));
        number();
        if (wait != FOR_EVER) {
            limit = client.schedule(this::timeUp, wait == 0 ? client.wire.timeout : wait + PATIENCE_MS);
        }
        var places = resource.places(owner);
        var earlier = client.settled(places);
        client.pending(places, ended);
        if (wait == 0 && !earlier.isDone() && isBehind()) finish(null, null);
        else client.then(earlier, (settled, never) -> begin());
    }

    /** Whether another request of the owner has its turn. */
    private boolean isBehind() {
        var others = client.waits.values().stream().filter(it -> it != this && it.owner.equals(owner));
        return others.anyMatch(it -> !Collections.disjoint(it.resource.keys(), resource.keys()));
    }

    /**
     * Begins when the server has answered what the owner has sent before: an answer to an earlier request could
     * belong to both, and a repeated RELEASE could end the next hold.
     */
    private void begin() {
        if (result.isDone()) return;
        try {
            Hold hold = reentrant ? client.heldBy(owner, resource) : null;
            if (hold != null && hold.enter()) finish(hold, null);
            else attempt();
        } catch (IllegalMonitorStateException misuse) {
            finish(null, misuse);
        }
    }

    /** Withdraws it, from any thread, unless it was granted in the meantime. */
    void abandon() {
        client.execute(() -> finish(null, new CancellationException()));
    }

    /** Messages of a channel, or of all (null), may have been lost. */
    void interrupted(String channel) {
        if (channel == null || channel.equals(this.channel)) ask();
    }

    /** Sends the request again, once it waits. */
    private void ask() {
        interrupted = true;
        if (waiting) attempt();
        else unanswered = true;
    }

    private void number() {
        client.waits.remove(id);
        id = RLockClient.nextRequest();
        unanswered = false;
        client.waits.put(id, this);
    }

    private long left() {
        return wait == FOR_EVER ? Long.MAX_VALUE : wait - TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start);
    }

    /** Steps of an earlier round come too late, and have no effect. */
    private boolean isOver(int round) {
        return result.isDone() || round != this.round;
    }

    private void attempt() {
        if (result.isDone()) return;
        timer.cancel(false);
        waiting = interrupted = false;
        int round = ++this.round;
        var ready = client.wire.ready();
        client.then(
                wait == 0 ? ready : ready.thenCombine(client.wire.subscribe(channel), (a, b) -> null),
                (ignored, error) -> {
                    if (isOver(round)) return;
                    if (error != null) failed(error);
                    else request(round);
                });
    }

    private void request(int round) {
        long left = Math.max(1, left()); // It is sent at least once.
        if (copies == 0) number(); // The order of ids is that of sending.
        long lease = options.leaseMillis();
        var words = new ArrayList<Object>(List.of("PX", lease, "CLAIM", Math.min(CLAIM_MS, lease), "REQ", id));
        Collections.addAll(words, "TIMED", "ONCE");
        if (options.session() != null) {
            Collections.addAll(words, "SESSION", Deadline.millis(options.session()));
        }
        if (options.note() != null) Collections.addAll(words, "NOTE", options.note());
        if (wait != 0) {
            Collections.addAll(words, "BLOCK", wait == FOR_EVER ? 0 : left, "NOTIFY", channel);
            if (options.grace() != null && resource.kind() == Resource.Kind.FAIR) {
                Collections.addAll(words, "GRACE", Deadline.millis(options.grace()));
            }
        }
        Deadline asked = Deadline.in(client.clock, 0);
        if (copies++ == 0) first = asked;
        sent = client.wire.send(resource.call("ACQUIRE", owner, words.toArray()), Long.MAX_VALUE);
        client.then(sent, (reply, error) -> {
            if (isOver(round)) return;
            if (error != null) failed(error);
            else answered(reply, asked);
        });
    }

    private void answered(Object reply, Deadline asked) {
        lastError = null;
        pause = RLockClient.SHORTEST_PAUSE_MS;
        if (reply == null) {
            refused();
        } else if (reply instanceof List<?> granted) {
            var numbers =
                    granted.stream().map(Object::toString).map(Long::valueOf).toList();
            int last = numbers.size() - 1;
            enter(numbers.subList(0, last), asked.lasting(numbers.get(last)), asked);
        } else if (!"WAITING".equals(reply)) {
            finish(null, new ModuleTooOldException("", "the server answers a timed request with " + reply));
        } else if (interrupted) {
            attempt();
        } else {
            waiting = true;
            timer = client.schedule(this::attempt, ASK_AGAIN_MS);
        }
    }

    /** The work begins, unless the process has slept and the hold may have ended meanwhile. */
    private void enter(List<Long> tokens, Deadline left, Deadline begun) {
        if (RLockClient.believed(options.sessionLease(left.after())) <= left.elapsed()) attempt();
        else finish(client.hold(this, tokens, left, begun), null);
    }

    void message(String what, String rest) {
        if (result.isDone()) return;
        lastError = null;
        switch (what) {
            case "granted" -> {
                // The server may have seen a connection close, and an answer on its way may belong to the hold.
                if (options.session() != null || !waiting || unanswered) {
                    ask();
                    return;
                }
                String[] parts = rest.split(" for ");
                var tokens = List.of(parts[0].split(" ")).stream().map(Long::valueOf);
                enter(tokens.toList(), first.lasting(Long.parseLong(parts[1])), Deadline.in(client.clock, 0));
            }
            case "nil" -> refused();
            default -> {
                if (!rest.startsWith("UNBLOCKED")) copies = 0;
                waiting = false;
                failed(RLockException.of(rest));
            }
        }
    }

    private void refused() {
        copies = 0;
        waiting = false;
        if (wait == 0 || left() <= 0) finish(null, null);
        else attempt();
    }

    private void failed(Throwable cause) {
        lastError = RLockException.of(cause);
        String code = lastError.code();
        unanswered |= code.isEmpty();
        // A server that steps down may have granted what it calls UNBLOCKED. After a disconnection Lettuce
        // has sent the request again, and this answer says nothing of the first copy.
        if (copies == 1 && !code.isEmpty() && !code.equals("UNBLOCKED") && !interrupted) copies = 0;
        boolean retry = wait != 0 || copies > 0 && code.isEmpty();
        if (retry && lastError instanceof UnavailableException) {
            timer.cancel(false);
            timer = client.schedule(this::attempt, pause);
            RLockClient.failed("the request for " + resource, pause, lastError);
            pause = RLockClient.longer(pause);
        } else {
            finish(null, lastError);
        }
    }

    private void timeUp() {
        boolean contends = round == 0 && isBehind();
        boolean connects = wait > 0 && wait < CONNECTING_MS && client.wire.connects();
        if (lastError == null && !contends && !connects) {
            lastError = new UnavailableException("", "no answer to the request for " + resource + " in time", null);
        }
        finish(null, lastError);
    }

    void finish(Hold hold, Throwable error) {
        if (result.isDone()) return;
        client.waits.remove(id);
        timer.cancel(false);
        limit.cancel(false);
        sent.cancel(false);
        if (hold == null && copies > 0 && !(error instanceof SupersededException)) {
            var cancel = resource.call("CANCEL", owner, "REQ", id);
            client.insist(cancel, Deadline.in(client.clock, CLAIM_MS))
                    .whenComplete((answer, failure) -> ended.complete(null));
        } else {
            ended.complete(null);
        }
        if (error == null) result.complete(hold);
        else result.completeExceptionally(error);
    }
}
