package rlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// claimTime is how long a hold lasts that was never renewed.
	claimTime = 2 * time.Second
	// claimAfter is after which time a hold is renewed for the first time. Most are released before.
	claimAfter = 50 * time.Millisecond
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

	open      context.Context // Ends with ErrClosed when Close begins.
	close     context.CancelCauseFunc
	life      context.Context // Of releases and settlements, which Close waits for.
	terminate context.CancelFunc
	work      sync.WaitGroup // Acquisitions, releases, settlements.

	mu     sync.Mutex
	closed bool
	slots  map[string]*grant // Of named owners, by place.
	lost   map[string]*grant // By place, until the server has heard of it.
	holds  map[*grant]struct{}
	// timer sweeps the holds at this time, if it is set.
	timer   *time.Timer
	sweepAt time.Duration
	// stale are the connections that the pool had closed at the last sweep.
	stale uint32
}

// New returns a client on rdb, which may be a [redis.Client], also one that Sentinels fail over, or a
// [redis.ClusterClient]. It uses the address, database, user, password and TLS of rdb. rdb stays the
// application's own: [Client.Close] does not close it. New panics if rdb is a [redis.Ring], whose
// servers do not share their waiters.
func New(rdb redis.UniversalClient, options ...ClientOption) *Client {
	var id [16]byte
	_, _ = rand.Read(id[:])
	c := &Client{
		rdb: rdb, id: hex.EncodeToString(id[:]), log: slog.Default(), now: systemClock(),
		timeout: 5 * time.Second, slots: map[string]*grant{}, lost: map[string]*grant{},
		holds: map[*grant]struct{}{}, sweepAt: math.MaxInt64,
		settles: make(chan struct{}, maxSettlements),
	}
	var timeout time.Duration
	switch rdb := rdb.(type) {
	case *redis.Ring:
		panic("rlock: a redis.Ring is not supported")
	case interface{ Options() *redis.Options }:
		timeout = rdb.Options().ReadTimeout
	case interface{ Options() *redis.ClusterOptions }:
		timeout = rdb.Options().ReadTimeout
	}
	if timeout > 0 {
		c.timeout = timeout
	}
	c.open, c.close = context.WithCancelCause(context.Background())
	c.life, c.terminate = context.WithCancel(context.Background())
	for _, option := range options {
		option(c)
	}
	c.feed = newFeed(c)
	c.timer = time.AfterFunc(time.Hour, c.sweep)
	c.timer.Stop()
	return c
}

// Close ends all waits with [ErrClosed], releases all holds, and waits until what it gave up is
// settled, for 5 s at most. It ends all goroutines and the subscriber's connection, but not the
// go-redis client. Closing again does nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	for g := range c.holds {
		g.end(ErrClosed, 0)
	}
	c.timer.Stop()
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

// settle cancels what the request may have been granted or may still wait for. It goes on in the
// background until the server has answered, or the lease has passed: a request may wait for longer than
// its claim.
func (g *grant) settle() {
	c := g.c
	if !g.open && len(g.lost) == 0 {
		return
	}
	select {
	case c.settles <- struct{}{}:
	default:
		return // The claim ends what is left, each in its turn.
	}
	c.work.Go(func() { // An acquisition is counted already, so the counter is not 0.
		ctx, cancel := context.WithTimeout(c.life, g.lease)
		defer cancel()
		for _, done := range g.lost { // The request must not arrive after this.
			select {
			case <-done:
			case <-ctx.Done():
			}
		}
		c.persist(ctx, g.command("CANCEL", "REQ", g.id))
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
	commands, replies := make([]command, len(all)), make([]reply, len(all))
	sent := c.now()
	for i, args := range all {
		commands[i], replies[i].sent = newCommand(ctx, args), sent
		_ = pipe.Process(ctx, commands[i])
	}
	done, err := within(ctx, func() { _, _ = pipe.Exec(ctx) })
	for i := range replies {
		if replies[i].err = err; err == nil { // Otherwise the commands belong to go-redis still.
			replies[i].value, replies[i].err = commands[i].Result()
		}
	}
	return replies, done
}

// within calls f, and goes on without it when ctx ends. The channel is closed when f has returned.
func within(ctx context.Context, f func()) (<-chan struct{}, error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return done, nil
	case <-ctx.Done():
		return done, context.Cause(ctx)
	}
}

// persist sends a command until the server has answered it for good, or ctx ends. It returns the last
// answer, and whether one was lost before.
func (c *Client) persist(ctx context.Context, args []any) (last reply, lost bool) {
	last.err = ErrUnavailable
	var pause backoff
	for ctx.Err() == nil {
		replies, _ := c.send(ctx, c.timeout, args)
		if last = replies[0]; last.err == nil || !classify("", last.err).retryable() {
			break
		}
		lost = lost || code(last.err) == ""
		pause.sleep(ctx)
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
