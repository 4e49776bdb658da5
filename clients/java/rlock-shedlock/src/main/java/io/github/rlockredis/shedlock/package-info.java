/** ShedLock on rlock: see {@link io.github.rlockredis.shedlock.RLockProvider}. */
package io.github.rlockredis.shedlock;
