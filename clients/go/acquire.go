package rlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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
	a := attempt{c: c, r: r, id: nextID()}
	limit, cause := c.timeout, ErrUnavailable // A lost reply is asked for again for so long.
	if r.timeout > 0 {
		a.until = time.Now().Add(r.timeout)
		limit, cause = r.timeout+patience, ErrTimeout
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
	if !h.Held() { // Only a re-entry can find that.
		_ = h.Release(ctx)
		return nil, &Error{Reason: ErrLost, Key: r.keys[0]}
	}
	return h, nil
}

// slot is what a named owner holds or acquires. It has an entry for each of its keys.
type slot struct {
	request string
	done    chan struct{} // Closed when the acquisition has ended.
	grant   *grant
}

// admit counts a re-entry of a named owner, and lets its acquisitions wait for each other.
func (c *Client) admit(ctx context.Context, a *attempt) (*grant, error) {
	r := a.r
	if !r.named {
		return a.obtain(ctx)
	}
	s := &slot{request: fmt.Sprint(r.kind, r.keys, r.permits), done: make(chan struct{})}
	for {
		other, g := c.enroll(r, s)
		switch {
		case other == s:
			g, err := a.obtain(ctx)
			c.mu.Lock()
			defer c.mu.Unlock()
			if s.grant = g; err != nil {
				c.vacate(r)
			}
			close(s.done)
			return g, err
		case other.request != s.request:
			return nil, fmt.Errorf("rlock: owner %q uses key %q with another request", r.owner, r.keys[0])
		case g != nil:
			return g, nil
		case r.timeout == 0:
			return nil, &Error{Reason: ErrNotAcquired, Key: r.keys[0]}
		}
		select {
		case <-other.done:
		case <-ctx.Done():
			return nil, ended(ctx, r.keys[0], nil)
		}
	}
}

// enroll makes s the slot of the request, or returns the slot that is there with its grant, which it
// counts.
func (c *Client) enroll(r *request, s *slot) (*slot, *grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range r.slots() {
		if other := c.slots[name]; other != nil {
			if other.grant != nil && other.request == s.request {
				other.grant.count++
				return other, other.grant
			}
			return other, nil
		}
	}
	for _, name := range r.slots() {
		c.slots[name] = s
	}
	return s, nil
}

// vacate removes the slot of the request. The caller holds c.mu.
func (c *Client) vacate(r *request) {
	if r.named {
		for _, name := range r.slots() {
			delete(c.slots, name)
		}
	}
}

// attempt is an acquisition on its way.
type attempt struct {
	c     *Client
	r     *request
	id    int64
	until time.Time // Zero: no limit but that of the context.
	// open is whether the request may be waiting or granted on the server.
	open bool
	// lost are the commands without a reply: whatever is answered later, they may still arrive.
	lost []<-chan struct{}
}

// obtain asks until there is a grant, the context ends or the server refuses. What ends without a
// grant is settled.
func (a *attempt) obtain(ctx context.Context) (*grant, error) {
	key := a.r.keys[0]
	a.c.capLease(ctx, a.r)
	var pause backoff
	var last error
	for ctx.Err() == nil {
		g, err := a.ask(ctx)
		if g != nil && ctx.Err() == nil {
			if a.c.now() >= g.deadline { // The process slept, or the server did.
				a.id = nextID()
				continue
			}
			if !a.c.hold(g) {
				break
			}
			return g, nil
		}
		if err == nil || ctx.Err() != nil {
			pause = backoff{}
			continue
		}
		var e *Error
		if !errors.As(err, &e) {
			e = classify(key, err)
		}
		if e.Reason == ErrTimeout {
			e.Err = last
		}
		if !e.retryable() || a.r.timeout == 0 && e.Code != "" {
			// Superseded: a newer request of this owner waits, and may be granted the lock.
			if e.Reason != ErrSuperseded {
				a.settle()
			}
			return nil, e
		}
		last = err
		pause.sleep(ctx)
	}
	a.settle()
	return nil, ended(ctx, key, last)
}

func (a *attempt) settle() {
	if a.open || len(a.lost) > 0 {
		a.c.settle(a.r, a.id, a.lost)
	}
}

// left is what is left of the time to wait, 0 without a limit. It is false when none is left.
func (a *attempt) left(ctx context.Context) (time.Duration, bool) {
	until := a.until
	if until.IsZero() {
		until, _ = ctx.Deadline()
	}
	if until.IsZero() {
		return 0, true
	}
	left := time.Until(until)
	return max(left, time.Millisecond), left > 0
}

