package rlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// kind is a kind of lock: the family of its commands, and the mode that follows the owner.
type kind struct{ family, mode, token string }

var (
	mutex     = kind{"RLOCK.", "", "TOKEN"}
	fair      = kind{"RFAIRLOCK.", "", "TOKEN"}
	read      = kind{"RRWLOCK.", "READ", "TOKEN"}
	write     = kind{"RRWLOCK.", "WRITE", "TOKEN"}
	semaphore = kind{"RSEMAPHORE.", "", "TOKEN"}
	many      = kind{"RLOCK.M", "", "TOKENS"}
)

// request is what one acquisition asks for.
type request struct {
	kind
	keys    []string
	permits int64
	lease   time.Duration
	fixed   bool
	timeout time.Duration // Negative: no limit.
	session time.Duration // Negative: none.
	grace   time.Duration // Negative: the server's.
	owner   string
	note    string
	places  []string // What a named owner holds once: a key, or one mode of it.
	slot    *slot    // Of a named owner, from its acquisition until its release.
	misuse  error    // Of an option.
}

// lastID numbers requests (REQ). It begins at the wall clock, so that a restarted process that names
// its owners uses higher numbers than the one before.
var lastID atomic.Int64

func init() { lastID.Store(time.Now().UnixMicro()) }

// nextID returns a number whose successor is not used either: a settlement has a lower number than
// all later requests, so the server refuses it if it is late.
func nextID() int64 { return lastID.Add(2) }

const (
	// shortest is the shortest lease and grace of a session that leaves time for a renewal.
	shortest = 10 * time.Millisecond
	// longest is the longest time that the server counts.
	longest = 365 * 24 * time.Hour
)

// checked reports a duration that is out of range as misuse.
func checked(name string, d, least time.Duration) error {
	if d < least || d > longest {
		return fmt.Errorf("rlock: %s is %v; expected %v to %v", name, d, least, longest)
	}
	return nil
}

// duration is that of an option, in whole milliseconds as on the server.
func (r *request) duration(option string, d, least time.Duration) time.Duration {
	r.misuse = cmp.Or(r.misuse, checked(option, d, least))
	return d.Truncate(time.Millisecond)
}

func checkPermits(permits int64) error {
	if permits < 1 {
		return fmt.Errorf("rlock: permits is %d; expected 1 or more", permits)
	}
	return nil
}

func (c *Client) newRequest(k kind, keys []string, permits int64, options []Option) (*request, error) {
	r := &request{kind: k, permits: permits, lease: DefaultLease, timeout: -1, session: -1, grace: -1}
	for _, option := range options {
		option(r)
	}
	for _, key := range keys {
		r.keys = append(r.keys, c.prefix+key)
	}
	if r.owner == "" {
		r.owner = fmt.Sprintf("%s:%d", c.id, c.owners.Add(1))
	} else {
		for _, key := range r.keys {
			r.places = append(r.places, fmt.Sprintf("%q %q %s", r.owner, key, k.mode))
		}
	}
	switch {
	case r.misuse != nil:
		return nil, r.misuse
	case len(keys) == 0:
		return nil, errors.New("rlock: no key was given")
	case k == semaphore && permits < 1:
		return nil, checkPermits(permits)
	case r.grace >= 0 && k != fair:
		return nil, errors.New("rlock: WithGrace is for fair locks only")
	case r.session >= 0 && r.fixed:
		return nil, errors.New("rlock: WithSession needs a lease that is renewed, not WithFixedLease")
	}
	return r, nil
}

// effective is the time for which an answer keeps the hold alive whatever the connections do.
func (r *request) effective() time.Duration {
	if r.session >= 0 {
		return min(r.lease, r.session)
	}
	return r.lease
}

// command is the verb with the keys, the owner and what the kind adds.
func (r *request) command(verb string, rest ...any) []any {
	args := []any{r.family + verb}
	if r.kind == many {
		args = append(args, len(r.keys))
	}
	for _, key := range r.keys {
		args = append(args, key)
	}
	args = append(args, r.owner)
	if r.mode != "" {
		args = append(args, r.mode)
	}
	if r.kind == semaphore && verb != "RENEW" {
		args = append(args, "PERMITS", r.permits)
	}
	return append(args, rest...)
}

func (r *request) acquire(id int64) []any {
	// ONCE: an owner whose former hold is not settled yet does not count twice.
	args := r.command("ACQUIRE", "PX", r.lease.Milliseconds(), "REQ", id, "ONCE")
	if r.session >= 0 {
		args = append(args, "SESSION", r.session.Milliseconds())
	}
	if r.note != "" {
		args = append(args, "NOTE", r.note)
	}
	return args
}

func (r *request) wait(id, block int64, channel string) []any {
	args := append(r.acquire(id), "BLOCK", block, "NOTIFY", channel, "CLAIM", min(claimTime, r.lease).Milliseconds())
	if r.grace >= 0 {
		args = append(args, "GRACE", r.grace.Milliseconds())
	}
	return args
}

// about adds the tokens of the hold that the command is about.
func (r *request) about(tokens []int64, args []any) []any {
	args = append(args, r.token)
	for _, token := range tokens {
		args = append(args, token)
	}
	return args
}

// releases release each key by itself, since MRELEASE changes nothing if one of the keys is not held.
func (r *request) releases(id int64, tokens []int64) (all [][]any) {
	if r.kind != many {
		return [][]any{r.command("RELEASE", "REQ", id)}
	}
	for i, key := range r.keys {
		args := []any{"RLOCK.RELEASE", key, r.owner, "REQ", id}
		if tokens != nil {
			args = append(args, "TOKEN", tokens[i])
		}
		all = append(all, args)
	}
	return all
}

// renew asks for the lease of the ACQUIRE again, which the server shortens if it allows less by now.
func (r *request) renew(tokens []int64) []any {
	return r.about(tokens, r.command("RENEW"))
}

// tokens reads the tokens of a reply, one for each key. It is nil if the reply is anything else.
func (r *request) tokens(reply any) []int64 {
	replies, isList := reply.([]any)
	if !isList {
		replies = []any{reply}
	}
	if len(replies) != len(r.keys) {
		return nil
	}
	tokens := make([]int64, len(replies))
	for i, reply := range replies {
		if tokens[i] = integer(reply); tokens[i] <= 0 {
			return nil
		}
	}
	return tokens
}

// integer reads an integer that may have become text on its way. It is -1 for anything else.
func integer(reply any) int64 {
	switch reply := reply.(type) {
	case int64:
		return reply
	case string:
		if n, err := strconv.ParseInt(reply, 10, 64); err == nil {
			return n
		}
	}
	return -1
}

// command is a redis.Cmd that go-redis does not repeat. This package repeats lost commands itself,
// since it has to know whether an answer is that to the first attempt.
type command struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (command) NoRetry() bool { return true }

func newCommand(ctx context.Context, args []any) command {
	cmd := redis.NewCmd(ctx, args...)
	firstKey := int8(1)
	if _, isCount := args[1].(int); isCount {
		firstKey = 2
	}
	cmd.SetFirstKeyPos(firstKey) // Without it a Cluster client takes the number of keys for a key.
	cmd.SetStepCount(1)
	return command{cmd}
}
