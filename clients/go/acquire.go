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
	g, err := c.newGrant(k, keys, permits, options)
	if err != nil {
		return nil, err
	}
	if !c.enter() {
		return nil, &Error{Reason: ErrClosed, Key: g.keys[0]}
	}
	defer c.work.Done()
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.open, func() { cancel(ErrClosed) })()
	g.until, _ = ctx.Deadline()
	limit, cause := c.timeout, ErrUnavailable // A lost reply is asked for again for so long.
	if g.timeout > 0 {
		limit, cause = g.timeout+patience, ErrTimeout
		if until := time.Now().Add(g.timeout); g.until.IsZero() || until.Before(g.until) {
			g.until = until
		}
	}
	if g.timeout >= 0 {
		var stop context.CancelFunc
		limited, stop = context.WithTimeoutCause(limited, limit, cause)
		defer stop()
	}
	h := &Hold{}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	if err := g.admit(limited, h); err != nil {
		h.cancel(err)
		return nil, err
	}
	return h, nil
}

// admit lets a named owner enter again what it holds, and its acquisitions wait for each other.
func (g *grant) admit(ctx context.Context, h *Hold) error {
	c, key := g.c, g.keys[0]
	for {
		busy, err := g.occupy(h)
		if h.grant != nil || err != nil {
			return err
		}
		if busy == nil {
			break
		}
		if g.timeout == 0 {
			return &Error{Reason: ErrNotAcquired, Key: key}
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return ended(ctx, key, nil)
		}
	}
	err := g.obtain(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		g.vacate()
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
func (g *grant) occupy(h *Hold) (busy <-chan struct{}, err error) {
	c := g.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, place := range g.places {
		held := c.slots[place]
		switch {
		case held == nil:
		case held.busy != nil:
			return held.busy, nil
		case held.ended() != nil: // It has left its places.
		case held.kind != g.kind || !slices.Equal(held.keys, g.keys) || held.permits != g.permits:
			return nil, fmt.Errorf("rlock: the owner holds %q already, by %v; acquire the same again, or name another owner",
				g.keys[i], held.command("ACQUIRE"))
		default:
			held.enter(h)
			return nil, nil
		}
	}
	for _, place := range g.places {
		c.slots[place], g.busy = g, make(chan struct{})
		if lost := c.lost[place]; lost != nil {
			g.before, g.spent = append(g.before, lost.release()), append(g.spent, lost.tokens...)
		}
	}
	return nil, nil
}

// vacate leaves the places. c.mu is held.
func (g *grant) vacate() {
	for _, place := range g.places {
		delete(g.c.slots, place)
	}
	g.pass()
}

// pass lets another request of the owner go on. c.mu is held.
func (g *grant) pass() {
	if g.busy != nil {
		close(g.busy)
		g.busy = nil
	}
}

// obtain asks until there is a grant, the context ends or the server refuses. What ends without a
// grant is settled.
func (g *grant) obtain(ctx context.Context) error {
	key := g.keys[0]
	var pause backoff
	for ctx.Err() == nil {
		granted, err := g.ask(ctx)
		switch {
		case ctx.Err() != nil:
		case granted:
			return nil
		case err != nil:
			e := classify(key, err)
			if e.retryable() && (g.timeout != 0 || e.Code == "") {
				if g.last == nil {
					g.c.log.Warn("rlock: retrying an acquisition", "key", key, "error", err)
				}
				g.last = err
				pause.sleep(ctx)
				continue
			}
			if e.Reason == ErrTimeout {
				e.Code, e.Err = code(g.last), outage(key, g.last)
				if g.timeout < 0 { // The limit was that of the context.
					e.Err = errors.Join(context.DeadlineExceeded, e.Err)
				}
			}
			g.settle()
			return e
		}
		pause = backoff{}
	}
	g.settle()
	if cause := context.Cause(ctx); g.last == nil && (cause == ErrTimeout || cause == ErrUnavailable) {
		g.last = errSilent // Otherwise the server answers before that.
	}
	return ended(ctx, key, g.last)
}

// ask sends the request once and waits for its answer. Without a grant or an error it is to be sent
// again.
func (g *grant) ask(ctx context.Context) (bool, error) {
	c, key := g.c, g.keys[0]
	sub := &subscription{}
	var block int64
	if g.timeout != 0 {
		if !g.until.IsZero() {
			left := time.Until(g.until)
			if left <= 0 {
				return false, &Error{Reason: ErrTimeout, Key: key}
			}
			block = max(1, left.Milliseconds())
		}
		var err error
		if sub, err = c.feed.subscribe(ctx, key); err != nil {
			return false, err
		}
	}
	was := g.open
	if !was {
		g.open, g.id, g.first = true, nextID(), c.now()
	}
	var answers <-chan string
	if g.timeout != 0 {
		answers = c.feed.expect(g.id)
		defer c.feed.forget(g.id)
	}
	replies, done := c.send(ctx, c.timeout, append(slices.Clip(g.before), g.acquire(block, sub.channel))...)
	answer := replies[len(g.before)]
	err := answer.err
	switch tokens, left := g.granted(answer.value); {
	case errors.Is(err, redis.Nil):
		g.open = false
		if g.timeout == 0 {
			return false, &Error{Reason: ErrNotAcquired, Key: key}
		}
		return false, errors.New("the server does not let the request wait")
	case err != nil && code(err) == "":
		g.lost = append(g.lost, done)
		return false, err
	case err != nil:
		g.open = was || code(err) == "UNBLOCKED"           // An earlier copy may wait, or be granted.
		if sub.link != nil && redis.IsReadOnlyError(err) { // The subscription may be at this server too.
			c.feed.drop(sub.link, err)
		}
		return false, err
	case slices.ContainsFunc(tokens, func(token int64) bool { return slices.Contains(g.spent, token) }):
		return false, errors.New("the owner's lost hold is not released yet")
	case tokens != nil:
		return g.believe(tokens, answer.sent, answer.sent, left, 0), nil
	case answer.value != "WAITING" || g.timeout == 0:
		return false, &Error{Reason: ErrModuleTooOld, Key: key, Err: fmt.Errorf("the answer was %v", answer.value)}
	}
	g.last = nil
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
			return g.answered(text)
		case <-sub.gone:
			return false, sub.err
		case <-check:
			if !c.feed.isHome(ctx, sub) {
				return false, nil
			}
		case <-repeat:
			return false, nil
		case <-ctx.Done():
			return false, nil
		}
	}
}

// answered takes a message: granted ID TOKEN… for MS, nil ID, or error ID CODE TEXT.
func (g *grant) answered(text string) (bool, error) {
	words := strings.SplitN(text+"  ", " ", 3)
	rest := strings.TrimSpace(words[2])
	switch words[0] {
	case "granted":
		var numbers []any
		for word := range strings.FieldsSeq(strings.Replace(rest, " for ", " ", 1)) {
			numbers = append(numbers, word)
		}
		tokens, left := g.granted(numbers)
		switch {
		case tokens == nil:
			return false, fmt.Errorf("unexpected message %q", text)
		case len(g.lost) > 0 || g.session >= 0: // The connections of a session are those of commands.
			return false, nil
		}
		// The server counts from when it received the request, which is later than when it was sent.
		return g.believe(tokens, g.first, g.c.now(), left, g.claim()/2), nil
	case "error":
		err := serverError(rest)
		g.open = code(err) == "UNBLOCKED" // A server that steps down may have granted the request.
		return false, err
	}
	g.open = false
	return false, nil
}
