package io.github.rlockredis;

import io.github.rlockredis.RLockException.ClosedException;
import io.github.rlockredis.RLockException.LockLostException;
import io.github.rlockredis.RLockException.ModuleTooOldException;
import io.github.rlockredis.RLockException.SupersededException;
import io.github.rlockredis.RLockException.UnavailableException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/**
 * One request for a hold, from the first command until it is granted or given up. All of it but
 * {@link #abandon()} runs in the client's steps.
 */
final class Acquisition {
    /** Waits without a limit. */
    static final long FOR_EVER = Long.MAX_VALUE;

    private static final long ASK_AGAIN_MS = 30_000;
    private static final long CLAIM_MS = 2_000;
    // The server's own nil arrives a little after the limit, and saves the settlement. Without it, the server
    // is silent.
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
    private final List<Resource.Place> turns; // Of a named owner.
    private final long wait;
    private final long start = System.nanoTime();
    private String channel;
    private long id;
    private long lease;
    private int round;
    private long pause = RLockClient.SHORTEST_PAUSE_MS;
    // The server may have the request, or have granted it, without this client knowing: now, and
    // because it was waiting, or an answer was lost, before.
    private boolean unsure;
    private boolean unsureBefore;
    private boolean waiting;
    private boolean confirming;
    private boolean interrupted;
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
        this.turns = options.owner() == null ? List.of() : resource.places(owner);
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
        turns.forEach(turn ->
                client.turns.computeIfAbsent(turn, first -> new ArrayDeque<>()).add(this));
        begin();
    }

    /** Begins when the earlier requests of the named owner have ended: an answer to one could belong to all. */
    private void begin() {
        if (result.isDone()) return;
        if (turns.stream().anyMatch(turn -> client.turns.get(turn).peek() != this)) {
            if (wait == 0) finish(null, null);
            return;
        }
        try {
            Hold hold = turns.isEmpty() ? null : client.heldBy(owner, resource);
            if (hold != null && hold.enter()) finish(hold, null);
            else if (hold != null && hold.isLost()) finish(null, hold.lostException());
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
        if (channel != null && !channel.equals(this.channel)) return;
        interrupted = true;
        if (waiting) attempt();
    }

    private void number() {
        client.waits.remove(id);
        id = RLockClient.nextRequest();
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
        waiting = confirming = interrupted = false;
        int round = ++this.round;
        // The server refuses several keys of which the owner holds some, and a command that another thread
        // dispatches may overtake those before it.
        var ready = resource.keys().size() == 1
                ? client.wire.ready()
                : client.settled(resource.places(owner)).thenCombine(client.wire.ready(), (settled, connected) -> null);
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
        if (!unsure) number(); // The order of ids is that of sending.
        lease = Math.min(options.leaseMillis(), client.wire.maxLease);
        var words = new ArrayList<Object>(List.of("PX", lease, "ONCE", "REQ", id));
        if (options.session() != null) {
            Collections.addAll(words, "SESSION", Deadline.millis(options.session()));
        }
        if (options.note() != null) Collections.addAll(words, "NOTE", options.note());
        if (wait != 0) {
            Collections.addAll(words, "BLOCK", wait == FOR_EVER ? 0 : left, "NOTIFY", channel, "CLAIM");
            words.add(Math.min(CLAIM_MS, lease));
            if (options.grace() != null && resource.kind() == Resource.Kind.FAIR) {
                Collections.addAll(words, "GRACE", Deadline.millis(options.grace()));
            }
        }
        Deadline asked = Deadline.in(client.clock, lease);
        unsure = true;
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
        if ("WAITING".equals(reply)) {
            unsureBefore = true;
            if (interrupted) {
                attempt();
                return;
            }
            waiting = true;
            timer = client.schedule(this::attempt, ASK_AGAIN_MS);
        } else if (reply == null) {
            refused();
        } else {
            granted(reply instanceof List<?> list ? list.stream() : Stream.of(reply), asked);
        }
    }

    private void granted(Stream<?> answer, Deadline asked) {
        List<Long> tokens;
        try {
            tokens = answer.map(token -> Long.parseLong(token.toString())).toList();
        } catch (NumberFormatException noToken) {
            tokens = List.of(0L);
        }
        if (tokens.contains(0L)) {
            finish(null, new ModuleTooOldException("", "the server answers a wait with 0"));
        } else if (RLockClient.believed(options.sessionLease(asked.after())) <= asked.elapsed()) {
            again(); // The process slept, and the lease or the session may have ended meanwhile.
        } else {
            finish(client.hold(this, tokens, asked), null);
        }
    }

    void message(String what, String rest) {
        if (result.isDone() || confirming) return;
        lastError = null;
        switch (what) {
            case "granted" -> confirm(rest);
            case "nil" -> refused();
            default -> {
                if (!rest.startsWith("UNBLOCKED")) unsure = unsureBefore = false;
                waiting = false;
                failed(RLockException.of(rest));
            }
        }
    }

    /** Enters only if the claim of the grant has not ended. */
    private void confirm(String tokens) {
        timer.cancel(false);
        waiting = false;
        confirming = true;
        int round = ++this.round;
        List<Long> list = Stream.of(tokens.split(" ")).map(Long::valueOf).toList();
        Deadline asked = Deadline.in(client.clock, lease);
        client.then(
                client.wire.send(resource.call("RENEW", owner, list), Math.min(CLAIM_MS, lease)), (reply, error) -> {
                    if (isOver(round)) return;
                    if (error == null) {
                        // The longest lease may have been lowered since the request was sent.
                        long left = Math.min(client.wire.maxLease, Long.parseLong(reply.toString()));
                        granted(list.stream(), asked.lasting(left));
                    } else if (RLockException.of(error) instanceof LockLostException) {
                        // Of several keys some may still be held, and the next request claims new holds only.
                        if (list.size() > 1) client.settle(resource, owner, 0, id + 1, list, lease);
                        again();
                    } else failed(error);
                });
    }

    /** Asks under a new number, since the server has done with this one. */
    private void again() {
        number();
        attempt();
    }

    private void refused() {
        unsure = waiting = unsureBefore = false;
        if (wait == 0 || left() <= 0) finish(null, null);
        else attempt();
    }

    private void failed(Throwable cause) {
        lastError = RLockException.of(cause);
        boolean answered = !lastError.code().isEmpty();
        // A server that steps down may have granted what it calls UNBLOCKED. After a disconnection Lettuce
        // has sent the request again, and this answer says nothing of the first copy.
        if (unsure && (!answered || interrupted || lastError.code().equals("UNBLOCKED"))) unsureBefore = true;
        unsure = unsureBefore;
        boolean retry = wait != 0 || unsure && !answered;
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
        boolean asked = round > 0; // Else another request of the owner has its turn.
        boolean connects = wait > 0 && wait < CONNECTING_MS && client.wire.connects();
        if (lastError == null && asked && !connects) {
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
        for (var turn : turns) {
            var queue = client.turns.get(turn);
            queue.remove(this);
            if (queue.isEmpty()) client.turns.remove(turn);
            else client.execute(queue.peek()::begin);
        }
        if (hold == null && unsure && !(error instanceof SupersededException)) {
            client.settle(resource, owner, id, id + 1, null, lease);
        }
        if (error == null) result.complete(hold);
        else result.completeExceptionally(error);
    }
}
