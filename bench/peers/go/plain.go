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

// A typical hand-written lock: SET NX PX with a random value, retried after a sleep. The peer is how
// it deletes a key that still has its value: by a script, by DELEX (Redis 8.4) or by DELIFEQ (Valkey
// 9). msetex sets many keys in one step, by MSETEX (Redis 8.4), and deletes each by DELEX, in one
// pipeline.
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
	keys, token := []string{key}, rand.Text()
	if l.lock == "many" {
		keys = manyKeys(key)
	}
	for {
		if mine, err := l.set(ctx, keys, token); err != nil {
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
		if deleted, err := l.delete(ctx, keys, token); err != nil || deleted == int64(len(keys)) {
			return err
		}
		return errNotMine
	}, nil
}

// set sets all keys or none.
func (l *plainLocker) set(ctx context.Context, keys []string, token string) (bool, error) {
	if l.peer != "msetex" {
		return l.SetNX(ctx, keys[0], token, l.lease).Result()
	}
	command := []any{"MSETEX", len(keys)}
	for _, key := range keys {
		command = append(command, key, token)
	}
	set, err := l.Do(ctx, append(command, "NX", "PX", l.lease.Milliseconds())...).Int64()
	return set == 1, err
}

// delete returns how many of the keys still had the value.
func (l *plainLocker) delete(ctx context.Context, keys []string, token string) (int64, error) {
	switch l.peer {
	case "delex":
		return l.Do(ctx, "DELEX", keys[0], "IFEQ", token).Int64()
	case "delifeq":
		return l.Do(ctx, "DELIFEQ", keys[0], token).Int64()
	case "msetex":
		answers, err := l.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, key := range keys {
				pipe.Do(ctx, "DELEX", key, "IFEQ", token)
			}
			return nil
		})
		var deleted int64
		for _, answer := range answers {
			one, _ := answer.(*redis.Cmd).Int64() // An error is in err too.
			deleted += one
		}
		return deleted, err
	default:
		return deleteIfMine.Run(ctx, l.Client, keys, token).Int64()
	}
}
