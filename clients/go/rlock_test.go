package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rlock-redis/rlock-go"
	"github.com/rlock-redis/rlock-go/internal/testserver"
)

var ctx = context.Background()

// bench is a server, a connection of the test's own, and a client.
type bench struct {
	*testing.T
	*testserver.Server
	direct *redis.Client
	*rlock.Client
}

func newBench(t *testing.T, options ...string) *bench {
	t.Parallel()
	server := testserver.Start(t, options...)
	b := &bench{T: t, Server: server, direct: redis.NewClient(&redis.Options{Addr: server.Addr})}
	t.Cleanup(func() { _ = b.direct.Close() })
	b.Client = b.client(server.Addr)
	return b
}

// client returns a further client, which is closed with the test.
func (b *bench) client(addr string, options ...rlock.ClientOption) *rlock.Client {
	return newClient(b.T, &redis.UniversalOptions{Addrs: []string{addr}}, options...)
}

func newClient(t *testing.T, o *redis.UniversalOptions, options ...rlock.ClientOption) *rlock.Client {
	rdb := redis.NewUniversalClient(o)
	c := rlock.New(rdb, options...)
	t.Cleanup(func() {
		_ = c.Close()
		_ = rdb.Close()
	})
	return c
}

func (b *bench) do(args ...any) any {
	b.Helper()
	reply, err := b.direct.Do(ctx, args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		b.Fatalf("%v: %v", args, err)
	}
	return reply
}

// holders and waiters of a key, of whatever kind.
func count(rdb redis.UniversalClient, key string) (holders, waiters int) {
	info, _ := rdb.Do(ctx, "RLOCK.INFO", key).Result()
	text := fmt.Sprint(info)
	_, _ = fmt.Sscan(after(text, "holders-count"), &holders)
	_, _ = fmt.Sscan(after(text, "waiters"), &waiters)
	return holders, waiters
}

func after(text, word string) string {
	_, rest, _ := strings.Cut(text, word)
	return strings.TrimLeft(rest, ": ")
}

func (b *bench) waiting(key string, n int) {
	b.Helper()
	testserver.Eventually(b, func() bool {
		_, waiters := count(b.direct, key)
		return waiters == n
	})
}

// claimed waits until the hold of the key has been renewed.
func (b *bench) claimed(key string) {
	b.Helper()
	testserver.Eventually(b, func() bool { return b.do("RLOCK.PTTL", key).(int64) > 2000 })
}

// unclaimed fails unless this number of holds has ended because nothing renewed them.
func (b *bench) unclaimed(n int) {
	b.Helper()
	if info := fmt.Sprint(b.do("INFO", "rlock")); !strings.Contains(info, fmt.Sprintf("rlock_unclaimed:%d\r\n", n)) {
		b.Error("another number of claims has expired: ", info)
	}
}

// calls is how often the server has executed a command.
func (b *bench) calls(command string) (n int) {
	_, _ = fmt.Sscan(after(fmt.Sprint(b.do("INFO", "commandstats")), "cmdstat_"+command+":calls="), &n)
	return n
}

