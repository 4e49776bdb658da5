package rlock

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"
)

var (
	errReleased = errors.New("the lock was released")
	errShared   = errors.New("rlock: ReleaseAndKeep is for the only hold of a mutex or a fair lock")
)

// Hold is a lock that is held. It is safe for concurrent use.
type Hold struct {
	grant  *grant
	ctx    context.Context
	cancel context.CancelCauseFunc
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
	left, _ := h.belief()
	return left
}

// lost is whether the hold has ended before it was released.
func (h *Hold) lost() bool {
	left, released := h.belief()
	return left == 0 && !released
}

func (h *Hold) belief() (left time.Duration, released bool) {
	g := h.grant
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	if released = !g.holds[h]; !released && g.ended() == nil {
		left = max(1, g.deadline-g.c.now())
	}
	return left, released
}

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
	if k := h.grant.kind; k != mutex && k != fair {
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
			err = &Error{Reason: ErrLost, Key: h.grant.keys[0]}
		}
	}()
	if h.lost() {
		return nil // Above, it becomes the loss.
	}
	return work(h.ctx, h)
}

func (h *Hold) release(ctx context.Context, keep time.Duration) error {
	result, err := h.leave(keep)
	if result == nil {
		return err
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ended(ctx, h.grant.keys[0], nil)
	}
}

// leave takes the hold off its grant, and releases that with the last one. It returns where the result will
// arrive then.
func (h *Hold) leave(keep time.Duration) (<-chan error, error) {
	g := h.grant
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	cause := g.ended()
	switch {
	case !g.holds[h]:
		return nil, nil
	case keep >= 0 && len(g.holds) > 1:
		return nil, errShared
	}
	delete(g.holds, h)
	h.cancel(cause)
	switch {
	case cause != nil:
		return nil, &Error{Reason: cause, Key: g.keys[0]}
	case len(g.holds) > 0:
		return nil, nil
	}
	return g.end(errReleased, keep), nil
}

// believe takes the answer to a request that was sent then: left milliseconds of the hold are left. It reports
// whether more time than needed is left now.
func (g *grant) believe(tokens []int64, sent, began time.Duration, left int64, needed time.Duration) bool {
	g.tokens, g.limit = tokens, math.MaxInt64
	if g.fixed {
		g.limit = began + g.lease
	}
	g.follow(sent, left)
	now := g.c.now()
	g.third = g.claim() / 3
	g.renewAt = sharing(now, min(claimAfter, g.third))
	return now+needed < g.deadline
}

// sharing is the end of a period. It is rounded, so that the holds that are due in it share a sweep.
func sharing(from, period time.Duration) time.Duration {
	return (from + period + period/16).Truncate(period / 16)
}

// follow sets the deadline, also to an earlier one: the server may have less time left for the hold than
// before. It allows for a clock that is slower than the server's.
func (g *grant) follow(sent time.Duration, left int64) {
	valid := time.Duration(left) * time.Millisecond
	if g.session >= 0 { // The server may see the connection close long before the client does.
		valid = min(valid, g.session)
	}
	margin := valid/100 + 2*time.Millisecond
	g.sent, g.deadline, g.third = sent, sent+valid-margin, valid/3
	g.renewAt = sharing(sent, g.third)
	if sent+valid >= g.limit-margin { // Nothing is left to ask for.
		g.deadline, g.renewAt = min(g.deadline, g.limit-margin), math.MaxInt64
	}
}

// begin begins to watch and renew the grant.
func (g *grant) begin(h *Hold) {
	g.pass()
	g.c.holds[g] = struct{}{}
	g.enter(h)
	if g.c.closed {
		g.end(ErrClosed, 0)
	} else {
		g.c.arm(g, g.c.now())
	}
}

func (g *grant) enter(h *Hold) {
	h.grant = g
	g.holds[h] = true
}

// ended is why the belief has ended, and nil while it lasts. The clock ends it.
func (g *grant) ended() error {
	if g.over == nil && g.c.now() >= g.deadline {
		g.end(ErrLost, 0)
	}
	return g.over
}

// end ends the belief, and releases the hold on the server in the background. It returns where the result
// will arrive.
func (g *grant) end(cause error, keep time.Duration) <-chan error {
	g.over = cause
	delete(g.c.holds, g)
	for h := range g.holds {
		h.cancel(cause)
	}
	if cause != errReleased { // The server may hold it still, but the owner has lost it.
		g.vacate()
		for _, place := range g.places {
			g.c.lost[place] = g
		}
	} else if g.places != nil { // A request of the owner must not overtake the RELEASE.
		g.busy = make(chan struct{})
	}
	args := g.release()
	if keep > 0 {
		args = append(args, "KEEP", max(1, keep.Milliseconds()))
	}
	result := make(chan error, 1)
	g.c.work.Go(func() {
		if cause == ErrLost { // The work stops meanwhile.
			time.Sleep(min(g.lease/100, time.Second))
		}
		err := g.surrender(args)
		g.c.mu.Lock()
		defer g.c.mu.Unlock()
		if cause == errReleased {
			g.vacate()
		}
		for _, place := range g.places {
			if g.c.lost[place] == g {
				delete(g.c.lost, place)
			}
		}
		result <- err
	})
	return result
}

