package rlock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var (
	errReleased = errors.New("the lock was released")
	errShared   = errors.New("rlock: ReleaseAndKeep is for the only hold of a mutex or a fair lock")
)

// Hold is a lock that is held. It is safe for concurrent use.
type Hold struct {
	grant    *grant
	ctx      context.Context
	cancel   context.CancelCauseFunc
	unlink   func() bool
	released atomic.Bool
}

func newHold(ctx context.Context, g *grant) *Hold {
	h := &Hold{grant: g}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	h.unlink = context.AfterFunc(g.ctx, func() { h.cancel(context.Cause(g.ctx)) })
	return h
}

// Context is for the work under the lock. It ends when the hold is lost, with [ErrLost] as its
// [context.Cause], when the hold is released, and with the context that the lock was acquired with.
// The loss is told by the clock, also if the server cannot be reached.
func (h *Hold) Context() context.Context { return h.ctx }

// Token is the fencing token: higher than that of every hold before. Write it along with what the
// lock protects, and let the store refuse lower ones. It is the first one of [Client.LockMany].
func (h *Hold) Token() int64 { return h.grant.tokens[0] }

// Tokens are the fencing tokens of all keys, in their order.
func (h *Hold) Tokens() []int64 { return slices.Clone(h.grant.tokens) }

// Held reports whether the lock is held now. It asks the clock and not the server, so it is right
// also when a timer is late.
func (h *Hold) Held() bool { return h.Remaining() > 0 }

// Remaining is the time until the hold is lost unless it is renewed, and 0 if it is not held.
func (h *Hold) Remaining() time.Duration {
	if h.released.Load() {
		return 0
	}
	return h.grant.remaining()
}

// lost is whether the hold has ended before it was released.
func (h *Hold) lost() bool { return !h.released.Load() && h.grant.remaining() == 0 }

// Release gives the lock back. The hold ends at once, whatever the server answers: while the server
// does not, Release repeats the command until the lease would have ended. If ctx ends before that,
// Release returns, and the command is repeated in the background.
//
// It fails with [ErrLost] if the hold was lost before. Of several holds of one named owner the last
// one gives the lock back. Releasing a hold again does nothing.
func (h *Hold) Release(ctx context.Context) error { return h.release(ctx, -1) }

// ReleaseAndKeep ends the hold and keeps the lock closed to all owners for the given time, up to 365
// days, so that a job runs at most once in that time. With 0 it is [Hold.Release]. It is for mutexes and
// fair locks, and for an owner's only hold.
func (h *Hold) ReleaseAndKeep(ctx context.Context, d time.Duration) error {
	if k := h.grant.r.kind; k != mutex && k != fair {
		return errShared
	}
	if err := checked("the time to keep the lock", d, 0); err != nil {
		return err
	}
	return h.release(ctx, d)
}

// Run calls work with the context of the hold, and releases the hold afterwards, also if work panics.
// It returns the error of work. If work returned nil and the hold was lost before, it returns an error
// that is [ErrLost], and it does not call work at all if the hold is lost already. A release that does
// not reach the server is logged.
func (h *Hold) Run(work func(ctx context.Context, hold *Hold) error) (err error) {
	defer func() {
		lost := h.lost()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), h.grant.c.timeout)
		defer cancel()
		if released := h.Release(ctx); err == nil && (lost || errors.Is(released, ErrLost)) {
			err = &Error{Reason: ErrLost, Key: h.grant.r.keys[0]}
		}
	}()
	if h.lost() {
		return nil // Above, it becomes the loss.
	}
	return work(h.ctx, h)
}

func (h *Hold) release(ctx context.Context, keep time.Duration) error {
	g := h.grant
	key := g.r.keys[0]
	cause := g.cause() // Before others can release the last hold.
	last, err := g.c.leave(h, keep >= 0)
	if err == errReleased {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.cancel(nil)
	h.unlink()
	if !last {
		h.cancel(cause)
		if cause != nil {
			return &Error{Reason: cause, Key: key}
		}
		return nil
	}
	cause = g.end(errReleased, keep)
	result := make(chan error, 1)
	go func() {
		err := <-g.result
		g.c.vacate(g.r)
		result <- err
	}()
	if cause != errReleased {
		h.cancel(cause)
		return &Error{Reason: cause, Key: key}
	}
	h.cancel(nil)
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ended(ctx, key, nil)
	}
}

