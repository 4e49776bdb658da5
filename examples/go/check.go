package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Provokes what goes wrong with locks, and looks whether lock.go survives it. `make test-examples` runs it.

var (
	ctx    = context.Background()
	direct = redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Getenv("PORT")})
	losing = redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Getenv("LOSING_PORT")})
	rounds = 20
)

func ok(format string, values ...any) { fmt.Printf("ok  go-redis: "+format+"\n", values...) }

func must[T any](value T, err error) T {
	if err != nil {
		log.Panic(err)
	}
	return value
}

func equal[T comparable](got, wanted T) {
	if got != wanted {
		log.Panicf("%v, not %v", got, wanted)
	}
}

func within(limit time.Duration, started time.Time) {
	if took := time.Since(started); took > limit {
		log.Panicf("it took %v, more than %v", took, limit)
	}
}

// No hold and no waiter was left behind.
func assertFree(key string) {
	equal(len(must(direct.Do(ctx, "RLOCK.WAITERS", key).Slice())), 0)
	equal(must(direct.Do(ctx, "RLOCK.PTTL", key).Int64()), -2)
}

func holds(key, owner string) int64 { return must(direct.Do(ctx, "RLOCK.HOLDS", key, owner).Int64()) }

// How many requests for locks the server was sent.
func requests() (made int) {
	calls := regexp.MustCompile(`(?i)cmdstat_rlock\.(?:acquire|cancel|release):calls=(\d+)`)
	for _, one := range calls.FindAllStringSubmatch(must(direct.Info(ctx, "commandstats").Result()), -1) {
		made += must(strconv.Atoi(one[1]))
	}
	return made
}

func acquire(locks *Locks, key string, wait time.Duration) *Hold {
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return must(locks.Acquire(limited, key, 30*time.Second))
}

func lostRepliesWithoutOnce() {
	must(losing.Do(ctx, "RLOCK.ACQUIRE", "cut:bare", "o").Result())
	equal(holds("cut:bare", "o"), 2)
	direct.Do(ctx, "RLOCK.FORCERELEASE", "cut:bare")
	ok("repeats a command whose reply was lost; without ONCE that is a second hold")
}

// By ONCE alone, with the library's own retries at their defaults.
func lostRepliesWithOnce() {
	before := must(losing.Do(ctx, "SPOILED").Int())
	for range rounds {
		owner := rand.Text()
		must(losing.Do(ctx, "RLOCK.ACQUIRE", "cut:once", owner, "ONCE").Result())
		equal(holds("cut:once", owner), 1)
		// Repeated as well: the first one was carried out.
		equal(lostIfNotOwner(losing.Do(ctx, "RLOCK.RELEASE", "cut:once", owner).Err()), ErrLost)
		assertFree("cut:once")
	}
	equal(must(losing.Do(ctx, "SPOILED").Int())-before, 2*rounds)
	ok("%d rounds of a bare ACQUIRE … ONCE with both replies lost: one hold, one RELEASE frees it", rounds)
}

func lostReplies(locks *Locks) {
	before := must(losing.Do(ctx, "SPOILED").Int())
	for range rounds {
		hold := acquire(locks, "cut:go", 20*time.Second)
		equal(holds(hold.Key, hold.Owner), 1)
		if err := locks.Release(ctx, hold); err != nil && !errors.Is(err, ErrLost) {
			log.Panic(err)
		}
		assertFree(hold.Key)
	}
	equal(must(losing.Do(ctx, "SPOILED").Int())-before, 2*rounds)
	ok("%d rounds of NOTIFY with both replies lost: one hold, one RELEASE frees it", rounds)
}

func lostRepliesOfWaits(locks *Locks) {
	before := must(losing.Do(ctx, "SPOILED").Int())
	for round := range rounds {
		must(direct.Do(ctx, "RLOCK.ACQUIRE", "cut:waits", "holder").Result())
		granted := make(chan *Hold)
		go func() { granted <- acquire(locks, "cut:waits", 20*time.Second) }()
		for must(losing.Do(ctx, "SPOILED").Int())-before == 2*round || len(must(direct.Do(ctx, "RLOCK.WAITERS", "cut:waits").Slice())) == 0 {
			time.Sleep(time.Millisecond)
		}
		must(direct.Do(ctx, "RLOCK.RELEASE", "cut:waits", "holder").Result())
		hold := <-granted
		equal(holds(hold.Key, hold.Owner), 1)
		if err := locks.Release(ctx, hold); err != nil && !errors.Is(err, ErrLost) {
			log.Panic(err)
		}
		assertFree(hold.Key)
	}
	equal(must(losing.Do(ctx, "SPOILED").Int())-before, 2*rounds)
	ok("%d rounds of NOTIFY that waits with both replies lost: one hold, one RELEASE frees it", rounds)
}

