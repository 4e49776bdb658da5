package io.github.rlockredis.spring.boot;

import io.github.rlockredis.LockOptions;
import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * The properties {@code rlock.*}.
 *
 * @param enabled whether there is a client
 * @param keyPrefix a text before every key
 * @param lease how long a hold lives without renewal
 * @param session how long a hold outlives its connection, so that a crash frees it early; none by default
 * @param note a text that the server shows with every hold, such as the name of the host; none by default
 */
@ConfigurationProperties("rlock")
public record RLockProperties(
        @DefaultValue("true") boolean enabled,
        @DefaultValue("") String keyPrefix,
        @DefaultValue("30s") Duration lease,
        Duration session,
        String note) {
    LockOptions options() {
        return LockOptions.DEFAULT.withLease(lease).withSession(session).withNote(note);
    }
}
