package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// The library does not retry unless configured. Its examples use this interval.
const redislockRetry = 100 * time.Millisecond

// bsm/redislock with one pool of go-redis.
type redislockLocker struct {
	*redislock.Client
	*options
}

func connectRedislock(_ context.Context, o *options) (func(context.Context) (locker, error), error) {
	client := redislock.New(redis.NewClient(&redis.Options{Addr: o.server, PoolSize: o.clients}))
	return func(context.Context) (locker, error) { return &redislockLocker{client, o}, nil }, nil
}

func (l *redislockLocker) acquire(ctx context.Context, key string) (release, error) {
	lock, err := l.Obtain(ctx, key, l.lease, &redislock.Options{RetryStrategy: redislock.LinearBackoff(redislockRetry)})
	if err != nil {
		return nil, err
	}
	return lock.Release, nil
}
