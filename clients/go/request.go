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

// kind is a kind of lock: the family of its commands, what precedes their verb, and the mode that follows
// the owner.
type kind struct{ family, many, mode string }

var (
	mutex     = kind{"RLOCK.", "", ""}
	fair      = kind{"RFAIRLOCK.", "", ""}
	read      = kind{"RRWLOCK.", "", "READ"}
	write     = kind{"RRWLOCK.", "", "WRITE"}
	semaphore = kind{"RSEMAPHORE.", "", ""}
	many      = kind{"RLOCK.", "M", ""}
)

// grant is one acquisition: its request, its progress, and its hold on the server.
type grant struct {
	kind
	c       *Client
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
	misuse  error    // Of an option.

	until time.Time // Zero: no limit but that of the context.
	// open is whether the request may be waiting or granted on the server, under this id, which was sent first
	// at this time on the client's clock.
	open  bool
	id    int64
	first time.Duration
	// before are the commands that release what the owner has lost, with these tokens.
	before [][]any
	spent  []int64
	// lost are the commands without a reply. They may still arrive, whatever the server answers to later ones.
	lost []<-chan struct{}
	// last is why the server did not serve the request, nil if it did at last.
	last error

	// c.mu guards the following, except while the request is on its way.

	busy     chan struct{} // Closed when the acquisition or the release of a named owner has ended.
	tokens   []int64
	holds    map[*Hold]bool // Of the re-entries.
	over     error          // Why the belief has ended.
	sent     time.Duration  // The request whose answer counts, on the client's clock, as the next ones.
	deadline time.Duration
	renewAt  time.Duration
	third    time.Duration // The time between renewals.
	limit    time.Duration // The end of a fixed lease.
	pause    backoff
}

// lastID numbers requests (REQ). It begins at the wall clock, so that a restarted process that names
// its owners uses higher numbers than the one before.
var lastID atomic.Int64

func init() { lastID.Store(time.Now().UnixMicro()) }

func nextID() int64 { return lastID.Add(1) }

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
func (g *grant) duration(option string, d, least time.Duration) time.Duration {
	g.misuse = cmp.Or(g.misuse, checked(option, d, least))
	return d.Truncate(time.Millisecond)
}

func checkPermits(permits int64) error {
	if permits < 1 {
		return fmt.Errorf("rlock: permits is %d; expected 1 or more", permits)
	}
	return nil
}

func (c *Client) newGrant(k kind, keys []string, permits int64, options []Option) (*grant, error) {
	g := &grant{kind: k, c: c, permits: permits, lease: DefaultLease, timeout: -1, session: -1, grace: -1, holds: map[*Hold]bool{}}
	for _, option := range options {
		option(g)
	}
	for _, key := range keys {
		g.keys = append(g.keys, c.prefix+key)
	}
	if g.owner == "" {
		g.owner = fmt.Sprintf("%s:%d", c.id, c.owners.Add(1))
	} else {
		for _, key := range g.keys {
			g.places = append(g.places, fmt.Sprintf("%q %q %s", g.owner, key, k.mode))
		}
	}
	switch {
	case g.misuse != nil:
		return nil, g.misuse
	case len(keys) == 0:
		return nil, errors.New("rlock: no key was given")
	case k == semaphore && permits < 1:
		return nil, checkPermits(permits)
	case g.grace >= 0 && k != fair:
		return nil, errors.New("rlock: WithGrace is for fair locks only")
	case g.session >= 0 && g.fixed:
		return nil, errors.New("rlock: WithSession needs a lease that is renewed, not WithFixedLease")
	}
	return g, nil
}

// claim is how long a hold lasts until it is renewed for the first time.
func (g *grant) claim() time.Duration { return min(claimTime, g.lease) }

// command is the verb with the keys, the owner and what the kind adds.
func (g *grant) command(verb string, rest ...any) []any {
	args := []any{g.family + g.many + verb}
	if g.kind == many {
		args = append(args, len(g.keys))
	}
	for _, key := range g.keys {
		args = append(args, key)
	}
	args = append(args, g.owner)
	if g.mode != "" && verb != "CANCEL" {
		args = append(args, g.mode)
	}
	if g.kind == semaphore && (verb == "ACQUIRE" || verb == "RELEASE") {
		args = append(args, "PERMITS", g.permits)
	}
	return append(args, rest...)
}

// acquire asks for the lock. With a channel the request waits.
func (g *grant) acquire(block int64, channel string) []any {
	args := g.command("ACQUIRE", "PX", g.lease.Milliseconds(), "CLAIM", g.claim().Milliseconds(), "REQ", g.id, "TIMED")
	if channel != "" {
		args = append(args, "BLOCK", block, "NOTIFY", channel)
		if g.grace >= 0 {
			args = append(args, "GRACE", g.grace.Milliseconds())
		}
	}
	if g.places != nil { // A former request of the owner may not be settled yet: it must not count twice.
		args = append(args, "ONCE")
	}
	if g.session >= 0 {
		args = append(args, "SESSION", g.session.Milliseconds())
	}
	if g.note != "" {
		args = append(args, "NOTE", g.note)
	}
	return args
}

// granted reads the tokens of an answer, one for each key, and for how many milliseconds it can be believed.
// The tokens are nil if the answer is anything else.
func (g *grant) granted(answer any) ([]int64, int64) {
	words, _ := answer.([]any)
	if len(words) != len(g.keys)+1 {
		return nil, 0
	}
	numbers := make([]int64, len(words))
	for i, word := range words {
		if numbers[i] = integer(word); numbers[i] < 0 || numbers[i] == 0 && i < len(g.keys) {
			return nil, 0
		}
	}
	return numbers[:len(g.keys)], numbers[len(g.keys)]
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
