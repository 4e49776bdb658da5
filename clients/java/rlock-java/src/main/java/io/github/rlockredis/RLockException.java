package io.github.rlockredis;

import io.lettuce.core.RedisCommandExecutionException;
import java.util.OptionalLong;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Something that went wrong with a lock. The nested classes tell what. */
@SuppressWarnings("serial")
public abstract sealed class RLockException extends RuntimeException {
    private static final Set<String> RETRYABLE =
            Set.of(("UNBLOCKED READONLY LOADING MASTERDOWN MISCONF OOM BUSY CLUSTERDOWN TRYAGAIN "
                            + "QUARANTINE NOREPLICAS MOVED ASK")
                    .split(" "));
    private static final Pattern MILLISECONDS_LEFT = Pattern.compile("(\\d+) ms left");

    /** The first word of the server, or empty. */
    private final String code;

    private RLockException(String code, String message, Throwable cause) {
        super(message, cause);
        this.code = code;
    }

    /**
     * The first word of the server's error.
     *
     * @return the word, or an empty text if the error did not come from the server
     */
    public String code() {
        return code;
    }

    /** The lock was not acquired in the given time. */
    public static final class LockTimeoutException extends RLockException {
        LockTimeoutException(String message, Throwable cause) {
            super("", message, cause);
        }
    }

    /** The hold ended before its owner released it: its lease expired, or somebody took it away. */
    public static final class LockLostException extends RLockException {
        LockLostException(String code, String message) {
            super(code, message, null);
        }
    }

    /** Waiting would close a circle of owners that wait for each other. */
    public static final class DeadlockException extends RLockException {
        private DeadlockException(String message) {
            super("DEADLOCK", message, null);
        }
    }

    /** A newer request of the same owner has ended this one. */
    public static final class SupersededException extends RLockException {
        private SupersededException(String message) {
            super("SUPERSEDED", message, null);
        }
    }

    /** The server does not have the rlock module. */
    public static final class ModuleMissingException extends RLockException {
        private ModuleMissingException(String message) {
            super("ERR", message, null);
        }
    }

    /** The rlock module of the server is too old for this client. */
    public static final class ModuleTooOldException extends RLockException {
        ModuleTooOldException(String code, String message) {
            super(code, message, null);
        }
    }

    /** The client was closed. */
    public static final class ClosedException extends RLockException {
        ClosedException() {
            super("", "the RLockClient is closed", null);
        }
    }

    /** The server cannot be reached, or cannot serve the request now. Worth trying again. */
    public static final class UnavailableException extends RLockException {
        UnavailableException(String code, String message, Throwable cause) {
            super(code, message, cause);
        }

        /**
         * When to try again.
         *
         * @return the milliseconds that the server named, or nothing
         */
        public OptionalLong retryAfterMillis() {
            Matcher left = MILLISECONDS_LEFT.matcher(getMessage());
            return left.find() ? OptionalLong.of(Long.parseLong(left.group(1))) : OptionalLong.empty();
        }
    }

    /** The server refused the request. Trying again does not help. */
    public static final class RefusedException extends RLockException {
        private RefusedException(String code, String message) {
            super(code, message, null);
        }
    }

    /** Maps the server's words. */
    static RLockException of(String text) {
        String code = text.split(" ", 2)[0];
        boolean passes = RETRYABLE.contains(code) || text.startsWith("ERR max number of clients");
        if (passes) return new UnavailableException(code, text, null);
        return switch (code) {
            case "NOTOWNER" -> new LockLostException(code, text);
            case "DEADLOCK" -> new DeadlockException(text);
            case "SUPERSEDED" -> new SupersededException(text);
            default -> {
                if (text.startsWith("ERR unknown command")) yield new ModuleMissingException(text);
                if (text.startsWith("ERR unknown option")) yield new ModuleTooOldException(code, text);
                yield new RefusedException(code, text);
            }
        };
    }

    /** Maps what Lettuce throws. What is not an answer of the server counts as a lost connection. */
    static RLockException of(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof RLockException typed) return typed;
            if (cause instanceof RedisCommandExecutionException && cause.getMessage() != null) {
                return of(cause.getMessage());
            }
        }
        return new UnavailableException("", "no answer from the server: " + error, error);
    }
}
