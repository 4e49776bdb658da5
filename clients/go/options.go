package rlock

import (
	"log/slog"
	"time"
)

// DefaultLease is the lease of a hold unless an option names another one.
const DefaultLease = 30 * time.Second

// ClientOption configures a [Client].
type ClientOption func(*Client)

// WithPrefix puts a prefix before every key, as an application does that prefixes its own keys.
func WithPrefix(prefix string) ClientOption {
	return func(c *Client) { c.prefix = prefix }
}

// WithLogger logs waits that meet an outage of the server, and releases that did not reach it. The default
// is [slog.Default].
func WithLogger(logger *slog.Logger) ClientOption {
	return func(c *Client) { c.log = logger }
}

// WithClock replaces the clock that leases are counted on. It is for tests. The clock must not go
// back; timers look at it at least once a second.
func WithClock(now func() time.Duration) ClientOption {
	return func(c *Client) { c.now = now }
}

// Option configures one acquisition.
type Option func(*grant)

// WithLease sets the lease, 10 ms to 365 days, which is renewed at a third of its length until the hold
// is released. The default is [DefaultLease]. The server ends a hold that nothing renews within its
// lease, so the lease is how long a lock stays held after its holder crashed. A hold begins with a lease of
// 2 s at most, and is renewed for the first time after 50 ms. The server may shorten the lease, to its
// rlock.max-lease-ms.
func WithLease(lease time.Duration) Option {
	return func(g *grant) { g.lease, g.fixed = g.duration("WithLease", lease, shortest), false }
}

// WithFixedLease limits the hold to 10 ms to 365 days, after which it is lost. If the server allows less than
// that, the hold is renewed until then, and a lock whose holder crashed is free sooner.
func WithFixedLease(lease time.Duration) Option {
	return func(g *grant) { g.lease, g.fixed = g.duration("WithFixedLease", lease, shortest), true }
}

// WithTimeout limits how long an acquisition waits. It fails with [ErrTimeout] then. 0 or less tries
// once, and fails with [ErrNotAcquired] if the lock is held. More than 365 days is no limit. Without
// this option the context alone limits the wait.
func WithTimeout(timeout time.Duration) Option {
	return func(g *grant) {
		if g.timeout = max(0, timeout); timeout > longest {
			g.timeout = -1
		}
	}
}

// WithSession ends the hold this long, 10 ms to 365 days, after the last of the connections that used it
// has closed, so that a crash is noticed sooner than by the lease. Connections of the pool may close at
// any time, so the hold is renewed at a third of the smaller of lease and grace, and counts as lost when
// that smaller time has passed without an answer. It needs a renewed lease.
func WithSession(grace time.Duration) Option {
	return func(g *grant) { g.session = g.duration("WithSession", grace, shortest) }
}

// WithOwner names the owner. Acquiring again what this owner holds already through the same [Client]
// counts a re-entry: the lock is released with the last of the holds. If they were lost, the owner gets a
// new hold, and they stay lost. Any other request for a key that it holds is misuse, but it may hold a
// read-write lock for reading and for writing, independently. Without this option every acquisition has
// an owner of its own. Name one owner for one thread of control only: concurrent requests of one owner
// for one key wait for each other, and those of different clients end each other with [ErrSuperseded].
func WithOwner(owner string) Option {
	return func(g *grant) { g.owner = owner }
}

// WithNote stores a text of at most 256 bytes with the hold, which RLOCK.INFO shows.
func WithNote(note string) Option {
	return func(g *grant) { g.note = note }
}

// WithGrace sets how long, up to 365 days, the server keeps the place of a waiter of a fair lock whose
// connection has closed. The default is the server's rlock.fair-grace-ms.
func WithGrace(grace time.Duration) Option {
	return func(g *grant) { g.grace = g.duration("WithGrace", grace, 0) }
}
