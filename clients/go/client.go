package rlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// claimTime is how long a grant stays that its waiter has not confirmed.
	claimTime = 2 * time.Second
	// patience is how long a wait goes on for the server's own answer that its time has passed.
	patience = 250 * time.Millisecond
	// repeatAfter is the time after which a waiter sends its request again, since a message may have been lost.
	repeatAfter = 30 * time.Second
	// closeTime limits Close.
	closeTime = 5 * time.Second
	// maxSettlements limits the settlements of one client at a time.
	maxSettlements = 1000
)

// Client acquires locks through the connections of a go-redis client. It is safe for concurrent use.
// Make one for each go-redis client, and close it before that.
type Client struct {
	rdb     redis.UniversalClient
	id      string
	prefix  string
	log     *slog.Logger
	now     func() time.Duration
	timeout time.Duration // Of one command.
	feed    *feed
	settles chan struct{} // Limits the settlements at a time.
	owners  atomic.Uint64

	maxLease atomic.Int64 // In milliseconds; 0 until the server was asked.

	open      context.Context // Ends with ErrClosed when Close begins.
	close     context.CancelCauseFunc
	life      context.Context // Of releases and settlements, which Close waits for.
	terminate context.CancelFunc
	work      sync.WaitGroup // Acquisitions, releases, settlements.

	mu     sync.Mutex
	closed bool
	slots  map[string]*slot // Of named owners, by place.
	due    []*grant         // Renewals to be sent together.
}

// New returns a client on rdb, which may be a [redis.Client], also one that Sentinels fail over, or a
// [redis.ClusterClient]. It uses the address, database, user, password and TLS of rdb. rdb stays the
// application's own: [Client.Close] does not close it. New panics if rdb is a [redis.Ring], whose
// servers do not share their waiters.
func New(rdb redis.UniversalClient, options ...ClientOption) *Client {
	if _, isRing := rdb.(*redis.Ring); isRing {
		panic("rlock: a redis.Ring is not supported")
	}
	var id [16]byte
	_, _ = rand.Read(id[:])
	c := &Client{
		rdb: rdb, id: hex.EncodeToString(id[:]), log: slog.Default(), now: systemClock(),
		timeout: 5 * time.Second, slots: map[string]*slot{},
		settles: make(chan struct{}, maxSettlements),
	}
	if o, ok := rdb.(interface{ Options() *redis.Options }); ok && o.Options().ReadTimeout > 0 {
		c.timeout = o.Options().ReadTimeout
	}
	if o, ok := rdb.(interface{ Options() *redis.ClusterOptions }); ok && o.Options().ReadTimeout > 0 {
		c.timeout = o.Options().ReadTimeout
	}
	c.open, c.close = context.WithCancelCause(context.Background())
	c.life, c.terminate = context.WithCancel(context.Background())
	for _, option := range options {
		option(c)
	}
	c.feed = newFeed(c)
	return c
}

// Close ends all waits with [ErrClosed], releases all holds, and waits until what it gave up is
// settled, for 5 s at most. It ends all goroutines and the subscriber's connection, but not the
// go-redis client. Closing again does nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.close(ErrClosed)
	limit := time.AfterFunc(closeTime, c.terminate)
	defer limit.Stop()
	c.work.Wait()
	c.terminate()
	return nil
}

// enter counts an acquisition that Close has to wait for.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.work.Add(1)
	}
	return !c.closed
}

// Lock acquires a mutex. Without [WithTimeout] it waits until ctx ends.
//
// Whenever it returns an error, nothing stays behind on the server: the client withdraws its request
// in the background, also after ctx has ended.
func (c *Client) Lock(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return c.acquire(ctx, mutex, []string{key}, 0, options)
}

// TryLock acquires a mutex that is free. It fails with [ErrNotAcquired] if another owner holds it. It
// is [Client.Lock] with a timeout of 0.
func (c *Client) TryLock(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return c.Lock(ctx, key, append(options[:len(options):len(options)], WithTimeout(0))...)
}

// FairLock acquires a fair lock, whose queue survives restarts and failovers of the server.
func (c *Client) FairLock(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return c.acquire(ctx, fair, []string{key}, 0, options)
}

// RLock acquires a read-write lock for reading, together with any number of readers.
func (c *Client) RLock(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return c.acquire(ctx, read, []string{key}, 0, options)
}

// WLock acquires a read-write lock for writing.
func (c *Client) WLock(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return c.acquire(ctx, write, []string{key}, 0, options)
}

// Acquire takes permits of a semaphore, which [Client.InitSemaphore] must have made. Release gives
// all of them back.
func (c *Client) Acquire(ctx context.Context, key string, permits int64, options ...Option) (*Hold, error) {
	return c.acquire(ctx, semaphore, []string{key}, permits, options)
}

// LockMany acquires the mutexes of all keys, at most 128, in one step: all of them or none. In a
// cluster the keys must have one hash tag.
func (c *Client) LockMany(ctx context.Context, keys []string, options ...Option) (*Hold, error) {
	return c.acquire(ctx, many, keys, 0, options)
}

