// Package main shows locks for Go, on go-redis and a server with rlock. Thousands of waiters share one subscription.
//
//	locks := NewLocks(ctx, redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
//	err := locks.Held(ctx, "orders:42", 30*time.Second, func(ctx context.Context, token int64) error {
//		return writeToTheDatabase(ctx, token)
//	})
//
// The context of the caller says how long it waits. The lease is renewed while the function runs, whose context is cancelled if the lock is lost.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A message may be lost with the connection that it was for. So whoever waits asks again so often, with the same number: that keeps its place.
const askAgain = 2 * time.Second

// ErrLost says that the lock was lost before it was given back.
var ErrLost = errors.New("the lock was lost")

// A Hold is one acquisition that was granted.
type Hold struct {
	Key, Owner string
	Lease      time.Duration
	Token      int64
}

// Locks is one client and its subscription.
type Locks struct {
	client  redis.UniversalClient
	channel string
	lastID  atomic.Int64 // Unique on the channel.
	waiting sync.Map     // From the id to a chan string.
	pubsub  *redis.PubSub
}

// NewLocks subscribes, and stays so until Close.
func NewLocks(ctx context.Context, client redis.UniversalClient) *Locks {
	locks := &Locks{client: client, channel: "rlock:" + rand.Text()}
	locks.pubsub = client.Subscribe(ctx, locks.channel)
	go func() {
		for message := range locks.pubsub.Channel() { // granted ID TOKEN | nil ID | error ID CODE TEXT
			var what string
			var id int64
			fmt.Sscan(message.Payload, &what, &id)
			if answer, found := locks.waiting.LoadAndDelete(id); found {
				answer.(chan string) <- message.Payload
			}
		}
	}()
	return locks
}

// Close ends the subscription.
func (l *Locks) Close() error { return l.pubsub.Close() }

// Acquire waits until the context ends.
func (l *Locks) Acquire(ctx context.Context, key string, lease time.Duration) (*Hold, error) {
	// A name for this one acquisition: nothing that is repeated for it can become a second hold.
	return l.acquire(ctx, &Hold{Key: key, Owner: rand.Text(), Lease: lease})
}

func (l *Locks) acquire(ctx context.Context, hold *Hold) (*Hold, error) {
	var err error
	for id := l.lastID.Add(1); hold.Token == 0 && err == nil; {
		if hold.Token, id, err = l.ask(ctx, hold, id); transient(err) {
			err = sleep(ctx, 100*time.Millisecond)
		}
	}
	if err == nil {
		return hold, nil
	}
	// After SUPERSEDED what waits in this owner's name is a newer request, which goes on.
	if !strings.HasPrefix(err.Error(), "SUPERSEDED ") {
		l.settle(hold)
	}
	return nil, err
}

// Asks, and waits for a message. The token is 0 if there was none so far; then the id is the one to ask by next.
func (l *Locks) ask(ctx context.Context, hold *Hold, id int64) (int64, int64, error) {
	answer := make(chan string, 1)
	l.waiting.Store(id, answer)
	defer l.waiting.Delete(id)
	// WAITING: the answer comes on the channel. The place is ours for a while longer than we take to ask again.
	reply, err := l.client.Do(ctx, "RLOCK.ACQUIRE", hold.Key, hold.Owner, "PX", hold.Lease.Milliseconds(), "ONCE", "REQ", id,
		"BLOCK", 2*askAgain.Milliseconds(), "NOTIFY", l.channel).Result()
	token, isGranted := reply.(int64)
	if isGranted || err != nil {
		return token, id, err
	}
	select {
	case <-ctx.Done():
		return 0, id, ctx.Err()
	case <-time.After(askAgain):
		return 0, id, nil
	case text := <-answer:
		var what string
		fmt.Sscan(text, &what, &id, &token)
		if what == "error" && !strings.Contains(text, " UNBLOCKED ") {
			return 0, id, refusal(strings.SplitN(text, " ", 3)[2])
		}
		if what != "granted" {
			id = l.lastID.Add(1) // The number is used up.
		}
		return token, id, nil
	}
}

// What a message says in place of a grant: an answer of the server as a redis.Error is.
type refusal string

func (r refusal) Error() string { return string(r) }
func (r refusal) RedisError()   {}

// Leaves neither a waiter nor a hold behind, also when the context has ended.
func (l *Locks) settle(hold *Hold) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	l.client.Do(ctx, "RLOCK.CANCEL", hold.Key, hold.Owner)
	l.client.Do(ctx, "RLOCK.RELEASE", hold.Key, hold.Owner) // NOTOWNER as a rule.
}

// Renew is ErrLost if the lock is not held any more.
func (l *Locks) Renew(ctx context.Context, hold *Hold) error {
	return lostIfNotOwner(l.client.Do(ctx, "RLOCK.RENEW", hold.Key, hold.Owner, "TOKEN", hold.Token, "PX", hold.Lease.Milliseconds()).Err())
}

// Release is ErrLost if the lock was lost, or if an earlier RELEASE was carried out whose reply was lost.
func (l *Locks) Release(ctx context.Context, hold *Hold) error {
	return lostIfNotOwner(l.client.Do(ctx, "RLOCK.RELEASE", hold.Key, hold.Owner, "TOKEN", hold.Token).Err())
}

// Held runs a function under the lock.
func (l *Locks) Held(ctx context.Context, key string, lease time.Duration, work func(ctx context.Context, token int64) error) error {
	hold, err := l.Acquire(ctx, key, lease)
	if err != nil {
		return err
	}
	working, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	kept := make(chan struct{})
	go func() { l.keep(working, hold, lose); close(kept) }()
	err = work(working, hold.Token)
	lost := context.Cause(working)
	lose(nil)
	<-kept
	if released := l.Release(context.WithoutCancel(ctx), hold); lost == nil && !errors.Is(released, ErrLost) {
		lost = released
	}
	return errors.Join(err, lost)
}

// Renews at a third of the lease. What was granted before a command was sent ends no earlier than a lease after that.
func (l *Locks) keep(ctx context.Context, hold *Hold, lose context.CancelCauseFunc) {
	for safeUntil := time.Now().Add(hold.Lease * 2 / 3); time.Now().Before(safeUntil); {
		if sleep(ctx, hold.Lease/3) != nil {
			return
		}
		sent := time.Now()
		switch err := l.Renew(ctx, hold); {
		case err == nil:
			safeUntil = sent.Add(hold.Lease)
		case !transient(err):
			safeUntil = sent
		}
	}
	lose(ErrLost)
}

func lostIfNotOwner(err error) error {
	if err != nil && strings.HasPrefix(err.Error(), "NOTOWNER ") {
		return ErrLost
	}
	return err
}

// Whether an error is of the connection and not an answer of the server.
func transient(err error) bool {
	var answer redis.Error
	return err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &answer)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
