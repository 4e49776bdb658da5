/** Spring Integration on rlock: see {@link io.github.rlockredis.spring.integration.RLockRegistry}. */
package io.github.rlockredis.spring.integration;
