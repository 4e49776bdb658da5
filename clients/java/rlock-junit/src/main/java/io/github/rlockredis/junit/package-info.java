/** A server with the rlock module for tests with JUnit. */
package io.github.rlockredis.junit;
