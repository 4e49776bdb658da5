package rlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

func (c *Client) acquire(ctx context.Context, k kind, keys []string, permits int64, options []Option) (*Hold, error) {
	r, err := c.newRequest(k, keys, permits, options)
	if err != nil {
		return nil, err
	}
	if !c.enter() {
		return nil, &Error{Reason: ErrClosed, Key: r.keys[0]}
	}
	defer c.work.Done()
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.open, func() { cancel(ErrClosed) })()
	a := attempt{c: c, r: r}
	a.until, _ = ctx.Deadline()
	limit, cause := c.timeout, ErrUnavailable // A lost reply is asked for again for so long.
	if r.timeout > 0 {
		limit, cause = r.timeout+patience, ErrTimeout
		if until := time.Now().Add(r.timeout); a.until.IsZero() || until.Before(a.until) {
			a.until = until
		}
	}
	if r.timeout >= 0 {
		var stop context.CancelFunc
		limited, stop = context.WithTimeoutCause(limited, limit, cause)
		defer stop()
	}
	g, err := c.admit(limited, &a)
	if err != nil {
		return nil, err
	}
	h := newHold(ctx, g)
	if cause := g.cause(); cause != nil { // A re-entry of a lost hold, or Close was called.
		_ = h.Release(ctx)
		return nil, &Error{Reason: cause, Key: r.keys[0]}
	}
	return h, nil
}

// slot is what a named owner holds, acquires or releases.
type slot struct {
	done  chan struct{} // Closed when the acquisition or the release has ended.
	grant *grant        // Nil while it acquires or releases.
}

// admit counts a re-entry of a named owner, and lets its acquisitions wait for each other.
func (c *Client) admit(ctx context.Context, a *attempt) (*grant, error) {
	key := a.r.keys[0]
	for {
		g, busy, err := c.occupy(a.r)
		if g != nil || err != nil {
			return g, err
		}
		if busy == nil {
			break
		}
		if a.r.timeout == 0 {
			return nil, &Error{Reason: ErrNotAcquired, Key: key}
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ended(ctx, key, nil)
		}
	}
	g, err := a.obtain(ctx)
	if err != nil {
		c.vacate(a.r)
	} else if s := a.r.slot; s != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		s.grant = g
		close(s.done)
	}
	return g, err
}

// occupy takes the places of a request for its slot. It returns the grant if this is a re-entry, and
// what to wait for if another request of the owner has a place.
func (c *Client) occupy(r *request) (*grant, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, place := range r.places {
		s := c.slots[place]
		switch {
		case s == nil:
		case s.grant == nil:
			return nil, s.done, nil
		case s.grant.r.kind != r.kind || !slices.Equal(s.grant.r.keys, r.keys) || s.grant.r.permits != r.permits:
			return nil, nil, fmt.Errorf("rlock: the owner holds %q already, by %v; acquire the same again, or name another owner",
				r.keys[i], s.grant.r.command("ACQUIRE"))
		default:
			s.grant.count++
			return s.grant, nil, nil
		}
	}
	if r.places != nil {
		r.slot = &slot{done: make(chan struct{})}
	}
	for _, place := range r.places {
		c.slots[place] = r.slot
	}
	return nil, nil, nil
}

// leave takes a hold off the count of its grant, and reports whether that was the last one. The slot
// stays taken until vacate: a new request of the owner must not overtake the RELEASE.
func (c *Client) leave(h *Hold, keeps bool) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := h.grant
	if keeps && g.count > 1 {
		return false, errShared
	}
	if h.released.Swap(true) {
		return false, errReleased
	}
	g.count--
	if s := g.r.slot; s != nil && g.count == 0 {
		s.grant, s.done = nil, make(chan struct{})
	}
	return g.count == 0, nil
}

func (c *Client) vacate(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, place := range r.places {
		delete(c.slots, place)
	}
	if r.slot != nil {
		close(r.slot.done)
	}
}

// attempt is an acquisition on its way.
type attempt struct {
	c     *Client
	r     *request
	id    int64     // Its settlement has the next one.
	until time.Time // Zero: no limit but that of the context.
	// open is whether the request may be waiting or granted on the server.
	open bool
	// lost are the commands without a reply. They may still arrive, whatever the server answers to later ones.
	lost []<-chan struct{}
	// last is why the server did not serve the request, nil if it did at last.
	last error
}

