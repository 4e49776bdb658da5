// Package rlock holds distributed locks of a Redis or Valkey server with the module rlock, through
// the application's own go-redis client.
//
// See [Client] for the kinds of locks, and [Hold] for what a lock gives while it is held.
package rlock