// renew asks for the whole lease, or for the rest of a fixed one. The server shortens it if it allows less.
func (g *grant) renew() []any {
	lease := min(g.lease, g.limit-g.c.now())
	return g.about(g.command("RENEW", "PX", max(1, lease.Milliseconds()), "TIMED"))
}

// release gives the hold back. Only permits need a number, and what clients may share: anything else is held
// once, so its token is gone when the command is repeated.
func (g *grant) release() []any {
	args := g.command("RELEASE")
	if g.kind == semaphore || g.places != nil {
		args = append(args, "REQ", nextID())
	}
	if g.kind == many {
		args = append(args, "EACH")
	}
	return g.about(args)
}

// about adds the tokens.
func (g *grant) about(args []any) []any {
	word := "TOKEN"
	if g.kind == many {
		word = "TOKENS"
	}
	args = append(args, word)
	for _, token := range g.tokens {
		args = append(args, token)
	}
	return args
}

// surrender releases the hold on the server, until it has answered or the lease has passed.
func (g *grant) surrender(args []any) error {
	c, key := g.c, g.keys[0]
	ctx, cancel := context.WithTimeout(c.life, g.lease)
	defer cancel()
	answer, repeated := c.persist(ctx, args)
	word := code(answer.err)
	if each, _ := answer.value.([]any); slices.Contains(each, nil) {
		word = "NOTOWNER"
	}
	if word == "WRONGTYPE" && g.kind == many { // It has released none of the others.
		for i, key := range g.keys {
			c.persist(ctx, []any{"RLOCK.RELEASE", key, g.owner, "TOKEN", g.tokens[i]})
		}
	}
	switch {
	case word == "NOTOWNER" && repeated: // An earlier attempt released it.
		return nil
	case word == "NOTOWNER" || word == "WRONGTYPE" || word == "NOSEMAPHORE": // Or the key was overwritten or deleted.
		return &Error{Reason: ErrLost, Key: key, Code: word, Err: answer.err}
	case answer.err == nil || word == "STALE": // Then a newer request of this owner has the hold.
		return nil
	}
	c.log.Warn("rlock: the lock was not released", "key", key, "error", answer.err)
	return classify(key, answer.err)
}

// arm sets the timer for the next renewal or deadline. It wakes once a second at least, because timers of Go
// stand still during suspend.
func (c *Client) arm(g *grant, now time.Duration) {
	if at := min(g.deadline, g.renewAt, now+time.Second); at < c.sweepAt {
		c.sweepAt = at
		c.timer.Reset(at - now)
	}
}

// sweep ends the beliefs and renews the holds for which it is time. It does no I/O.
func (c *Client) sweep() {
	stale := c.closedConnections()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	var due []*grant
	var limit time.Duration
	c.sweepAt = math.MaxInt64
	for g := range c.holds {
		if g.ended() != nil {
			continue
		}
		// A connection that was closed may have been the last one of the session.
		if now >= g.renewAt || g.session >= 0 && stale != c.stale {
			g.renewAt, limit = now+min(g.third, c.timeout), max(limit, g.deadline-now)
			due = append(due, g)
		}
		c.arm(g, now)
	}
	if c.stale = stale; due != nil {
		go c.renew(due, limit)
	}
}

// renew sends a pipeline to each server: one that stalls must not delay the answers of another.
func (c *Client) renew(due []*grant, limit time.Duration) {
	groups := map[string][]*grant{}
	for _, g := range due {
		_, address, _ := c.feed.node(c.open, g.keys[0])
		groups[address] = append(groups[address], g)
	}
	for _, group := range groups {
		go func() {
			commands := make([][]any, len(group))
			for i, g := range group {
				commands[i] = g.renew()
			}
			replies, _ := c.send(c.open, min(limit, c.timeout), commands...)
			c.mu.Lock()
			defer c.mu.Unlock()
			for i, g := range group {
				g.renewed(replies[i])
			}
		}()
	}
}

// renewed takes the answer to a RENEW.
func (g *grant) renewed(answer reply) {
	now := g.c.now()
	switch {
	case g.ended() != nil || answer.sent < g.sent:
		return // Too late to change anything.
	case code(answer.err) == "NOTOWNER":
		g.end(ErrLost, 0)
		return
	case answer.err != nil:
		g.renewAt = now + g.pause.next()
	default:
		g.follow(answer.sent, integer(answer.value))
		g.pause = backoff{}
	}
	g.c.arm(g, now)
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