// obtain asks until there is a grant, the context ends or the server refuses. What ends without a
// grant is settled.
func (a *attempt) obtain(ctx context.Context) (*grant, error) {
	c, key := a.c, a.r.keys[0]
	c.capLease(ctx, a.r, false)
	a.id = nextID()
	var pause backoff
	for ctx.Err() == nil {
		g, err := a.ask(ctx)
		switch {
		case ctx.Err() != nil:
		case g != nil && c.now() >= g.deadline: // The process slept, or the server did.
			a.id = nextID()
		case g != nil:
			g.begin()
			return g, nil
		case err != nil:
			e := classify(key, err)
			if lease := a.r.lease; strings.Contains(err.Error(), "rlock.max-lease-ms") {
				// It was lowered since the client has read it.
				if c.capLease(ctx, a.r, true); a.r.lease < lease {
					continue
				}
			}
			if e.retryable() && (a.r.timeout != 0 || e.Code == "") {
				if a.last == nil {
					c.log.Warn("rlock: retrying an acquisition", "key", key, "error", err)
				}
				a.last = err
				pause.sleep(ctx)
				continue
			}
			if e.Reason == ErrTimeout {
				e.Code, e.Err = code(a.last), outage(key, a.last)
				if a.r.timeout < 0 { // The limit was that of the context.
					e.Err = errors.Join(context.DeadlineExceeded, e.Err)
				}
			}
			if e.Reason != ErrSuperseded { // Then a newer request of this owner waits or holds.
				a.settle()
			}
			return nil, e
		}
		pause = backoff{}
	}
	a.settle()
	if cause := context.Cause(ctx); a.last == nil && (cause == ErrTimeout || cause == ErrUnavailable) {
		a.last = errSilent // Otherwise the server answers before that.
	}
	return nil, ended(ctx, key, a.last)
}

func (a *attempt) settle() {
	if a.open || len(a.lost) > 0 {
		a.c.settle(a.r, a.id, a.lost)
	}
}

// ask sends the request once and waits for its answer. Without a grant and an error it is to be sent
// again.
func (a *attempt) ask(ctx context.Context) (*grant, error) {
	c, r, key := a.c, a.r, a.r.keys[0]
	var sub *subscription
	var answers <-chan string
	args := r.acquire(a.id)
	if r.timeout != 0 {
		var block int64
		if !a.until.IsZero() {
			left := time.Until(a.until)
			if left <= 0 {
				return nil, &Error{Reason: ErrTimeout, Key: key}
			}
			block = max(1, left.Milliseconds())
		}
		var err error
		if sub, err = c.feed.subscribe(ctx, key); err != nil {
			return nil, err
		}
		answers = c.feed.expect(a.id)
		defer c.feed.forget(a.id)
		args = r.wait(a.id, block, sub.channel)
	}
	a.open = true
	replies, done := c.send(ctx, c.timeout, args)
	value, err := replies[0].value, replies[0].err
	tokens := r.tokens(value)
	switch {
	case errors.Is(err, redis.Nil):
		a.used()
		if sub == nil {
			return nil, &Error{Reason: ErrNotAcquired, Key: key}
		}
		return nil, errors.New("the server does not let the request wait")
	case err != nil && code(err) == "":
		a.lost = append(a.lost, done)
		return nil, err
	case err != nil:
		a.open = false
		if sub != nil && redis.IsReadOnlyError(err) { // The subscription may be at this server too.
			c.feed.drop(sub.link, err)
		}
		return nil, err
	case tokens != nil:
		return newGrant(c, r, tokens, replies[0], -1), nil
	case value != "WAITING" || sub == nil:
		return nil, &Error{Reason: ErrModuleTooOld, Key: key, Err: fmt.Errorf("the answer was %v", value)}
	}
	a.last = nil
	repeat, check := time.After(repeatAfter), time.NewTicker(time.Second)
	defer check.Stop()
	for {
		select {
		case text := <-answers:
			return a.answered(ctx, text)
		case <-sub.gone:
			return nil, sub.err
		case <-check.C:
			if !c.feed.isHome(ctx, sub) {
				return nil, nil
			}
		case <-repeat:
			return nil, nil
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// used notes that the request with this number has ended without a grant.
func (a *attempt) used() {
	a.open = false
	a.id = nextID()
}

// answered takes a message: granted ID TOKEN…, nil ID, or error ID CODE TEXT.
func (a *attempt) answered(ctx context.Context, text string) (*grant, error) {
	words := strings.SplitN(text+"  ", " ", 3)
	rest := strings.TrimSpace(words[2])
	switch words[0] {
	case "granted":
		var replies []any
		for word := range strings.FieldsSeq(rest) {
			replies = append(replies, word)
		}
		tokens := a.r.tokens(replies)
		if tokens == nil {
			return nil, fmt.Errorf("unexpected message %q", text)
		}
		return a.claim(ctx, tokens)
	case "error":
		err := serverError(rest)
		if code(err) != "UNBLOCKED" { // A server that steps down may have granted the request.
			a.used()
		}
		return nil, err
	}
	a.used()
	return nil, nil
}

// claim confirms a grant that came as a message: it may have expired meanwhile.
func (a *attempt) claim(ctx context.Context, tokens []int64) (*grant, error) {
	answer, _ := a.c.persist(ctx, min(a.c.timeout, claimTime/2), a.r.renew(tokens))
	switch {
	case answer.err == nil:
		return newGrant(a.c, a.r, tokens, answer, integer(answer.value)), nil
	case code(answer.err) == "NOTOWNER":
		if a.r.kind == many {
			a.c.persist(ctx, a.c.timeout, a.r.releases(a.id+1, tokens)...)
		}
		a.used()
		return nil, nil
	}
	return nil, answer.err
}
