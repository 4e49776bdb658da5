package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	rlock "github.com/rlock-redis/rlock-go"
)

// How long a hold outlives the connections of a process that was killed.
const sessionGrace = 200 * time.Millisecond

// The package rlock-go on one pool of go-redis, with its default size.
type rlockLocker struct {
	*rlock.Client
	*options
	made *sync.Map // The created semaphores.
}

func connectRlock(_ context.Context, o *options) (func(context.Context) (locker, error), error) {
	l := &rlockLocker{rlock.New(redis.NewClient(&redis.Options{Addr: o.server})), o, &sync.Map{}}
	return func(context.Context) (locker, error) { return l, nil }, nil
}

func (l *rlockLocker) acquire(ctx context.Context, key string) (release, error) {
	options := []rlock.Option{rlock.WithLease(l.lease)}
	if deadline, limited := ctx.Deadline(); limited {
		options = append(options, rlock.WithTimeout(time.Until(deadline)))
	}
	if l.hold == "yes" {
		options = append(options, rlock.WithSession(sessionGrace))
	}
	hold, err := l.ask(context.WithoutCancel(ctx), key, options)
	if errors.Is(err, rlock.ErrTimeout) || errors.Is(err, rlock.ErrNotAcquired) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return hold.Release, nil
}

func (l *rlockLocker) ask(ctx context.Context, key string, options []rlock.Option) (*rlock.Hold, error) {
	switch l.lock {
	case "fair":
		return l.FairLock(ctx, key, options...)
	case "read":
		return l.RLock(ctx, key, options...)
	case "write":
		return l.WLock(ctx, key, options...)
	case "many":
		return l.LockMany(ctx, manyKeys(key), options...)
	case "semaphore":
		if _, made := l.made.Load(key); !made {
			if _, err := l.InitSemaphore(ctx, key, int64(l.permits), 0); err != nil {
				return nil, err
			}
			l.made.Store(key, true)
		}
		return l.Acquire(ctx, key, 1, options...)
	default:
		return l.Lock(ctx, key, options...)
	}
}