func manyWaiters(locks *Locks) {
	first := acquire(locks, "shared", time.Second)
	var tokens []int64
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			err := locks.Held(ctx, "shared", 30*time.Second, func(_ context.Context, token int64) error {
				tokens = append(tokens, token)
				return nil
			})
			if err != nil {
				log.Panic(err)
			}
		})
	}
	time.Sleep(time.Second)
	equal(len(must(direct.Do(ctx, "RLOCK.WAITERS", "shared").Slice())), 100)
	started := time.Now()
	must(losing.Ping(ctx).Result())
	within(time.Second/2, started)
	must(0, locks.Release(ctx, first))
	all.Wait()
	equal(len(tokens), 100)
	assertFree("shared")
	ok("100 wait without a connection each")
}

func endedWaits(locks *Locks) {
	first := acquire(locks, "ends", time.Second)
	limited, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	started := time.Now()
	_, err := locks.Acquire(limited, "ends", time.Minute)
	equal(errors.Is(err, context.DeadlineExceeded), true)
	within(1500*time.Millisecond, started)
	equal(len(must(direct.Do(ctx, "RLOCK.WAITERS", "ends").Slice())), 0)
	must(0, locks.Release(ctx, first))
	assertFree("ends")
	ok("a wait whose context ends leaves nothing behind")
}

func cutConnections(locks *Locks) {
	for _, kind := range []string{"normal", "pubsub"} {
		first := acquire(locks, "cutoff", time.Second)
		granted := make(chan *Hold)
		go func() { granted <- acquire(locks, "cutoff", 15*time.Second) }()
		time.Sleep(300 * time.Millisecond)
		direct.Do(ctx, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
		if kind == "normal" {
			time.Sleep(6200 * time.Millisecond) // Beyond the library's timeout of 5 s.
		}
		started := time.Now()
		must(0, locks.Release(ctx, first))
		hold := <-granted
		within(3500*time.Millisecond, started)
		equal(holds(hold.Key, hold.Owner), 1)
		must(0, locks.Release(ctx, hold))
		assertFree("cutoff")
	}
	ok("a wait of 6.5 s goes on when its connection, or its subscription, is cut")
}

func twoWaitersInOneName() {
	must(direct.Do(ctx, "RLOCK.ACQUIRE", "in-one-name", "holder").Result())
	before := requests()
	limited, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	older, newer := NewLocks(ctx, direct), NewLocks(ctx, direct)
	superseded, granted := make(chan error, 1), make(chan *Hold, 1)
	hold := func() *Hold { return &Hold{Key: "in-one-name", Owner: "one-owner", Lease: time.Minute} }
	go func() {
		_, err := older.acquire(limited, hold())
		superseded <- err
	}()
	for len(must(direct.Do(ctx, "RLOCK.WAITERS", "in-one-name").Slice())) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	go func() { granted <- must(newer.acquire(limited, hold())) }()
	time.Sleep(5 * time.Second)
	if made := requests() - before; made >= 10 {
		log.Panicf("%d requests in 5 s", made)
	}
	equal(strings.HasPrefix((<-superseded).Error(), "SUPERSEDED "), true)
	must(direct.Do(ctx, "RLOCK.RELEASE", "in-one-name", "holder").Result())
	must(0, newer.Release(ctx, <-granted))
	assertFree("in-one-name")
	must(0, errors.Join(older.Close(), newer.Close()))
	ok("of two that wait in one owner's name the newer goes on, and the older asks no more")
}

func renewalAndLoss(locks *Locks) {
	err := locks.Held(ctx, "renewed", 1500*time.Millisecond, func(working context.Context, token int64) error {
		time.Sleep(3500 * time.Millisecond)
		must(0, working.Err())
		equal(must(direct.Do(ctx, "RLOCK.PTTL", "renewed").Int64()) > 0, true)
		must(direct.Do(ctx, "RLOCK.FORCERELEASE", "renewed", "TOKEN", token).Result())
		return sleep(working, 2*time.Second)
	})
	equal(errors.Is(err, ErrLost), true)
	assertFree("renewed")
	ok("held for longer than its lease; cancelled when it is lost")
}

func lateReply() {
	// Without this option go-redis waits for its own timeout, whatever the context says.
	client := redis.NewClient(&redis.Options{Addr: losing.Options().Addr, ContextTimeoutEnabled: true})
	locks := NewLocks(ctx, client)
	limited, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	_, err := locks.Acquire(limited, "late:go", time.Minute)
	equal(err != nil, true)
	assertFree("late:go")
	ok("a reply that comes after the context has ended leaves no hold for nobody")
}

func main() {
	locks := NewLocks(ctx, losing)
	if text, given := os.LookupEnv("ROUNDS"); given { // Only what takes that many.
		rounds = must(strconv.Atoi(text))
		lostRepliesWithoutOnce()
		lostRepliesWithOnce()
		lostReplies(locks)
		lostRepliesOfWaits(locks)
		return
	}
	lostRepliesWithoutOnce()
	lostRepliesWithOnce()
	lostReplies(locks)
	lostRepliesOfWaits(locks)
	manyWaiters(locks)
	endedWaits(locks)
	cutConnections(locks)
	twoWaitersInOneName()
	renewalAndLoss(locks)
	lateReply()
}
