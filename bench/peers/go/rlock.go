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

// A message may be lost, so a waiter repeats its request this often, with the same number.
const askAgain = 2 * time.Second

const socketMargin = time.Minute

const pauseOfOutage = 20 * time.Millisecond

var families = map[string]string{"mutex": "RLOCK", "fair": "RFAIRLOCK", "read": "RRWLOCK", "write": "RRWLOCK", "semaphore": "RSEMAPHORE"}

// rlock without a dedicated client: its commands with go-redis. As in docs/clients.md, each
// acquisition has its own owner and says ONCE.
//
// block: the pool gives each client a connection, on which it waits with BLOCK. Socket timeouts are
// longer than the wait. After a broken connection this program repeats the request, for the
// remaining time; the library does not.
//
// notify: the pool has the library's default size. All clients wait for messages on one channel,
// over one more connection.
type rlockLocker struct {
	client *redis.Client
	*options
	family string
	mode   []any
	made   *sync.Map // The created semaphores.
	*notices
}

func connectRlock(ctx context.Context, o *options) (func(context.Context) (locker, error), error) {
	l := &rlockLocker{options: o, family: families[o.lock], made: &sync.Map{}}
	if l.family == "RRWLOCK" {
		l.mode = []any{strings.ToUpper(o.lock)}
	}
	switch o.variant {
	case "block":
		timeout := time.Duration(o.seconds*float64(time.Second)) + socketMargin
		l.client = redis.NewClient(&redis.Options{Addr: o.server, PoolSize: o.clients, ReadTimeout: timeout, MaxRetries: -1})
	case "notify":
		l.client = redis.NewClient(&redis.Options{Addr: o.server})
		var err error
		if l.notices, err = subscribe(ctx, l.client); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("unknown variant %q", o.variant)
	}
	return func(context.Context) (locker, error) { return l, nil }, nil
}

func (l *rlockLocker) acquire(ctx context.Context, key string) (release, error) {
	if _, made := l.made.Load(key); l.family == "RSEMAPHORE" && !made {
		if err := l.client.Do(ctx, "RSEMAPHORE.INIT", key, l.permits).Err(); err != nil {
			return nil, err
		}
		l.made.Store(key, true)
	}
	held := append([]any{key, rand.Text()}, l.mode...)
	request := append(append([]any{l.family + ".ACQUIRE"}, held...), "PX", l.lease.Milliseconds(), "ONCE")
	if l.hold == "yes" { // Frees the lock when the connection of a killed holder closes.
		request = append(request, "SESSION", 0)
	}
	token, err := l.ask(ctx, request)
	if errors.Is(err, redis.Nil) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	ends := time.Now().Add(l.lease)
	return func(ctx context.Context) error {
		command := append(append([]any{l.family + ".RELEASE"}, held...), "TOKEN", token)
		_, err := again(ends, func() (int64, error) { return l.client.Do(ctx, command...).Int64() })
		if err != nil && strings.HasPrefix(err.Error(), "NOTOWNER ") && time.Now().Before(ends) {
			return nil // It was already released and the answer lost, because the lease has not expired.
		}
		return err
	}, nil
}

func (l *rlockLocker) ask(ctx context.Context, request []any) (int64, error) {
	deadline, _ := ctx.Deadline()
	return again(deadline, func() (int64, error) {
		if l.notices != nil {
			return l.notices.ask(ctx, l.client, request)
		}
		return l.client.Do(ctx, append(request, "BLOCK", milliseconds(ctx))...).Int64()
	})
}

// Repeats a command until there is an answer: ONCE and TOKEN make that safe.
func again(deadline time.Time, ask func() (int64, error)) (int64, error) {
	for {
		answer, err := ask()
		var refused redis.Error
		isAnswer := err == nil || errors.As(err, &refused) && !strings.HasPrefix(err.Error(), "LOADING ")
		if isAnswer || time.Now().After(deadline) {
			return answer, err
		}
		time.Sleep(pauseOfOutage)
	}
}

// The remaining time, rounded up, so that it is over here when the server says so. 0 would wait
// without a limit.
func milliseconds(ctx context.Context) int64 {
	deadline, limited := ctx.Deadline()
	if !limited {
		return 0
	}
	return max(1, (time.Until(deadline) + time.Millisecond - 1).Milliseconds())
}

// The messages on one channel, and their waiters.
type notices struct {
	channel string
	lastID  atomic.Int64
	waiting sync.Map // From the number of a request to a chan string.
}

func subscribe(ctx context.Context, client *redis.Client) (*notices, error) {
	n := &notices{channel: "rlock:" + rand.Text()}
	messages := client.Subscribe(ctx, n.channel)
	if _, err := messages.Receive(ctx); err != nil { // Requests may only be sent once the channel is subscribed.
		return nil, err
	}
	go func() {
		for message := range messages.Channel() { // granted ID TOKEN | nil ID | error ID CODE TEXT
			var what string
			var id int64
			fmt.Sscan(message.Payload, &what, &id)
			if answer, found := n.waiting.LoadAndDelete(id); found {
				answer.(chan string) <- message.Payload
			}
		}
	}()
	return n, nil
}

func (n *notices) ask(ctx context.Context, client *redis.Client, request []any) (int64, error) {
	id := n.lastID.Add(1) // Unique per acquisition, because the owner is too.
	defer n.waiting.Delete(id)
	for {
		answer := make(chan string, 1)
		n.waiting.Store(id, answer) // Before the request, because the message may arrive before the answer.
		reply, err := client.Do(ctx, append(request, "REQ", id, "BLOCK", milliseconds(ctx), "NOTIFY", n.channel)...).Result()
		token, isGranted := reply.(int64)
		if isGranted || err != nil {
			return token, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(askAgain):
		case text := <-answer:
			var what string
			fmt.Sscan(text, &what, &id, &token)
			switch what {
			case "granted":
				return token, nil
			case "nil":
				return 0, redis.Nil
			}
			return 0, errors.New(text)
		}
	}
}