// grant is a hold on the server.
type grant struct {
	c       *Client
	r       *request
	tokens  []int64
	ctx     context.Context // Ends with the belief.
	lose    context.CancelCauseFunc
	unwatch func() bool // Ends the watch of the client's end.
	result  chan error  // Of the release.
	count   int         // Of re-entries, under c.mu.

	mu       sync.Mutex
	over     error         // Why the belief has ended.
	sent     time.Duration // The request whose answer counts, on the client's clock, as the next two.
	deadline time.Duration
	renewAt  time.Duration
	closed   uint32 // The connections that the pool had closed at the last renewal.
	pause    backoff
	timer    *time.Timer
}

// newGrant makes a grant of the answer to a command. left is the server's own count of milliseconds,
// negative if it gave none.
func newGrant(c *Client, r *request, tokens []int64, answer reply, left int64) *grant {
	g := &grant{c: c, r: r, tokens: tokens, count: 1, result: make(chan error, 1)}
	g.ctx, g.lose = context.WithCancelCause(context.Background())
	if r.session >= 0 {
		g.closed = c.closedConnections()
	}
	g.follow(answer, left)
	return g
}

// follow sets the deadline, also to an earlier one: the server may have less time left for the hold than
// before. It allows for a clock that is slower than the server's.
func (g *grant) follow(answer reply, left int64) {
	valid := min(g.r.effective(), g.c.longestLease())
	if left >= 0 {
		valid = min(valid, time.Duration(left)*time.Millisecond)
	}
	g.sent = answer.sent
	g.renewAt = answer.sent + valid/3
	g.deadline = answer.sent + valid - valid/100 - 2*time.Millisecond
}

// begin begins to watch and renew the grant. The caller is counted in c.work.
func (g *grant) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.c.work.Add(1) // Until it is released on the server.
	g.timer = time.AfterFunc(time.Hour, g.tick)
	g.unwatch = context.AfterFunc(g.c.open, func() { g.end(ErrClosed, 0) })
	g.arm(g.c.now())
}

// remaining is 0 when the belief has ended.
func (g *grant) remaining() time.Duration {
	now := g.c.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over != nil {
		return 0
	}
	return max(0, g.deadline-now)
}

// cause is why the belief has ended, and nil while it lasts.
func (g *grant) cause() error {
	if g.remaining() > 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return cmp.Or(g.over, ErrLost)
}

// arm sets the timer for the next renewal or deadline. It wakes once a second at least, because timers of Go
// stand still during suspend.
func (g *grant) arm(now time.Duration) {
	next := min(g.deadline, now+time.Second)
	if !g.r.fixed {
		next = min(next, g.renewAt)
	}
	g.timer.Reset(max(0, next-now))
}

// tick ends the belief or asks for a renewal when it is time. It does no I/O.
func (g *grant) tick() {
	now := g.c.now()
	closed := uint32(0)
	if g.r.session >= 0 {
		closed = g.c.closedConnections()
	}
	g.mu.Lock()
	lost := now >= g.deadline
	// A connection that was closed may have been the last one of the session.
	due := !g.r.fixed && (now >= g.renewAt || closed != g.closed)
	if g.over == nil && !lost {
		if due {
			g.closed = closed
			g.renewAt = now + min(g.r.effective()/3, g.c.timeout) // How long this attempt may take.
			g.c.renew(g)
		}
		g.arm(now)
	}
	g.mu.Unlock()
	if lost {
		g.end(ErrLost, 0)
	}
}

