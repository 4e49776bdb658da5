/**
 * Distributed locks on Redis and Valkey servers with the rlock module, over Lettuce.
 *
 * <p>Start with {@link io.github.rlockredis.RLockClient}.
 */
package io.github.rlockredis;