// ask sends the request once and waits for its answer. Without a grant and an error it is to be sent
// again.
func (a *attempt) ask(ctx context.Context) (*grant, error) {
	key := a.r.keys[0]
	if a.r.timeout == 0 {
		sent := a.c.now()
		reply, err := a.send(ctx, a.r.acquire(a.id))
		if errors.Is(err, redis.Nil) {
			return nil, &Error{Reason: ErrNotAcquired, Key: key}
		}
		return a.granted(sent, reply, err)
	}
	left, ok := a.left(ctx)
	if !ok {
		return nil, &Error{Reason: ErrTimeout, Key: key}
	}
	sub, err := a.c.feed.subscribe(ctx, key)
	if err != nil {
		return nil, err
	}
	answers := a.c.feed.expect(a.id)
	defer a.c.feed.forget(a.id)
	sent := a.c.now()
	reply, err := a.send(ctx, a.r.wait(a.id, left, sub.channel))
	switch {
	case errors.Is(err, redis.Nil):
		a.id = nextID()
		return nil, &Error{Reason: ErrUnavailable, Key: key, Err: errors.New("the server did not let the request wait")}
	case redis.IsReadOnlyError(err):
		a.c.feed.drop(sub.link, err) // The subscription is at a server that was demoted.
	}
	if reply != "WAITING" {
		return a.granted(sent, reply, err)
	}
	again := time.NewTimer(repeatAfter)
	defer again.Stop()
	select {
	case text := <-answers:
		return a.answered(ctx, text)
	case <-sub.gone:
		return nil, sub.err
	case <-again.C:
	case <-ctx.Done():
	}
	return nil, nil
}

// send sends the request and notes whether it may have effects that were not answered.
func (a *attempt) send(ctx context.Context, args []any) (any, error) {
	a.open = true
	reply, done, err := a.c.start(ctx, a.c.timeout, args)
	if errors.Is(err, redis.Nil) || code(err) != "" {
		a.open = false
	} else if err != nil {
		a.lost = append(a.lost, done)
	}
	return reply, err
}

// granted is the grant of a reply.
func (a *attempt) granted(sent time.Duration, reply any, err error) (*grant, error) {
	if err != nil {
		return nil, err
	}
	tokens := a.r.tokens(reply)
	if tokens == nil {
		return nil, &Error{Reason: ErrModuleTooOld, Key: a.r.keys[0], Err: fmt.Errorf("the answer was %v", reply)}
	}
	return newGrant(a.c, a.r, tokens, sent, -1), nil
}

// answered takes a message: granted ID TOKEN…, nil ID, or error ID CODE TEXT.
func (a *attempt) answered(ctx context.Context, text string) (*grant, error) {
	what, rest, _ := strings.Cut(text, " ")
	_, rest, _ = strings.Cut(rest, " ")
	if what == "granted" {
		var replies []any
		for word := range strings.FieldsSeq(rest) {
			replies = append(replies, word)
		}
		var reply any = replies
		if !a.r.many {
			reply = rest
		}
		if tokens := a.r.tokens(reply); tokens != nil {
			return a.claim(ctx, tokens)
		}
		return nil, fmt.Errorf("unexpected message %s", strconv.Quote(text))
	}
	err := serverError(rest)
	if what == "error" && code(err) == "UNBLOCKED" {
		return nil, err // A server that steps down may have granted the request: the number stays.
	}
	a.open = false
	a.id = nextID()
	if what == "error" {
		return nil, err
	}
	return nil, nil
}

// claim confirms a grant that came as a message: it may have expired meanwhile.
func (a *attempt) claim(ctx context.Context, tokens []int64) (*grant, error) {
	var pause backoff
	for ; ctx.Err() == nil; pause.sleep(ctx) {
		sent := a.c.now()
		left, err := a.c.call(ctx, min(a.c.timeout, claimTime/2), a.r.renew(tokens))
		switch {
		case err == nil:
			return newGrant(a.c, a.r, tokens, sent, integer(left)), nil
		case code(err) == "NOTOWNER":
			a.id = nextID()
			return nil, nil
		case !classify(a.r.keys[0], err).retryable():
			return nil, err
		}
	}
	return nil, nil
}