// free waits until the key has no holder and no waiter.
func (b *bench) free(key string) {
	b.Helper()
	testserver.Eventually(b, func() bool {
		holders, waiters := count(b.direct, key)
		return holders == 0 && waiters == 0
	})
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func wants(t testing.TB, err, reason error) {
	t.Helper()
	if !errors.Is(err, reason) {
		t.Fatalf("the error is %v, not %v", err, reason)
	}
}

func lost(t testing.TB, hold *rlock.Hold, within time.Duration) {
	t.Helper()
	select {
	case <-hold.Context().Done():
		wants(t, context.Cause(hold.Context()), rlock.ErrLost)
	case <-time.After(within):
		t.Fatal("the loss is not told")
	}
	if hold.Held() {
		t.Fatal("it believes to hold after the loss was told")
	}
}

func held(t testing.TB, hold *rlock.Hold) {
	t.Helper()
	if !hold.Held() || hold.Context().Err() != nil {
		t.Fatalf("it is not held: %v", context.Cause(hold.Context()))
	}
}

// later runs an acquisition in a goroutine.
func later(acquire func() (*rlock.Hold, error)) func(testing.TB) (*rlock.Hold, error) {
	type result struct {
		hold *rlock.Hold
		err  error
	}
	done := make(chan result, 1)
	go func() {
		hold, err := acquire()
		done <- result{hold, err}
	}()
	return func(t testing.TB) (*rlock.Hold, error) {
		t.Helper()
		select {
		case r := <-done:
			return r.hold, r.err
		case <-time.After(30 * time.Second):
			t.Fatal("the acquisition does not end")
			return nil, nil
		}
	}
}

type acquire func(c *rlock.Client, options ...rlock.Option) (*rlock.Hold, error)

var kinds = map[string]acquire{
	"mutex": func(c *rlock.Client, o ...rlock.Option) (*rlock.Hold, error) { return c.Lock(ctx, "mutex", o...) },
	"fair":  func(c *rlock.Client, o ...rlock.Option) (*rlock.Hold, error) { return c.FairLock(ctx, "fair", o...) },
	"write": func(c *rlock.Client, o ...rlock.Option) (*rlock.Hold, error) { return c.WLock(ctx, "write", o...) },
	"semaphore": func(c *rlock.Client, o ...rlock.Option) (*rlock.Hold, error) {
		return c.Acquire(ctx, "semaphore", 2, o...)
	},
	"many": func(c *rlock.Client, o ...rlock.Option) (*rlock.Hold, error) {
		return c.LockMany(ctx, []string{"many", "many2"}, o...)
	},
}

func TestEveryKindExcludesAndHandsOver(t *testing.T) {
	b := newBench(t)
	must(b.InitSemaphore(ctx, "semaphore", 3, 0))(t)
	for key, acquire := range kinds {
		first := must(acquire(b.Client, rlock.WithTimeout(0)))(t)
		held(t, first)
		_, err := acquire(b.Client, rlock.WithTimeout(0))
		wants(t, err, rlock.ErrNotAcquired)
		_, err = acquire(b.Client, rlock.WithTimeout(50*time.Millisecond))
		wants(t, err, rlock.ErrTimeout)
		b.waiting(key, 0)
		second := later(func() (*rlock.Hold, error) { return acquire(b.Client) })
		b.waiting(key, 1)
		if err := first.Release(ctx); err != nil {
			t.Fatal(key, err)
		}
		if first.Held() {
			t.Fatal("it is held after its release")
		}
		hold := must(second(t))(t)
		if hold.Token() <= first.Token() {
			t.Fatalf("%s: token %d after %d", key, hold.Token(), first.Token())
		}
		if err := hold.Release(ctx); err != nil {
			t.Fatal(key, err)
		}
		b.free(key)
	}
}

func TestReadersShareAndKeepWritersOut(t *testing.T) {
	b := newBench(t)
	one, other := must(b.RLock(ctx, "k"))(t), must(b.RLock(ctx, "k"))(t)
	_, err := b.WLock(ctx, "k", rlock.WithTimeout(0))
	wants(t, err, rlock.ErrNotAcquired)
	_, _ = one.Release(ctx), other.Release(ctx)
	b.free("k")
}

func TestSemaphoreIsInitialisedOnce(t *testing.T) {
	b := newBench(t)
	_, err := b.Acquire(ctx, "k", 1)
	wants(t, err, rlock.ErrRefused)
	if !must(b.InitSemaphore(ctx, "k", 2, time.Minute))(t) || must(b.InitSemaphore(ctx, "k", 2, 0))(t) {
		t.Fatal("it was made twice or not at all")
	}
	var refused *rlock.Error
	if _, err = b.Acquire(ctx, "k", 3); !errors.As(err, &refused) || refused.Code != "ERR" {
		t.Fatal(err)
	}
}

// year is the longest time that the server counts.
const year = 365 * 24 * time.Hour

func TestDurationsOutOfRangeAreMisuse(t *testing.T) {
	b := newBench(t)
	misuse := func(err error, name string, value any) {
		t.Helper()
		var asked *rlock.Error
		if err == nil || errors.As(err, &asked) || !strings.HasPrefix(err.Error(), fmt.Sprintf("rlock: %s is %v; expected ", name, value)) {
			t.Errorf("%s of %v: %v", name, value, err)
		}
	}
	outside := []time.Duration{math.MinInt64, -time.Second, -1, year + 1, math.MaxInt64}
	for _, d := range append(outside, 0, 1, 10*time.Millisecond-1) {
		_, err := b.TryLock(ctx, "k", rlock.WithLease(d))
		misuse(err, "WithLease", d)
		_, err = b.TryLock(ctx, "k", rlock.WithFixedLease(d))
		misuse(err, "WithFixedLease", d)
		_, err = b.TryLock(ctx, "k", rlock.WithSession(d))
		misuse(err, "WithSession", d)
	}
	hold := must(b.Lock(ctx, "held"))(t)
	for _, d := range outside {
		_, err := b.FairLock(ctx, "f", rlock.WithGrace(d))
		misuse(err, "WithGrace", d)
		_, err = b.InitSemaphore(ctx, "s", 1, d)
		misuse(err, "idle", d)
		misuse(hold.ReleaseAndKeep(ctx, d), "the time to keep the lock", d)
		held(t, hold)
	}
	for _, permits := range []int64{math.MinInt64, -1, 0} {
		_, err := b.InitSemaphore(ctx, "s", permits, 0)
		misuse(err, "permits", permits)
		_, err = b.Acquire(ctx, "s", permits)
		misuse(err, "permits", permits)
	}
	if keys := b.do("DBSIZE").(int64); keys != 1 {
		t.Errorf("%d keys", keys)
	}
}

func TestShortestAndLongestDurationsReachTheServer(t *testing.T) {
	b := newBench(t)
	for _, d := range []time.Duration{10 * time.Millisecond, year} {
		hold := must(b.FairLock(ctx, "k", rlock.WithLease(d), rlock.WithSession(d), rlock.WithGrace(d)))(t)
		if err := hold.Release(ctx); d == year && err != nil {
			t.Fatal(err)
		}
		b.free("k")
	}
	hold := must(b.Lock(ctx, "k", rlock.WithFixedLease(20*time.Second+time.Millisecond/2)))(t)
	if left := hold.Remaining(); left > 20*time.Second-202*time.Millisecond {
		t.Errorf("%v: the server counts whole milliseconds", left)
	}
	if err := hold.ReleaseAndKeep(ctx, year); err != nil {
		t.Fatal(err)
	}
	_, err := b.TryLock(ctx, "k")
	wants(t, err, rlock.ErrNotAcquired)
	if err := must(b.Lock(ctx, "other"))(t).ReleaseAndKeep(ctx, 0); err != nil {
		t.Fatal(err)
	}
	must(b.TryLock(ctx, "other"))(t)
	must(b.InitSemaphore(ctx, "s", 1, year))(t)
}

func TestInvalidRequestsAreMisuse(t *testing.T) {
	b := newBench(t)
	var asked *rlock.Error
	if _, err := b.Lock(ctx, "k", rlock.WithGrace(0)); err == nil || errors.As(err, &asked) {
		t.Fatal(err)
	}
	if _, err := b.LockMany(ctx, nil); err == nil || errors.As(err, &asked) {
		t.Fatal(err)
	}
}

func TestNoteAndLeaseReachTheServer(t *testing.T) {
	b := newBench(t)
	must(b.Lock(ctx, "k", rlock.WithNote("build 7"), rlock.WithLease(time.Hour)))(t)
	if info := fmt.Sprint(b.do("RLOCK.INFO", "k")); !strings.Contains(info, "build 7") {
		t.Fatal(info)
	}
	b.claimed("k")
	if left := b.do("RLOCK.PTTL", "k").(int64); left < 3500_000 {
		t.Fatal(left)
	}
}

func TestNamedOwnerEntersAgain(t *testing.T) {
	b := newBench(t)
	alice := rlock.WithOwner("alice")
	outer, inner := must(b.TryLock(ctx, "k", alice))(t), must(b.TryLock(ctx, "k", alice))(t)
	if outer.Token() != inner.Token() || b.do("RLOCK.HOLDS", "k", "alice") != int64(1) {
		t.Fatal("the re-entry is not counted in the client")
	}
	for range 2 { // The second time does nothing.
		if err := outer.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	held(t, inner)
	_, err := b.TryLock(ctx, "k")
	wants(t, err, rlock.ErrNotAcquired)
	if err := inner.Release(ctx); err != nil {
		t.Fatal(err)
	}
	b.free("k")
}

func TestNamedOwnerMustAskForTheSameAgain(t *testing.T) {
	b := newBench(t)
	must(b.InitSemaphore(ctx, "s", 3, 0))(t)
	alice := rlock.WithOwner("alice")
	misuse := func(key string, acquire func() (*rlock.Hold, error)) {
		t.Helper()
		var asked *rlock.Error
		if _, err := acquire(); err == nil || errors.As(err, &asked) || !strings.Contains(err.Error(), fmt.Sprintf("holds %q", key)) {
			t.Fatal(err)
		}
	}
	one, two := must(b.Lock(ctx, "a", alice))(t), must(b.LockMany(ctx, []string{"c", "d"}, alice))(t)
	permits := must(b.Acquire(ctx, "s", 2, alice))(t)
	misuse("a", func() (*rlock.Hold, error) { return b.LockMany(ctx, []string{"b", "a"}, alice) })
	misuse("a", func() (*rlock.Hold, error) { return b.FairLock(ctx, "a", alice) })
	misuse("c", func() (*rlock.Hold, error) { return b.TryLock(ctx, "c", alice) })
	misuse("d", func() (*rlock.Hold, error) { return b.LockMany(ctx, []string{"d", "c"}, alice) })
	misuse("s", func() (*rlock.Hold, error) { return b.Acquire(ctx, "s", 1, alice) })
	for _, hold := range []*rlock.Hold{one, two, permits} {
		held(t, hold)
		if err := hold.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	// A request waits for one that ends, and a cancelled one leaves no trace.
	other := must(b.Lock(ctx, "a"))(t)
	cancellable, cancel := context.WithCancel(ctx)
	cancelled := later(func() (*rlock.Hold, error) { return b.LockMany(cancellable, []string{"a", "b"}, alice) })
	b.waiting("a", 1)
	small := later(func() (*rlock.Hold, error) { return b.Lock(ctx, "b", alice) })
	cancel()
	_, err := cancelled(t)
	wants(t, err, context.Canceled)
	misuse("b", func() (*rlock.Hold, error) {
		must(small(t))(t)
		return b.LockMany(ctx, []string{"a", "b"}, alice)
	})
	_ = other.Release(ctx)
	must(b.TryLock(ctx, "a", alice))(t)
}

func TestNamedOwnerReadsAndWritesIndependently(t *testing.T) {
	b := newBench(t)
	alice := rlock.WithOwner("alice")
	writer, reader := must(b.WLock(ctx, "k", alice))(t), must(b.RLock(ctx, "k", alice))(t)
	if err := writer.Release(ctx); err != nil {
		t.Fatal(err)
	}
	held(t, reader)
	other := must(b.RLock(ctx, "k", rlock.WithTimeout(0)))(t)
	_, err := b.WLock(ctx, "k", alice, rlock.WithTimeout(50*time.Millisecond))
	wants(t, err, rlock.ErrTimeout)
	held(t, reader)
	_ = other.Release(ctx)
	writer = must(b.WLock(ctx, "k", alice))(t)
	if err := reader.Release(ctx); err != nil {
		t.Fatal(err)
	}
	_, err = b.RLock(ctx, "k", rlock.WithTimeout(0))
	wants(t, err, rlock.ErrNotAcquired)
	_ = writer.Release(ctx)
	b.free("k")
}

func TestLostHoldDoesNotStandInTheWayOfItsOwner(t *testing.T) {
	b := newBench(t)
	must(b.InitSemaphore(ctx, "semaphore", 2, 0))(t)
	var passed atomic.Int64
	c := b.client(b.Addr, rlock.WithClock(func() time.Duration { return time.Duration(passed.Load()) }))
	for key, acquire := range kinds {
		alice := rlock.WithOwner("alice")
		outer, inner := must(acquire(c, alice))(t), must(acquire(c, alice))(t)
		passed.Add(int64(time.Hour)) // For the server, the hold lasts.
		hold := must(acquire(c, alice, rlock.WithTimeout(0)))(t)
		if hold.Token() <= outer.Token() {
			t.Fatalf("%s: token %d after %d", key, hold.Token(), outer.Token())
		}
		for _, lost := range []*rlock.Hold{inner, outer} {
			wants(t, lost.Release(ctx), rlock.ErrLost)
		}
		time.Sleep(400 * time.Millisecond) // The lost hold is released by now.
		held(t, hold)
		if holders, _ := count(b.direct, key); holders != 1 {
			t.Fatalf("%s has %d holders", key, holders)
		}
		if err := hold.Release(ctx); err != nil {
			t.Fatal(key, err)
		}
		b.free(key)
	}
	hold := must(c.LockMany(ctx, []string{"a", "b"}, rlock.WithOwner("bob")))(t)
	passed.Add(int64(time.Hour))
	must(c.TryLock(ctx, "b", rlock.WithOwner("bob")))(t)
	wants(t, hold.Release(ctx), rlock.ErrLost)
	b.free("a")
}

func TestGoroutinesOfOneOwnerLeaveNothing(t *testing.T) {
	b := newBench(t)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 10 {
				hold, err := b.Lock(ctx, "k", rlock.WithOwner("one"))
				if err != nil {
					t.Error(err)
					return
				}
				if err := hold.Release(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	b.free("k")
}

func TestContentionExcludes(t *testing.T) {
	b := newBench(t)
	var inside, entered atomic.Int32
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 4 {
				err := b.Client.Run(ctx, "k", func(context.Context, *rlock.Hold) error {
					if inside.Add(1) != 1 {
						t.Error("two are inside")
					}
					entered.Add(1)
					inside.Add(-1)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if entered.Load() != 200 {
		t.Fatal(entered.Load())
	}
	b.free("k")
}

func TestFixedLeaseIsKeptWhereTheServerAllowsLess(t *testing.T) {
	b := newBench(t, "--rlock.max-lease-ms", "600")
	hold := must(b.Lock(ctx, "k", rlock.WithFixedLease(3*time.Second)))(t)
	began := time.Now()
	waiting := later(func() (*rlock.Hold, error) { return b.Lock(ctx, "k", rlock.WithFixedLease(2*time.Second)) })
	time.Sleep(2 * time.Second)
	held(t, hold)
	lost(t, hold, time.Until(began.Add(3*time.Second)))
	hold = must(waiting(t))(t)
	time.Sleep(1200 * time.Millisecond)
	held(t, hold)
	lost(t, hold, 800*time.Millisecond)
}

func TestFixedLeaseIsLostAtItsDeadline(t *testing.T) {
	b := newBench(t)
	hold := must(b.Lock(ctx, "k", rlock.WithFixedLease(400*time.Millisecond)))(t)
	lost(t, hold, 10*time.Second)
	wants(t, hold.Release(ctx), rlock.ErrLost)
	b.free("k")
	if renewals := b.calls("RLOCK.RENEW"); renewals > 2 {
		t.Fatalf("%d renewals", renewals)
	}
}

func TestRenewalsLeaveTheEndOfAFixedLease(t *testing.T) {
	b := newBench(t)
	var passed atomic.Int64
	c := b.client(b.Addr, rlock.WithClock(func() time.Duration { return time.Duration(passed.Load()) }))
	must(c.Lock(ctx, "k", rlock.WithFixedLease(20*time.Second)))(t)
	passed.Add(int64(1900 * time.Millisecond))
	b.claimed("k")
	if left := b.do("RLOCK.PTTL", "k").(int64); left > 18100 {
		t.Fatal(left)
	}
}

func TestLeaseFollowsTheLongestThatTheServerAllows(t *testing.T) {
	b := newBench(t)
	hold := must(b.Lock(ctx, "held", rlock.WithLease(1500*time.Millisecond)))(t)
	b.do("CONFIG", "SET", "rlock.max-lease-ms", "1000")
	short := must(b.Lock(ctx, "k"))(t)
	if left := short.Remaining(); left > time.Second {
		t.Fatal(left)
	}
	time.Sleep(3 * time.Second)
	held(t, hold)
	held(t, short)
}

func TestBeliefFollowsTheLastAnswerAlsoDownwards(t *testing.T) {
	b := newBench(t)
	var passed atomic.Int64
	c := b.client(b.Addr, rlock.WithClock(func() time.Duration { return time.Duration(passed.Load()) }))
	hold := must(c.Lock(ctx, "k"))(t)
	passed.Add(int64(100 * time.Millisecond)) // The first renewal is due.
	testserver.Eventually(t, func() bool { return hold.Remaining() > 20*time.Second })
	b.do("PEXPIRE", "k", "5000")
	passed.Add(int64(11 * time.Second)) // The second one is due.
	testserver.Eventually(t, func() bool { return hold.Remaining() <= 5*time.Second })
	held(t, hold)
}

func TestLossIsToldBeforeTheLeaseEndsWhileTheServerStalls(t *testing.T) {
	b := newBench(t)
	proxy := testserver.StartProxy(t, b.Addr)
	hold := must(b.client(proxy.Addr).Lock(ctx, "k", rlock.WithLease(3*time.Second)))(t)
	proxy.Stall(true)
	lost(t, hold, 10*time.Second)
	if left := b.do("RLOCK.PTTL", "k").(int64); left < 0 {
		t.Fatal("the loss was told after the lease has ended")
	}
	proxy.Stall(false)
	wants(t, hold.Release(ctx), rlock.ErrLost)
	b.free("k")
}

func TestRenewalOutlivesErrors(t *testing.T) {
	b := newBench(t)
	hold := must(b.Lock(ctx, "k", rlock.WithLease(4*time.Second)))(t)
	b.claimed("k")
	b.do("REPLICAOF", "127.0.0.1", "1") // READONLY
	time.Sleep(2 * time.Second)
	b.do("REPLICAOF", "NO", "ONE")
	time.Sleep(3 * time.Second)
	held(t, hold)
	if err := hold.Release(ctx); err != nil {
		t.Fatal(err)
	}
	b.free("k")
}

func TestRenewalOutlivesCutConnections(t *testing.T) {
	b := newBench(t)
	proxy := testserver.StartProxy(t, b.Addr)
	hold := must(b.client(proxy.Addr).Lock(ctx, "k", rlock.WithLease(time.Second)))(t)
	for range 20 {
		proxy.Cut()
		time.Sleep(100 * time.Millisecond)
	}
	held(t, hold)
}

func TestForcedReleaseIsTold(t *testing.T) {
	b := newBench(t)
	hold := must(b.Lock(ctx, "k", rlock.WithLease(2*time.Second)))(t)
	other := must(b.Lock(ctx, "other"))(t)
	b.do("RLOCK.FORCERELEASE", "k")
	b.do("RLOCK.FORCERELEASE", "other")
	wants(t, other.Release(ctx), rlock.ErrLost)
	lost(t, hold, 1500*time.Millisecond)
}

func TestLossOfOneOfManyKeysFreesTheOthers(t *testing.T) {
	b := newBench(t)
	keys := []string{"a", "b", "c"}
	for _, take := range map[string]func(*rlock.Hold){
		"by the holder": func(hold *rlock.Hold) { wants(t, hold.Release(ctx), rlock.ErrLost) },
		"by the clock":  func(hold *rlock.Hold) { lost(t, hold, 10*time.Second) },
	} {
		hold := must(b.LockMany(ctx, keys, rlock.WithLease(time.Minute), rlock.WithSession(600*time.Millisecond)))(t)
		b.do("RLOCK.FORCERELEASE", "b")
		take(hold)
		for _, key := range keys {
			b.free(key)
		}
	}
	// The same between the grant and its message.
	proxy := testserver.StartProxy(t, b.Addr)
	other := must(b.LockMany(ctx, keys))(t)
	waiting := later(func() (*rlock.Hold, error) { return b.client(proxy.Addr).LockMany(ctx, keys) })
	b.waiting("a", 1)
	proxy.Stall(true)
	_ = other.Release(ctx)
	b.do("RLOCK.FORCERELEASE", "b")
	proxy.Stall(false)
	lost(t, must(waiting(t))(t), 10*time.Second)
	for _, key := range keys {
		b.free(key)
	}
}

func TestReleaseOfAnOverwrittenOrDeletedKeyIsALoss(t *testing.T) {
	b := newBench(t)
	kinds := map[string]func() (*rlock.Hold, error){
		"mutex": func() (*rlock.Hold, error) { return b.Lock(ctx, "mutex") },
		"fair":  func() (*rlock.Hold, error) { return b.FairLock(ctx, "fair") },
		"read":  func() (*rlock.Hold, error) { return b.RLock(ctx, "read") },
		"write": func() (*rlock.Hold, error) { return b.WLock(ctx, "write") },
		"many":  func() (*rlock.Hold, error) { return b.LockMany(ctx, []string{"first", "many"}) },
		"sema": func() (*rlock.Hold, error) {
			must(b.InitSemaphore(ctx, "sema", 2, 0))(t)
			return b.Acquire(ctx, "sema", 1)
		},
	}
	releases := []func(*rlock.Hold) error{
		func(hold *rlock.Hold) error { return hold.Release(ctx) },
		func(hold *rlock.Hold) error { return hold.Run(func(context.Context, *rlock.Hold) error { return nil }) },
		func(hold *rlock.Hold) error { return hold.ReleaseAndKeep(ctx, time.Second) },
	}
	for key, acquire := range kinds {
		for i, release := range releases {
			if i == 2 && key != "mutex" && key != "fair" {
				continue // Other kinds cannot be kept.
			}
			hold := must(acquire())(t)
			b.do("SET", key, "text")
			wants(t, release(hold), rlock.ErrLost)
			b.do("DEL", key)
			hold = must(acquire())(t)
			b.do("DEL", key)
			wants(t, release(hold), rlock.ErrLost)
		}
	}
	b.free("first")
	b.unclaimed(0)
}

func TestClockJumpIsALoss(t *testing.T) {
	b := newBench(t)
	var ahead atomic.Int64
	began := time.Now()
	clock := func() time.Duration { return time.Since(began) + time.Duration(ahead.Load()) }
	hold := must(b.client(b.Addr, rlock.WithClock(clock)).Lock(ctx, "k"))(t)
	held(t, hold)
	ahead.Store(int64(time.Hour))
	if hold.Held() {
		t.Fatal("it believes to hold after an hour")
	}
	lost(t, hold, 5*time.Second)
}

func TestReplyThatComesAfterItsLeaseIsNoGrant(t *testing.T) {
	b := newBench(t)
	proxy := testserver.StartProxy(t, b.Addr)
	var ahead atomic.Int64
	began := time.Now()
	c := b.client(proxy.Addr, rlock.WithClock(func() time.Duration { return time.Since(began) + time.Duration(ahead.Load()) }))
	must(c.Lock(ctx, "warm"))(t)
	proxy.Delay(300 * time.Millisecond)
	acquiring := later(func() (*rlock.Hold, error) { return c.Lock(ctx, "k") })
	testserver.Eventually(t, func() bool { holders, _ := count(b.direct, "k"); return holders == 1 })
	ahead.Store(int64(time.Hour)) // The process sleeps before it reads the reply.
	hold := must(acquiring(t))(t)
	held(t, hold)
	if err := hold.Release(ctx); err != nil {
		t.Fatal(err)
	}
	b.free("k")
}

func TestExpiredClaimIsNotEntered(t *testing.T) {
	b := newBench(t)
	proxy := testserver.StartProxy(t, b.Addr)
	c := b.client(proxy.Addr)
	holder := must(b.Lock(ctx, "k"))(t)
	waiting := later(func() (*rlock.Hold, error) { return c.Lock(ctx, "k", rlock.WithLease(500*time.Millisecond)) })
	b.waiting("k", 1)
	proxy.Stall(true)
	_ = holder.Release(ctx)
	other := must(b.Lock(ctx, "k"))(t) // After the claim has expired.
	proxy.Stall(false)
	b.waiting("k", 1)
	held(t, other)
	_ = other.Release(ctx)
	hold := must(waiting(t))(t)
	if hold.Token() <= other.Token() {
		t.Fatal("it entered with the grant that had expired")
	}
	_ = hold.Release(ctx)
	b.free("k")
}

func TestHoldThatCannotBeRenewedEndsWithItsClaim(t *testing.T) {
	b := newBench(t)
	holder := must(b.Lock(ctx, "k"))(t)
	b.do("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-rlock.renew")
	c := newClient(t, &redis.UniversalOptions{Addrs: []string{b.Addr}, Username: "app", Password: "secret"})
	waiting := later(func() (*rlock.Hold, error) { return c.Lock(ctx, "k") })
	b.waiting("k", 1)
	_ = holder.Release(ctx)
	lost(t, must(waiting(t))(t), 2*time.Second)
	b.free("k")
}

func TestHandOverNeedsOnlyARelease(t *testing.T) {
	b := newBench(t)
	other := b.client(b.Addr)
	var all sync.WaitGroup
	for range 2 {
		for _, c := range []*rlock.Client{b.Client, other} {
			all.Go(func() {
				for range 25 {
					hold, err := c.Lock(ctx, "k")
					if err == nil {
						time.Sleep(10 * time.Millisecond)
						err = hold.Release(ctx)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	acquires, releases, renewals := b.calls("RLOCK.ACQUIRE"), b.calls("RLOCK.RELEASE"), b.calls("RLOCK.RENEW")
	if acquires > 120 || releases != 100 || renewals > 20 {
		t.Fatal(acquires, releases, renewals)
	}
}

func TestGrantWhoseMessageProvesTooLittleIsAskedFor(t *testing.T) {
	b := newBench(t)
	proxy := testserver.StartProxy(t, b.Addr)
	var passed atomic.Int64
	c := b.client(proxy.Addr, rlock.WithClock(func() time.Duration { return time.Duration(passed.Load()) }))
	must(c.Lock(ctx, "warm"))(t)
	sleeps := func() { passed.Add(int64(time.Hour)) }
	for name, reason := range map[string]struct {
		option          rlock.Option
		replies         int // To lose.
		whileItIsQueued func()
	}{
		"no time is left":                {option: rlock.WithNote(""), whileItIsQueued: sleeps},
		"no time of the limit is left":   {option: rlock.WithFixedLease(time.Minute), whileItIsQueued: sleeps},
		"the session has no connection":  {option: rlock.WithSession(time.Minute), whileItIsQueued: func() {}},
		"a copy of the request was lost": {option: rlock.WithNote(""), replies: 1, whileItIsQueued: func() {}},
	} {
		holder := must(b.Lock(ctx, "k"))(t)
		proxy.LoseReplies(reason.replies)
		waiting := later(func() (*rlock.Hold, error) { return c.Lock(ctx, "k", reason.option) })
		testserver.Eventually(t, func() bool { return !proxy.LosesReplies() })
		time.Sleep(100 * time.Millisecond)
		b.waiting("k", 1)
		reason.whileItIsQueued()
		_ = holder.Release(ctx)
		hold := must(waiting(t))(t)
		held(t, hold)
		if left := b.do("RLOCK.PTTL", "k").(int64); left < 10_000 { // It is claimed, though the clock stands still.
			t.Fatal(name, left)
		}
		if err := hold.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLostHoldIsNoNewHold(t *testing.T) {
	b := newBench(t)
	b.do("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-rlock.release")
	var passed atomic.Int64
	c := newClient(t, &redis.UniversalOptions{Addrs: []string{b.Addr}, Username: "app", Password: "secret"},
		rlock.WithClock(func() time.Duration { return time.Duration(passed.Load()) }))
	alice := rlock.WithOwner("alice")
	must(c.Lock(ctx, "k", alice))(t)
	passed.Add(int64(time.Hour))
	_, err := c.Lock(ctx, "k", alice, rlock.WithTimeout(300*time.Millisecond))
	wants(t, err, rlock.ErrTimeout)
}

func TestLostRepliesLeaveOneHold(t *testing.T) {
	b := newBench(t)
	proxy := testserver.StartProxy(t, b.Addr)
	c := b.client(proxy.Addr)
	must(c.Lock(ctx, "warm"))(t)
	for range 5 {
		proxy.LoseReplies(1)
		hold := must(c.Lock(ctx, "k"))(t)
		proxy.LoseReplies(1)
		if err := hold.Release(ctx); err != nil || proxy.LosesReplies() {
			t.Fatal(err)
		}
		b.free("k")
		proxy.LoseReplies(1)
		hold = must(c.TryLock(ctx, "k"))(t)
		proxy.LoseReplies(1)
		if err := hold.ReleaseAndKeep(ctx, 20*time.Millisecond); err != nil || proxy.LosesReplies() {
			t.Fatal(err)
		}
	}
}

func TestWaitSurvivesLostConnections(t *testing.T) {
	b := newBench(t)
	proxy := testserver.StartProxy(t, b.Addr)
	holder := must(b.Lock(ctx, "k"))(t)
	c := b.client(proxy.Addr)
	waiting := later(func() (*rlock.Hold, error) { return c.Lock(ctx, "k") })
	for range 3 {
		b.waiting("k", 1)
		proxy.Cut()
		b.waiting("k", 0)
	}
	b.waiting("k", 1)
	_ = holder.Release(ctx)
	must(waiting(t))(t)
}

func TestWaitThatEndsInAnOutageCarriesItsCause(t *testing.T) {
	const timeout = 2 * time.Second
	outages := map[string]struct {
		begin   func(b *bench, proxy *testserver.Proxy)
		waits   bool // The request waits on the server when the outage begins.
		warns   bool
		code    string
		isCause func(error) bool
	}{
		"killed": {
			begin: func(b *bench, _ *testserver.Proxy) { _ = b.Process.Kill() }, warns: true,
			isCause: func(err error) bool { return errors.Is(err, io.EOF) || errors.As(err, new(*net.OpError)) },
		},
		"stalled":           {begin: func(_ *bench, proxy *testserver.Proxy) { proxy.Stall(true) }},
		"stalled meanwhile": {begin: func(_ *bench, proxy *testserver.Proxy) { proxy.Stall(true) }, waits: true},
		"refusing":          {begin: func(b *bench, _ *testserver.Proxy) { b.do("REPLICAOF", "127.0.0.1", "1") }, warns: true, code: "READONLY"},
	}
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			proxy := testserver.StartProxy(t, b.Addr)
			var logged logs
			c := b.client(proxy.Addr, rlock.WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
			must(c.Lock(ctx, "taken"))(t)
			must(c.FairLock(ctx, "f"))(t)
			if !outage.waits {
				outage.begin(b, proxy)
			}
			began := time.Now()
			waits := []func(testing.TB) (*rlock.Hold, error){
				later(func() (*rlock.Hold, error) { return c.Lock(ctx, "taken", rlock.WithTimeout(timeout)) }),
				later(func() (*rlock.Hold, error) { return c.FairLock(ctx, "f", rlock.WithTimeout(timeout)) }),
				later(func() (*rlock.Hold, error) {
					return c.LockMany(ctx, []string{"other", "taken"}, rlock.WithTimeout(timeout))
				}),
			}
			if outage.waits {
				b.waiting("taken", 2)
				outage.begin(b, proxy)
			}
			for _, wait := range waits {
				_, err := wait(t)
				wants(t, err, rlock.ErrTimeout)
				wants(t, err, rlock.ErrUnavailable)
				var typed *rlock.Error
				if !errors.As(err, &typed) || typed.Code != outage.code || outage.isCause != nil && !outage.isCause(err) {
					t.Errorf("%v, code %q", err, typed.Code)
				}
			}
			if took := time.Since(began); took > timeout+time.Second {
				t.Error(took)
			}
			limited, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			if _, err := c.Lock(limited, "taken"); outage.warns {
				wants(t, err, context.DeadlineExceeded)
				wants(t, err, rlock.ErrUnavailable)
			}
			if warnings := logged.count("WARN", "retrying"); outage.warns != (warnings > 0) || warnings > 4 {
				t.Errorf("%d warnings: %s", warnings, logged.text.String())
			}
			if !outage.warns { // What was on its way is settled.
				proxy.Stall(false)
				b.waiting("taken", 0)
				b.free("other")
			}
		})
	}
}

func TestWaitAfterAnOutageIsContention(t *testing.T) {
	b := newBench(t)
	must(b.Lock(ctx, "k"))(t)
	b.do("REPLICAOF", "127.0.0.1", "1")
	waiting := later(func() (*rlock.Hold, error) { return b.Lock(ctx, "k", rlock.WithTimeout(3*time.Second)) })
	testserver.Eventually(t, func() bool {
		return strings.Contains(fmt.Sprint(b.do("INFO", "errorstats")), "errorstat_READONLY")
	})
	b.do("REPLICAOF", "NO", "ONE")
	_, err := waiting(t)
	wants(t, err, rlock.ErrTimeout)
	if errors.Is(err, rlock.ErrUnavailable) {
		t.Error(err)
	}
	limited, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if _, err = b.Lock(limited, "k"); errors.Is(err, rlock.ErrUnavailable) {
		t.Error(err)
	}
}

// logs is what was logged.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// count is the number of lines with both words.
func (l *logs) count(level, word string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, "level="+level) && strings.Contains(line, word) {
			n++
		}
	}
	return n
}

func TestCancelLeavesNothing(t *testing.T) {
	for stage, harm := range map[string]func(*testserver.Proxy){
		"waiting": func(*testserver.Proxy) {},
		"overtaken": func(p *testserver.Proxy) { // The settlement arrives before the request.
			p.Delay(time.Second)
			time.AfterFunc(40*time.Millisecond, func() { p.Delay(0) })
		},
		"reply on way": func(p *testserver.Proxy) { p.Delay(400 * time.Millisecond) },
		"stalled":      func(p *testserver.Proxy) { p.Stall(true); time.AfterFunc(time.Second, func() { p.Stall(false) }) },
		"reply lost":   func(p *testserver.Proxy) { p.LoseReplies(1) },
	} {
		t.Run(stage, func(t *testing.T) {
			b := newBench(t)
			proxy := testserver.StartProxy(t, b.Addr)
			c := b.client(proxy.Addr)
			must(c.Lock(ctx, "warm"))(t)
			must(b.Lock(ctx, "taken"))(t)
			for key, acquire := range map[string]func(context.Context) (*rlock.Hold, error){
				"taken": func(ctx context.Context) (*rlock.Hold, error) { return c.Lock(ctx, "taken") },
				"free":  func(ctx context.Context) (*rlock.Hold, error) { return c.TryLock(ctx, "free") },
				"rest":  func(ctx context.Context) (*rlock.Hold, error) { return c.LockMany(ctx, []string{"rest", "taken"}) },
			} {
				harm(proxy)
				cancellable, cancel := context.WithCancel(ctx)
				result := later(func() (*rlock.Hold, error) { return acquire(cancellable) })
				time.Sleep(50 * time.Millisecond)
				cancel()
				began := time.Now()
				if hold, err := result(t); err == nil {
					_ = hold.Release(cancellable) // It was granted before: the release goes on without the context.
				} else {
					wants(t, err, context.Canceled)
				}
				if took := time.Since(began); took > 2*time.Second {
					t.Fatal("cancelling takes", took)
				}
				b.waiting("taken", 0)
				if key != "taken" {
					b.free(key)
				}
				time.Sleep(700 * time.Millisecond) // What was on its way has arrived.
				b.waiting("taken", 0)
				if key != "taken" {
					b.free(key)
				}
			}
			b.unclaimed(0)
		})
	}
}

func TestContextDeadlineIsATimeout(t *testing.T) {
	b := newBench(t)
	must(b.Lock(ctx, "k"))(t)
	limited, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err := b.Lock(limited, "k")
	wants(t, err, rlock.ErrTimeout)
	wants(t, err, context.DeadlineExceeded)
	b.waiting("k", 0)
}

func TestTimeoutsOfAnyLength(t *testing.T) {
	b := newBench(t)
	hold := must(b.Lock(ctx, "k"))(t)
	for _, timeout := range []time.Duration{math.MinInt64, -1, 0} {
		_, err := b.Lock(ctx, "k", rlock.WithTimeout(timeout))
		wants(t, err, rlock.ErrNotAcquired)
	}
	_, err := b.Lock(ctx, "k", rlock.WithTimeout(1))
	wants(t, err, rlock.ErrTimeout)
	for _, timeout := range []time.Duration{year, year + 1, math.MaxInt64} {
		waiting := later(func() (*rlock.Hold, error) { return b.Lock(ctx, "k", rlock.WithTimeout(timeout)) })
		b.waiting("k", 1)
		_ = hold.Release(ctx)
		hold = must(waiting(t))(t)
	}
}

func TestHoldEndsWithTheCallersContext(t *testing.T) {
	b := newBench(t)
	cancellable, cancel := context.WithCancelCause(ctx)
	hold := must(b.Lock(cancellable, "k"))(t)
	stop := errors.New("stop")
	cancel(stop)
	<-hold.Context().Done()
	wants(t, context.Cause(hold.Context()), stop)
	if !hold.Held() {
		t.Fatal("the lock itself is released by its owner only")
	}
	_ = hold.Release(cancellable)
	b.free("k")
}

func TestCloseLeavesNothing(t *testing.T) {
	b := newBench(t)
	hold := must(b.Lock(ctx, "held"))(t)
	must(b.client(b.Addr).TryLock(ctx, "taken"))(t) // No wait, no subscriber.
	waiting := later(func() (*rlock.Hold, error) { return b.Lock(ctx, "taken") })
	b.waiting("taken", 1)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := waiting(t)
	wants(t, err, rlock.ErrClosed)
	wants(t, context.Cause(hold.Context()), rlock.ErrClosed)
	b.free("held")
	b.waiting("taken", 0)
	_, err = b.Lock(ctx, "k")
	wants(t, err, rlock.ErrClosed)
	testserver.Eventually(t, func() bool {
		clients := b.do("CLIENT", "LIST", "TYPE", "pubsub").(string)
		return clients == ""
	})
}

func TestAcquisitionThatRacesCloseIsClosed(t *testing.T) {
	b := newBench(t)
	for i := range 200 {
		c := rlock.New(b.direct)
		must(c.TryLock(ctx, fmt.Sprint("warm", i)))(t)
		var all sync.WaitGroup
		for key := range 4 {
			all.Go(func() {
				if _, err := c.TryLock(ctx, fmt.Sprint(i, key)); err != nil && !errors.Is(err, rlock.ErrClosed) {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Duration(i) * 10 * time.Microsecond)
		_ = c.Close()
		all.Wait()
	}
}

func TestCloseIsShortWithoutServer(t *testing.T) {
	b := newBench(t)
	proxy := testserver.StartProxy(t, b.Addr)
	c := b.client(proxy.Addr)
	must(c.Lock(ctx, "k"))(t)
	proxy.Stall(true)
	began := time.Now()
	_ = c.Close()
	if took := time.Since(began); took > 8*time.Second {
		t.Fatal(took)
	}
}

func TestReleaseAndKeepClosesTheLock(t *testing.T) {
	b := newBench(t)
	hold := must(b.Lock(ctx, "k"))(t)
	if err := hold.ReleaseAndKeep(ctx, 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	_, err := b.TryLock(ctx, "k")
	wants(t, err, rlock.ErrNotAcquired)
	must(b.Lock(ctx, "k"))(t)
	reader := must(b.RLock(ctx, "r"))(t)
	if reader.ReleaseAndKeep(ctx, time.Second) == nil || !reader.Held() {
		t.Fatal("a reader cannot keep the lock closed")
	}
}

func TestReleaseAndKeepIsRefusedBesideAReentry(t *testing.T) {
	b := newBench(t)
	alice := rlock.WithOwner("alice")
	for range 300 {
		hold := must(b.Lock(ctx, "k", alice))(t)
		entering := later(func() (*rlock.Hold, error) { return b.TryLock(ctx, "k", alice) })
		kept := hold.ReleaseAndKeep(ctx, time.Millisecond)
		again, err := entering(t)
		if kept != nil {
			held(t, hold)
			_ = hold.Release(ctx)
		} else if err == nil && again.Token() == hold.Token() {
			t.Fatal("the lock was entered again and kept closed")
		}
		if err == nil {
			_ = again.Release(ctx)
		}
	}
}

func TestSessionEndsWithTheProcess(t *testing.T) {
	b := newBench(t)
	proxy := testserver.StartProxy(t, b.Addr)
	hold := must(b.client(proxy.Addr).Lock(ctx, "k", rlock.WithLease(time.Hour), rlock.WithSession(time.Second)))(t)
	proxy.Cut()
	time.Sleep(1500 * time.Millisecond)
	held(t, hold) // It was renewed over another connection.
	proxy.Stall(true)
	lost(t, hold, 10*time.Second)
	proxy.Cut()
	b.free("k")
}

func TestErrorsAreTyped(t *testing.T) {
	b := newBench(t)
	b.do("SET", "text", "1")
	var refused *rlock.Error
	if _, err := b.Lock(ctx, "text"); !errors.As(err, &refused) || refused.Code != "WRONGTYPE" {
		t.Fatal(err)
	}

	alice, bob := rlock.WithOwner("alice"), rlock.WithOwner("bob")
	must(b.Lock(ctx, "stock", alice))(t)
	orders := must(b.Lock(ctx, "orders", bob))(t)
	waiting := later(func() (*rlock.Hold, error) { return b.Lock(ctx, "orders", alice) })
	b.waiting("orders", 1)
	_, err := b.Lock(ctx, "stock", bob)
	wants(t, err, rlock.ErrDeadlock)
	_ = orders.Release(ctx)
	must(waiting(t))(t)
}

func TestSupersededRequestLeavesTheNewerOneAlone(t *testing.T) {
	b := newBench(t)
	proxy := testserver.StartProxy(t, b.Addr)
	c, alice := b.client(proxy.Addr), rlock.WithOwner("alice")
	_, err := c.Lock(ctx, "warm", rlock.WithTimeout(time.Second))
	wants(t, err, nil)
	must(b.Lock(ctx, "k"))(t)
	proxy.LoseReplies(1) // So that the older request has something to settle.
	older := later(func() (*rlock.Hold, error) { return c.Lock(ctx, "k", alice) })
	testserver.Eventually(t, func() bool { return !proxy.LosesReplies() })
	b.waiting("k", 1)
	proxy.Delay(400 * time.Millisecond) // It hears of its end when the newer one holds.
	newer := later(func() (*rlock.Hold, error) { return b.Lock(ctx, "k", alice, rlock.WithNote("newer")) })
	testserver.Eventually(t, func() bool { return strings.Contains(fmt.Sprint(b.do("RLOCK.WAITERS", "k")), "newer") })
	b.do("RLOCK.FORCERELEASE", "k")
	hold := must(newer(t))(t)
	_, err = older(t)
	wants(t, err, rlock.ErrSuperseded)
	time.Sleep(500 * time.Millisecond)
	if err := hold.Release(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestSettlementLeavesTheNewerHoldOfAnotherClientAlone(t *testing.T) {
	for request, begin := range map[string]func(context.Context, *bench, *testserver.Proxy, *rlock.Client) *rlock.Hold{
		"superseded": func(cancellable context.Context, b *bench, proxy *testserver.Proxy, c *rlock.Client) *rlock.Hold {
			other := must(b.Lock(ctx, "k"))(b)
			go func() { _, _ = c.Lock(cancellable, "k", rlock.WithOwner("alice")) }()
			b.waiting("k", 1)
			proxy.LoseReplies(1000) // Also the message that tells it of its end.
			newer := later(func() (*rlock.Hold, error) {
				return b.Lock(ctx, "k", rlock.WithOwner("alice"), rlock.WithNote("newer"))
			})
			testserver.Eventually(b, func() bool { return strings.Contains(fmt.Sprint(b.do("RLOCK.WAITERS", "k")), "newer") })
			_ = other.Release(ctx)
			return must(newer(b))(b)
		},
		"reply lost": func(cancellable context.Context, b *bench, proxy *testserver.Proxy, c *rlock.Client) *rlock.Hold {
			proxy.LoseReplies(1000)
			go func() { _, _ = c.TryLock(cancellable, "k", rlock.WithOwner("alice")) }()
			testserver.Eventually(b, func() bool { return b.do("RLOCK.HOLDS", "k", "alice") == int64(1) })
			return must(b.TryLock(ctx, "k", rlock.WithOwner("alice")))(b)
		},
		"reply of many lost": func(cancellable context.Context, b *bench, proxy *testserver.Proxy, c *rlock.Client) *rlock.Hold {
			proxy.LoseReplies(1000)
			keys := []string{"rest", "k"}
			go func() { _, _ = c.LockMany(cancellable, keys, rlock.WithOwner("alice"), rlock.WithTimeout(0)) }()
			testserver.Eventually(b, func() bool { return b.do("RLOCK.HOLDS", "k", "alice") == int64(1) })
			return must(b.TryLock(ctx, "k", rlock.WithOwner("alice")))(b)
		},
	} {
		t.Run(request, func(t *testing.T) {
			b := newBench(t)
			proxy := testserver.StartProxy(t, b.Addr)
			c := b.client(proxy.Addr)
			must(c.Lock(ctx, "warm"))(t)
			cancellable, cancel := context.WithCancel(ctx)
			newer := begin(cancellable, b, proxy, c)
			cancel()
			proxy.LoseReplies(0)
			_ = c.Close() // When it has settled the older request.
			if b.do("RLOCK.HOLDS", "k", "alice") != int64(1) {
				t.Fatal("the newer hold has ended")
			}
			b.free("rest")
			if err := newer.Release(ctx); err != nil {
				t.Fatal(err)
			}
			b.free("k")
		})
	}
}

func TestQuarantineIsUnavailable(t *testing.T) {
	b := newBench(t, "--rlock.max-lease-ms", "3600000", "--rlock.exclusion", "restart")
	var e *rlock.Error
	if _, err := b.TryLock(ctx, "k"); !errors.As(err, &e) || e.Reason != rlock.ErrUnavailable || e.RetryAfter < time.Minute {
		t.Fatal(err)
	}
	waiting := later(func() (*rlock.Hold, error) { return b.Lock(ctx, "k") })
	time.Sleep(100 * time.Millisecond)
	b.do("CONFIG", "SET", "rlock.exclusion", "off")
	must(waiting(t))(t)
}

func TestServerWithoutTheModule(t *testing.T) {
	t.Parallel()
	server := testserver.StartPlain(t)
	c := newClient(t, &redis.UniversalOptions{Addrs: []string{server.Addr}})
	_, err := c.Lock(ctx, "k")
	wants(t, err, rlock.ErrModuleMissing)
}

func TestRunReturnsWhatTheWorkReturns(t *testing.T) {
	b := newBench(t)
	failure := errors.New("failure")
	fails := func(context.Context, *rlock.Hold) error { return failure }
	if err := b.Client.Run(ctx, "k", fails); err != failure {
		t.Fatal(err)
	}
	takes := func(ctx context.Context, hold *rlock.Hold) error {
		b.do("RLOCK.FORCERELEASE", "k")
		<-ctx.Done()
		return nil
	}
	wants(t, b.Client.Run(ctx, "k", takes, rlock.WithLease(300*time.Millisecond)), rlock.ErrLost)
	func() {
		defer func() { _ = recover() }()
		_ = b.Client.Run(ctx, "k", func(context.Context, *rlock.Hold) error { panic("panic") })
	}()
	b.free("k")
}

func TestLossThatWorkHasSleptThroughComesFirst(t *testing.T) {
	b := newBench(t)
	var passed atomic.Int64
	c := b.client(b.Addr, rlock.WithClock(func() time.Duration { return time.Duration(passed.Load()) }))
	alice := rlock.WithOwner("alice")
	calls := 0
	sleeps := func(context.Context, *rlock.Hold) error {
		calls++
		passed.Add(int64(time.Minute))
		return nil
	}
	wants(t, c.Run(ctx, "k", sleeps, alice), rlock.ErrLost)
	wants(t, c.Run(ctx, "k", func(ctx context.Context, _ *rlock.Hold) error { return c.Run(ctx, "k", sleeps, alice) }, alice), rlock.ErrLost)
	hold := must(c.Lock(ctx, "k"))(t)
	passed.Add(int64(time.Minute))
	wants(t, hold.Run(sleeps), rlock.ErrLost)
	if calls != 2 {
		t.Fatal("work begins under a lock that is lost")
	}
	b.free("k")
}

func TestLeaderIsReelectedAfterALoss(t *testing.T) {
	b := newBench(t)
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	elected := make(chan int64)
	ended := make(chan error, 1)
	go func() {
		ended <- b.Lead(cancellable, "k", func(ctx context.Context, hold *rlock.Hold) error {
			elected <- hold.Token()
			<-ctx.Done()
			return ctx.Err()
		}, rlock.WithLease(300*time.Millisecond))
	}()
	first := <-elected
	b.do("RLOCK.FORCERELEASE", "k")
	if second := <-elected; second <= first {
		t.Fatal(second)
	}
	cancel()
	wants(t, <-ended, context.Canceled)
	b.free("k")
	failure := errors.New("failure")
	if err := b.Lead(ctx, "k", func(context.Context, *rlock.Hold) error { return failure }); err != failure {
		t.Fatal(err)
	}
}

func TestManyLocksAreRenewedOverASlowNetwork(t *testing.T) {
	b := newBench(t)
	proxy := testserver.StartProxy(t, b.Addr)
	c := newClient(t, &redis.UniversalOptions{Addrs: []string{proxy.Addr}})
	proxy.Delay(200 * time.Millisecond)
	var all sync.WaitGroup
	holds := make([]*rlock.Hold, 60)
	for i := range holds {
		all.Go(func() { holds[i], _ = c.Lock(ctx, fmt.Sprint("k", i), rlock.WithLease(3*time.Second)) })
	}
	all.Wait()
	for range 40 {
		time.Sleep(100 * time.Millisecond)
		for _, hold := range holds {
			held(t, hold)
		}
	}
}

func TestConnectionIsTheApplications(t *testing.T) {
	b := newBench(t)
	b.do("ACL", "SETUSER", "app", "on", ">secret", "~app:*", "&*", "+@all")
	b.do("CONFIG", "SET", "requirepass", "other")
	o := &redis.UniversalOptions{Addrs: []string{b.Addr}, DB: 3, Username: "app", Password: "secret"}
	c := newClient(t, o, rlock.WithPrefix("app:"))
	hold := must(c.Lock(ctx, "k"))(t)
	waiting := later(func() (*rlock.Hold, error) { return c.Lock(ctx, "k") })
	admin := redis.NewClient(&redis.Options{Addr: b.Addr, DB: 3, Password: "other"})
	defer func() { _ = admin.Close() }()
	testserver.Eventually(t, func() bool { _, waiters := count(admin, "app:k"); return waiters == 1 })
	_ = hold.Release(ctx)
	hold = must(waiting(t))(t)
	_ = hold.Release(ctx)
	if keys := must(admin.DBSize(ctx).Result())(t); keys != 0 {
		t.Fatal(keys)
	}
	o.Password = "wrong"
	_, err := newClient(t, o).Lock(ctx, "k")
	wants(t, err, rlock.ErrRefused)
}

func TestPoolOfOneConnectionSuffices(t *testing.T) {
	b := newBench(t)
	c := newClient(t, &redis.UniversalOptions{Addrs: []string{b.Addr}, PoolSize: 1, Protocol: 2})
	hold := must(c.Lock(ctx, "k", rlock.WithLease(time.Second)))(t)
	var waits []func(testing.TB) (*rlock.Hold, error)
	for range 30 {
		waits = append(waits, later(func() (*rlock.Hold, error) { return c.Lock(ctx, "k") }))
	}
	b.waiting("k", 30)
	time.Sleep(1500 * time.Millisecond)
	held(t, hold)
	_ = hold.Release(ctx)
	var all sync.WaitGroup
	for _, wait := range waits {
		all.Go(func() {
			if hold, err := wait(t); err != nil {
				t.Error(err)
			} else {
				_ = hold.Release(ctx)
			}
		})
	}
	all.Wait()
	b.free("k")
}

func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := testserver.StartCluster(t)
	var addrs []string
	for _, node := range nodes {
		addrs = append(addrs, node.Addr)
	}
	o := &redis.UniversalOptions{Addrs: addrs, IsClusterMode: true}
	direct := redis.NewUniversalClient(o)
	defer func() { _ = direct.Close() }()
	c := newClient(t, o)
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			key := fmt.Sprint("k}", i) // No hash tag.
			hold, err := c.Lock(ctx, key, rlock.WithLease(5*time.Second))
			if err != nil {
				t.Error(err)
				return
			}
			waiting := later(func() (*rlock.Hold, error) { return c.Lock(ctx, key) })
			testserver.Eventually(t, func() bool { _, waiters := count(direct, key); return waiters == 1 })
			testserver.Eventually(t, func() bool { return hold.Remaining() > 3*time.Second }) // It is renewed.
			_ = hold.Release(ctx)
			if hold, err = waiting(t); err != nil {
				t.Error(err)
				return
			}
			_ = hold.Release(ctx)
		})
	}
	all.Wait()
	keys := []string{"{tag}1", "{tag}2"}
	both := must(c.LockMany(ctx, keys))(t)
	waiting := later(func() (*rlock.Hold, error) { return c.LockMany(ctx, keys) })
	testserver.Eventually(t, func() bool { _, waiters := count(direct, keys[1]); return waiters == 1 })
	_ = both.Release(ctx)
	must(waiting(t))(t)
	_, err := c.LockMany(ctx, []string{"a", "b"})
	wants(t, err, rlock.ErrRefused)

	// A node that stalls loses its own locks only.
	var holds []*rlock.Hold
	masters := map[string]string{}
	cluster := direct.(*redis.ClusterClient)
	for i := range 12 {
		key := fmt.Sprint("stall", i)
		holds = append(holds, must(c.Lock(ctx, key, rlock.WithLease(4*time.Second)))(t))
		masters[key] = must(cluster.MasterForKey(ctx, key))(t).Options().Addr
	}
	_ = nodes[0].Process.Signal(syscall.SIGSTOP)
	defer func() { _ = nodes[0].Process.Signal(syscall.SIGCONT) }()
	onStalled := func(i int) bool { return masters[fmt.Sprint("stall", i)] == nodes[0].Addr }
	for i, hold := range holds {
		testserver.Eventually(t, func() bool { return !onStalled(i) || !hold.Held() })
	}
	for i, hold := range holds {
		if !onStalled(i) {
			held(t, hold)
		}
	}
}
