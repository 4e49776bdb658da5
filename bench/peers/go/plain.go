package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

var deleteIfMine = redis.NewScript(`
if redis.call("GET", KEYS[1]) == ARGV[1] then
    return redis.call("DEL", KEYS[1])
end
return 0`)

var errNotMine = errors.New("the lease had ended")

// A typical hand-written lock: SET NX PX with a random value, retried after a sleep, and a script
// that deletes the key if it has that value.
type plainLocker struct {
	*redis.Client
	*options
	retry time.Duration
}

func connectPlain(_ context.Context, o *options) (func(context.Context) (locker, error), error) {
	retry, known := map[string]time.Duration{"sleep-10ms": 10 * time.Millisecond, "sleep-100ms": 100 * time.Millisecond}[o.variant]
	if !known {
		return nil, fmt.Errorf("unknown variant %q", o.variant)
	}
	client := redis.NewClient(&redis.Options{Addr: o.server, PoolSize: o.clients})
	return func(context.Context) (locker, error) { return &plainLocker{client, o, retry}, nil }, nil
}

func (l *plainLocker) acquire(ctx context.Context, key string) (release, error) {
	token := rand.Text()
	for {
		if mine, err := l.SetNX(ctx, key, token, l.lease).Result(); err != nil {
			return nil, err
		} else if mine {
			break
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(l.retry):
		}
	}
	return func(ctx context.Context) error {
		if deleted, err := deleteIfMine.Run(ctx, l.Client, []string{key}, token).Int(); err != nil || deleted == 1 {
			return err
		}
		return errNotMine
	}, nil
}
