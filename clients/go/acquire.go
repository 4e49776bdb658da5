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
	r.until, _ = ctx.Deadline()
	limit, cause := c.timeout, ErrUnavailable // A lost reply is asked for again for so long.
	if r.timeout > 0 {
		limit, cause = r.timeout+patience, ErrTimeout
		if until := time.Now().Add(r.timeout); r.until.IsZero() || until.Before(r.until) {
			r.until = until
		}
	}
	if r.timeout >= 0 {
		var stop context.CancelFunc
		limited, stop = context.WithTimeoutCause(limited, limit, cause)
		defer stop()
	}
	h := &Hold{}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	if err := r.admit(limited, h); err != nil {
		h.cancel(err)
		return nil, err
	}
	return h, nil
}

// slot is what a named owner holds, acquires or releases.
type slot struct {
	busy  chan struct{} // Closed when the acquisition or the release has ended.
	grant *grant        // Nil while it acquires or releases.
}

// admit lets a named owner enter again what it holds, and its acquisitions wait for each other.
func (r *request) admit(ctx context.Context, h *Hold) error {
	c, key := r.c, r.keys[0]
	for {
		busy, err := r.occupy(h)
		if h.grant != nil || err != nil {
			return err
		}
		if busy == nil {
			break
		}
		if r.timeout == 0 {
			return &Error{Reason: ErrNotAcquired, Key: key}
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return ended(ctx, key, nil)
		}
	}
	g, err := r.obtain(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		r.vacate()
		return err
	}
	g.begin(h)
	if cause := g.ended(); cause != nil { // Close was called, or the process slept.
		return &Error{Reason: cause, Key: key}
	}
	return nil
}

// occupy takes the places of a request for its slot, unless this is a re-entry. It returns what to wait for
// if another request of the owner has a place.
func (r *request) occupy(h *Hold) (busy <-chan struct{}, err error) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, place := range r.places {
		s := c.slots[place]
		switch {
		case s == nil:
		case s.grant == nil:
			return s.busy, nil
		case s.grant.ended() != nil: // It has left its slot.
		case s.grant.kind != r.kind || !slices.Equal(s.grant.keys, r.keys) || s.grant.permits != r.permits:
			return nil, fmt.Errorf("rlock: the owner holds %q already, by %v; acquire the same again, or name another owner",
				r.keys[i], s.grant.command("ACQUIRE"))
		default:
			s.grant.enter(h)
			return nil, nil
		}
	}
	if r.places != nil {
		r.slot = &slot{busy: make(chan struct{})}
	}
	for _, place := range r.places {
		c.slots[place] = r.slot
		if g := c.lost[place]; g != nil {
			r.before, r.spent = append(r.before, g.release()), append(r.spent, g.tokens...)
		}
	}
	return nil, nil
}

// vacate leaves the places. c.mu is held.
func (r *request) vacate() {
	for _, place := range r.places {
		delete(r.c.slots, place)
	}
	if r.slot != nil && r.slot.grant == nil {
		close(r.slot.busy)
	}
}

// obtain asks until there is a grant, the context ends or the server refuses. What ends without a
// grant is settled.
func (r *request) obtain(ctx context.Context) (*grant, error) {
	key := r.keys[0]
	var pause backoff
	for ctx.Err() == nil {
		g, err := r.ask(ctx)
		switch {
		case ctx.Err() != nil:
		case g != nil:
			return g, nil
		case err != nil:
			e := classify(key, err)
			if e.retryable() && (r.timeout != 0 || e.Code == "") {
				if r.last == nil {
					r.c.log.Warn("rlock: retrying an acquisition", "key", key, "error", err)
				}
				r.last = err
				pause.sleep(ctx)
				continue
			}
			if e.Reason == ErrTimeout {
				e.Code, e.Err = code(r.last), outage(key, r.last)
				if r.timeout < 0 { // The limit was that of the context.
					e.Err = errors.Join(context.DeadlineExceeded, e.Err)
				}
			}
			r.settle()
			return nil, e
		}
		pause = backoff{}
	}
	r.settle()
	if cause := context.Cause(ctx); r.last == nil && (cause == ErrTimeout || cause == ErrUnavailable) {
		r.last = errSilent // Otherwise the server answers before that.
	}
	return nil, ended(ctx, key, r.last)
}