// InitSemaphore makes a semaphore of 1 permit or more, and reports whether there was none before. The
// server deletes it when it has not been used for the time idle, up to 365 days; with 0 it stays. A
// semaphore that is there already keeps its permits, and an idle time above 0 replaces its own.
func (c *Client) InitSemaphore(ctx context.Context, key string, permits int64, idle time.Duration) (bool, error) {
	if err := cmp.Or(checkPermits(permits), checked("idle", idle, 0)); err != nil {
		return false, err
	}
	args := []any{"RSEMAPHORE.INIT", c.prefix + key, permits}
	if idle > 0 {
		args = append(args, "IDLE", max(1, idle.Milliseconds()))
	}
	replies, _ := c.send(ctx, c.timeout, args)
	if err := replies[0].err; err != nil {
		return false, classify(key, err)
	}
	return integer(replies[0].value) == 1, nil
}

// longestLease is the longest lease that the server allows, as far as the client knows.
func (c *Client) longestLease() time.Duration {
	if longest := c.maxLease.Load(); longest > 0 {
		return time.Duration(longest) * time.Millisecond
	}
	return math.MaxInt64
}

// capLease applies the longest lease that the server allows, if it tells one. It asks once, or again.
func (c *Client) capLease(ctx context.Context, r *request, again bool) {
	if again || c.maxLease.Load() == 0 {
		replies, _ := c.send(ctx, c.timeout, []any{"INFO", "rlock"})
		longest := int64(math.MaxInt64 / time.Millisecond)
		_, rest, _ := strings.Cut(fmt.Sprint(replies[0].value), "rlock_max_lease_ms:")
		if _, _ = fmt.Sscan(rest, &longest); replies[0].err == nil || code(replies[0].err) != "" {
			c.maxLease.Store(longest)
		}
	}
	r.lease = min(r.lease, c.longestLease())
}

// settle takes back what a request may have been granted or may still wait for. It goes on in the
// background until the server has answered, or the lease has passed. lost are the commands of the
// request without a reply, each closed when go-redis has finished it.
func (c *Client) settle(r *request, id int64, lost []<-chan struct{}) {
	cancel := []any{strings.TrimSuffix(r.family, "M") + "CANCEL", r.keys[0], r.owner, "REQ", id}
	settlement := append([][]any{cancel}, r.releases(id+1, nil)...)
	select {
	case c.settles <- struct{}{}:
	default:
		return // The lease, or the claim, ends what is left.
	}
	c.work.Go(func() { // An acquisition is counted already, so the counter is not 0.
		ctx, cancel := context.WithTimeout(c.life, r.lease)
		defer cancel()
		c.persist(ctx, c.timeout, settlement...)
		for _, done := range lost {
			select {
			case <-done:
			case <-ctx.Done():
			}
		}
		if len(lost) > 0 { // The settlement may have overtaken the request.
			c.persist(ctx, c.timeout, settlement...)
		}
		<-c.settles
	})
}

// reply is what became of a command.
type reply struct {
	value any
	err   error
	sent  time.Duration // On the client's clock.
}

// send sends commands together, and returns when ctx or the time is over, also if go-redis goes on
// waiting for a server that does not answer. The channel is closed when go-redis has finished.
func (c *Client) send(ctx context.Context, limit time.Duration, all ...[]any) ([]reply, <-chan struct{}) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errSilent)
	defer cancel() // Not before the select: an answer must not look like one that is late.
	pipe := c.rdb.Pipeline()
	commands, replies, done := make([]command, len(all)), make([]reply, len(all)), make(chan struct{})
	for i, args := range all {
		commands[i] = newCommand(ctx, args)
		_ = pipe.Process(ctx, commands[i])
		replies[i] = reply{sent: c.now()}
	}
	go func() {
		_, _ = pipe.Exec(ctx)
		close(done)
	}()
	select {
	case <-done:
		for i := range replies {
			replies[i].value, replies[i].err = commands[i].Result()
		}
	case <-ctx.Done(): // The commands belong to go-redis still.
		for i := range replies {
			replies[i].err = context.Cause(ctx)
		}
	}
	return replies, done
}

// persist sends commands until the server has answered all of them for good, or ctx ends. It returns
// the last reply, and whether one was lost before.
func (c *Client) persist(ctx context.Context, limit time.Duration, all ...[]any) (last reply, lost bool) {
	last.err = ErrUnavailable
	var pause backoff
	for again := true; again && ctx.Err() == nil; {
		replies, _ := c.send(ctx, limit, all...)
		again = false
		for _, last = range replies {
			if last.err != nil && classify("", last.err).retryable() {
				again = true
				lost = lost || code(last.err) == ""
			}
		}
		if again {
			pause.sleep(ctx)
		}
	}
	return last, lost
}

// backoff pauses from 50 ms to 1 s.
type backoff struct{ pause time.Duration }

func (b *backoff) next() time.Duration {
	b.pause = min(max(2*b.pause, 50*time.Millisecond), time.Second)
	return b.pause
}

func (b *backoff) sleep(ctx context.Context) {
	select {
	case <-time.After(b.next()):
	case <-ctx.Done():
	}
}
