/**
 * rlock for Spring Boot: an {@code RLockClient} on the application's Lettuce connection factory, and
 * {@link io.github.rlockredis.spring.boot.DistributedLock}.
 */
package io.github.rlockredis.spring.boot;