// renewed takes the answer to a RENEW.
func (g *grant) renewed(answer reply) {
	if code(answer.err) == "NOTOWNER" {
		g.end(ErrLost, 0)
		return
	}
	now := g.c.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.over != nil || now >= g.deadline || answer.sent < g.sent:
		return // Too late to change anything.
	case answer.err != nil:
		g.renewAt = now + g.pause.next()
	default:
		g.follow(answer, integer(answer.value))
		g.pause = backoff{}
	}
	g.arm(now)
}

// end ends the belief, releases the hold on the server in the background, and returns why the belief
// has ended: a release that comes after the deadline finds the hold lost.
func (g *grant) end(cause error, keep time.Duration) error {
	now := g.c.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over == nil {
		left := g.deadline - now
		if left <= 0 {
			cause = ErrLost
		}
		g.over = cause
		g.timer.Stop()
		g.unwatch()
		id := nextID() // Lower than those of what the owner acquires afterwards.
		g.lose(cause)
		go func() {
			defer g.c.work.Done()
			g.result <- g.surrender(id, left, keep)
		}()
	}
	return g.over
}

// surrender releases the hold on the server, until it has answered or the lease has passed.
func (g *grant) surrender(id int64, left, keep time.Duration) error {
	key := g.r.keys[0]
	args := g.r.about(g.tokens, g.r.command("RELEASE", "REQ", id))
	if left <= 0 { // With a session, or after a jump of the clock, the server may hold it still.
		time.Sleep(min(g.r.effective()/100, time.Second)) // The work stops meanwhile.
	} else if keep > 0 {
		args = append(args, "KEEP", max(1, keep.Milliseconds()))
	}
	if left <= 0 || g.r.session >= 0 { // A session with an open connection outlasts the belief.
		left = g.r.lease
	}
	ctx, cancel := context.WithTimeout(g.c.life, left)
	defer cancel()
	answer, repeated := g.c.persist(ctx, g.c.timeout, args)
	if answer.err != nil && g.r.kind == many {
		g.c.persist(ctx, g.c.timeout, g.r.releases(id, g.tokens)...)
	}
	switch word := code(answer.err); {
	case answer.err == nil || word == "STALE": // Then a newer request of this owner has the hold.
		return nil
	case word == "NOTOWNER" && repeated: // An earlier attempt released it.
		return nil
	case word == "NOTOWNER" || word == "WRONGTYPE" || word == "NOSEMAPHORE": // Or the key was overwritten or deleted.
		return &Error{Reason: ErrLost, Key: key, Code: word, Err: answer.err}
	}
	g.c.log.Warn("rlock: the lock was not released", "key", key, "error", answer.err)
	return classify(key, answer.err)
}

// closedConnections counts the connections that the pool has found closed, or has closed itself. go-redis
// does not tell of one otherwise.
func (c *Client) closedConnections() uint32 {
	stats := c.rdb.PoolStats()
	if pipelines := stats.PipelineStats; pipelines != nil {
		return stats.StaleConns + pipelines.StaleConns
	}
	return stats.StaleConns
}

// renew sends a renewal, together with those that are due in the same millisecond.
func (c *Client) renew(g *grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due = append(c.due, g)
	if len(c.due) == 1 {
		time.AfterFunc(time.Millisecond, c.flush)
	}
}

// flush sends a pipeline to each server: one that stalls must not delay the answers of another.
func (c *Client) flush() {
	c.mu.Lock()
	due := c.due
	c.due = nil
	c.mu.Unlock()
	groups := map[string][]*grant{}
	for _, g := range due {
		_, address, _ := c.feed.node(c.open, g.r.keys[0])
		groups[address] = append(groups[address], g)
	}
	for _, group := range groups {
		go func() {
			var limit time.Duration
			commands := make([][]any, len(group))
			for i, g := range group {
				limit = max(limit, g.r.effective()/3)
				commands[i] = g.r.renew(g.tokens)
			}
			replies, _ := c.send(c.open, limit, commands...)
			for i, g := range group {
				g.renewed(replies[i])
			}
		}()
	}
}
