package rlock

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// kind is a kind of lock: the family of its commands, and the mode that follows the owner.
type kind struct {
	family, mode  string
	many, permits bool
	keeps         bool // Whether its RELEASE takes KEEP.
}

var (
	mutex     = kind{family: "RLOCK", keeps: true}
	fair      = kind{family: "RFAIRLOCK", keeps: true}
	read      = kind{family: "RRWLOCK", mode: "READ"}
	write     = kind{family: "RRWLOCK", mode: "WRITE"}
	semaphore = kind{family: "RSEMAPHORE", permits: true}
	many      = kind{family: "RLOCK", many: true}
)

// request is what one acquisition asks for.
type request struct {
	settings
	kind
	keys    []string
	permits int64
	named   bool // Whether the caller named the owner.
}

// slots names what a named owner may hold once.
func (r *request) slots() []string {
	var names []string
	for _, key := range r.keys {
		names = append(names, strings.Join([]string{r.family, r.mode, r.owner, key}, "\x00"))
	}
	return names
}

// lastID numbers requests (REQ). It begins at the wall clock, so that a restarted process that names
// its owners uses higher numbers than the one before.
var lastID atomic.Int64

func init() { lastID.Store(time.Now().UnixMicro()) }

func nextID() int64 { return lastID.Add(1) }

func (c *Client) newRequest(k kind, keys []string, permits int64, options []Option) (*request, error) {
	r := &request{
		settings: settings{lease: DefaultLease, timeout: -1, session: -1, grace: -1},
		kind:     k, permits: permits,
	}
	for _, option := range options {
		option(&r.settings)
	}
	if r.named = r.owner != ""; !r.named {
		r.owner = c.id + ":" + strconv.FormatUint(c.owners.Add(1), 10)
	}
	for _, key := range keys {
		r.keys = append(r.keys, c.prefix+key)
	}
	switch {
	case len(keys) == 0:
		return nil, fmt.Errorf("rlock: no key was given")
	case k.permits && (permits < 1 || permits > math.MaxUint32):
		return nil, fmt.Errorf("rlock: permits must be 1 to %d, not %d", uint32(math.MaxUint32), permits)
	case r.grace >= 0 && k != fair:
		return nil, fmt.Errorf("rlock: WithGrace is for fair locks only")
	}
	return r, r.check()
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
	args := []any{r.family + "." + verb}
	if r.many {
		args = []any{r.family + ".M" + verb, len(r.keys)}
	}
	for _, key := range r.keys {
		args = append(args, key)
	}
	args = append(args, r.owner)
	if r.mode != "" {
		args = append(args, r.mode)
	}
	if r.kind.permits && verb != "RENEW" {
		args = append(args, "PERMITS", r.permits)
	}
	return append(args, rest...)
}

func (r *request) acquire(id int64) []any {
	// ONCE: an owner whose earlier release has not arrived yet does not count twice.
	args := r.command("ACQUIRE", "PX", r.lease.Milliseconds(), "REQ", id, "ONCE")
	if r.session >= 0 {
		args = append(args, "SESSION", r.session.Milliseconds())
	}
	if r.note != "" {
		args = append(args, "NOTE", r.note)
	}
	return args
}

func (r *request) wait(id int64, block time.Duration, channel string) []any {
	args := append(r.acquire(id), "BLOCK", block.Milliseconds(), "NOTIFY", channel,
		"CLAIM", min(claimTime, r.lease).Milliseconds())
	if r.grace >= 0 {
		args = append(args, "GRACE", r.grace.Milliseconds())
	}
	return args
}

func (r *request) renew(tokens []int64) []any {
	return r.withTokens(r.command("RENEW", "PX", r.lease.Milliseconds()), tokens)
}

func (r *request) release(id int64, tokens []int64, keep time.Duration) []any {
	args := r.withTokens(r.command("RELEASE", "REQ", id), tokens)
	if keep > 0 {
		args = append(args, "KEEP", max(1, keep.Milliseconds()))
	}
	return args
}

func (r *request) withTokens(args []any, tokens []int64) []any {
	if len(tokens) == 0 {
		return args
	}
	if r.many {
		args = append(args, "TOKENS")
	} else {
		args = append(args, "TOKEN")
	}
	for _, token := range tokens {
		args = append(args, token)
	}
	return args
}

func (r *request) cancel(id int64) []any {
	return []any{r.family + ".CANCEL", r.keys[0], r.owner, "REQ", id}
}

// tokens reads the tokens of a reply, one for each key. It is nil if the reply is anything else.
func (r *request) tokens(reply any) []int64 {
	replies := []any{reply}
	if r.many {
		replies, _ = reply.([]any)
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
