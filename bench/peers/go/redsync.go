package main

import (
	"context"
	"math"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsync with one Redis and one pool of go-redis. It retries after a random 50 to 250 ms, its
// default. The default limit of 32 tries is lifted, because clients here wait until they have the
// lock.
type redsyncLocker struct {
	*redsync.Redsync
	*options
}

func connectRedsync(_ context.Context, o *options) (func(context.Context) (locker, error), error) {
	locks := redsync.New(goredis.NewPool(redis.NewClient(&redis.Options{Addr: o.server, PoolSize: o.clients})))
	return func(context.Context) (locker, error) { return &redsyncLocker{locks, o}, nil }, nil
}

func (l *redsyncLocker) acquire(ctx context.Context, key string) (release, error) {
	mutex := l.NewMutex(key, redsync.WithExpiry(l.lease), redsync.WithTries(math.MaxInt))
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := mutex.UnlockContext(ctx)
		return err
	}, nil
}
