package io.github.rlockredis;

import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.protocol.CommandArgs;
import java.util.List;

/** What is locked: the commands of its kind, its keys and permits. */
record Resource(Kind kind, List<String> keys, int permits) {
    enum Kind {
        MUTEX("RLOCK", null),
        FAIR("RFAIRLOCK", null),
        READ("RRWLOCK", "READ"),
        WRITE("RRWLOCK", "WRITE"),
        SEMAPHORE("RSEMAPHORE", null),
        MANY("RLOCK", null);

        final String family;
        final String mode;

        Kind(String family, String mode) {
            this.family = family;
            this.mode = mode;
        }
    }

    /** A command, a key of its slot, and its arguments. */
    record Call(String command, String slotKey, CommandArgs<String, String> arguments) {}

    /** A key in the server's view: a mutex, and one of many keys, are the same lock. */
    record Place(String family, String mode, String key, String owner) {}

    List<Place> places(String owner) {
        return keys.stream()
                .map(key -> new Place(kind.family, kind.mode, key, owner))
                .toList();
    }

    Call call(String verb, String owner, Object... words) {
        boolean cancels = verb.equals("CANCEL");
        boolean many = kind == Kind.MANY;
        var arguments = new CommandArgs<>(StringCodec.UTF8);
        if (many) {
            arguments.add(keys.size()).addKeys(keys);
        } else {
            arguments.addKey(keys.get(0));
        }
        arguments.addValue(owner);
        if (kind.mode != null && !cancels) arguments.addValue(kind.mode);
        if (kind == Kind.SEMAPHORE && !cancels && !verb.equals("RENEW")) {
            arguments.addValue("PERMITS").add(permits);
        }
        for (Object word : words) arguments.addValue(word.toString());
        return new Call(kind.family + "." + (many ? "M" : "") + verb, keys.get(0), arguments);
    }

    /** With the tokens of a hold, so that a late command cannot hit a newer one. */
    Call call(String verb, String owner, List<Long> tokens, Object... words) {
        Call call = call(verb, owner, words);
        call.arguments.addValue(kind == Kind.MANY ? "TOKENS" : "TOKEN");
        tokens.forEach(token -> call.arguments.addValue(token.toString()));
        return call;
    }

    Call init(int count, long idle) {
        var arguments = new CommandArgs<>(StringCodec.UTF8).addKey(keys.get(0)).add(count);
        if (idle > 0) arguments.addValue("IDLE").add(idle);
        return new Call(kind.family + ".INIT", keys.get(0), arguments);
    }

    @Override
    public String toString() {
        return kind.name().toLowerCase(java.util.Locale.ROOT) + " " + String.join(", ", keys);
    }
}