// ask sends the request once and waits for its answer. Without a grant and an error it is to be sent
// again.
func (r *request) ask(ctx context.Context) (*grant, error) {
	c, key := r.c, r.keys[0]
	sub := &subscription{}
	var block int64
	if r.timeout != 0 {
		if !r.until.IsZero() {
			left := time.Until(r.until)
			if left <= 0 {
				return nil, &Error{Reason: ErrTimeout, Key: key}
			}
			block = max(1, left.Milliseconds())
		}
		var err error
		if sub, err = c.feed.subscribe(ctx, key); err != nil {
			return nil, err
		}
	}
	was := r.open
	if !was {
		r.open, r.id, r.first = true, nextID(), c.now()
	}
	var answers <-chan string
	if r.timeout != 0 {
		answers = c.feed.expect(r.id)
		defer c.feed.forget(r.id)
	}
	replies, done := c.send(ctx, c.timeout, append(slices.Clip(r.before), r.acquire(block, sub.channel))...)
	answer := replies[len(r.before)]
	err := answer.err
	switch tokens, left := r.granted(answer.value); {
	case errors.Is(err, redis.Nil):
		r.open = false
		if r.timeout == 0 {
			return nil, &Error{Reason: ErrNotAcquired, Key: key}
		}
		return nil, errors.New("the server does not let the request wait")
	case err != nil && code(err) == "":
		r.lost = append(r.lost, done)
		return nil, err
	case err != nil:
		r.open = was || code(err) == "UNBLOCKED"           // An earlier copy may wait, or be granted.
		if sub.link != nil && redis.IsReadOnlyError(err) { // The subscription may be at this server too.
			c.feed.drop(sub.link, err)
		}
		return nil, err
	case tokens != nil && slices.ContainsFunc(tokens, r.isSpent):
		return nil, errors.New("the owner's lost hold is not released yet")
	case tokens != nil:
		return newGrant(r, tokens, answer.sent, answer.sent, left, 0), nil
	case answer.value != "WAITING" || r.timeout == 0:
		return nil, &Error{Reason: ErrModuleTooOld, Key: key, Err: fmt.Errorf("the answer was %v", answer.value)}
	}
	r.last = nil
	repeat := time.After(repeatAfter)
	var check <-chan time.Time
	if c.feed.cluster != nil {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		check = ticker.C
	}
	for {
		select {
		case text := <-answers:
			return r.answered(text)
		case <-sub.gone:
			return nil, sub.err
		case <-check:
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

func (r *request) isSpent(token int64) bool { return slices.Contains(r.spent, token) }

// answered takes a message: granted ID TOKEN… for MS, nil ID, or error ID CODE TEXT.
func (r *request) answered(text string) (*grant, error) {
	words := strings.SplitN(text+"  ", " ", 3)
	rest := strings.TrimSpace(words[2])
	switch words[0] {
	case "granted":
		var numbers []any
		for word := range strings.FieldsSeq(strings.Replace(rest, " for ", " ", 1)) {
			numbers = append(numbers, word)
		}
		tokens, left := r.granted(numbers)
		switch {
		case tokens == nil:
			return nil, fmt.Errorf("unexpected message %q", text)
		case len(r.lost) > 0 || r.session >= 0: // The connections of a session are those of commands.
			return nil, nil
		}
		// The server counts from when it received the request, which is later than when it was sent.
		return newGrant(r, tokens, r.first, r.c.now(), left, r.claim()/2), nil
	case "error":
		err := serverError(rest)
		r.open = code(err) == "UNBLOCKED" // A server that steps down may have granted the request.
		return nil, err
	}
	r.open = false
	return nil, nil
}
