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

// A message may be lost, so whoever waits for one asks again so often, with the same number.
const askAgain = 2 * time.Second

const socketMargin = time.Minute

const pauseOfOutage = 20 * time.Millisecond

var families = map[string]string{"mutex": "RLOCK", "fair": "RFAIRLOCK", "read": "RRWLOCK", "write": "RRWLOCK", "semaphore": "RSEMAPHORE"}

// rlock without a client of its own: its commands over go-redis. As docs/clients.md has it: an owner for each acquisition and ONCE.
//
// block: the pool gives each client a connection, on which it waits by BLOCK. Sockets time out later than the wait, and what a broken connection has cut
// off is asked again here, with what is left of the time, and not by the library.
//
// notify: the pool is the library's default, and all wait for messages on one channel, which come over one more connection.
type rlockLocker struct {
	client *redis.Client
	*options
	family string
	mode   []any
	made   *sync.Map // The semaphores.
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
		return nil, fmt.Errorf("there is no variant %q", o.variant)
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
	if l.hold == "yes" { // A process that is killed while it holds is noticed by the end of its connection.
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
			return nil // It was released already, and the answer lost: the lease has not ended.
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

// Asks until there is an answer: thanks to ONCE and TOKEN, each command may be repeated.
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

// What is left of the time, rounded up: when the server says that it is over, it is over here too. 0 is for ever.
func milliseconds(ctx context.Context) int64 {
	deadline, limited := ctx.Deadline()
	if !limited {
		return 0
	}
	return max(1, (time.Until(deadline) + time.Millisecond - 1).Milliseconds())
}

// The messages on one channel, and who waits for them.
type notices struct {
	channel string
	lastID  atomic.Int64
	waiting sync.Map // From the number of a request to a chan string.
}

func subscribe(ctx context.Context, client *redis.Client) (*notices, error) {
	n := &notices{channel: "rlock:" + rand.Text()}
	messages := client.Subscribe(ctx, n.channel)
	if _, err := messages.Receive(ctx); err != nil { // Whoever asks is told on a channel that is heard.
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
	id := n.lastID.Add(1) // Of this acquisition, whose owner is nobody else's.
	defer n.waiting.Delete(id)
	for {
		answer := make(chan string, 1)
		n.waiting.Store(id, answer) // Before it asks: the message may come before the answer.
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
