package io.github.rlockredis;

import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Asks a server behind the back of the client. */
public final class Probe {
    private Probe() {}

    private record Word(String text) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return text.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public String toString() {
            return text;
        }
    }

    public static List<Object> ask(RedisCommands<String, String> redis, String command, String... words) {
        var arguments = new CommandArgs<>(StringCodec.UTF8);
        if (words.length > 0) arguments.addKey(words[0]);
        for (int i = 1; i < words.length; i++) arguments.addValue(words[i]);
        return redis.dispatch(new Word(command), new NestedMultiOutput<>(StringCodec.UTF8), arguments);
    }

    /** The only item of an answer that is no list. */
    public static Object one(RedisCommands<String, String> redis, String command, String... words) {
        return ask(redis, command, words).get(0);
    }

    /** How many hold or wait for a key. */
    public static int holders(RedisCommands<String, String> redis, String key) {
        var info = ask(redis, "RLOCK.INFO", key);
        int at = info.indexOf("holders-count");
        return at < 0 ? 0 : Integer.parseInt(info.get(at + 1).toString());
    }

    public static int waiters(RedisCommands<String, String> redis, String key) {
        return ask(redis, "RLOCK.WAITERS", key).size();
    }
}
