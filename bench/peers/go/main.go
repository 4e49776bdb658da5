// Package main runs clients of a lock, each in a goroutine, and records what each of them did. It
// calculates nothing. ../README.md has the protocol.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	warmUps         = 20
	manyClients     = 1000 // With this many, the warm-up of each client is short.
	warmUpWait      = time.Minute
	pauseAfterError = 10 * time.Millisecond
)

// A locker is one client's handle of a library.
type locker interface {
	// acquire waits until it has the lock or the context ends. It returns the function that releases
	// the lock, or nil without an error if the wait timed out.
	acquire(ctx context.Context, key string) (release, error)
}

type release func(ctx context.Context) error

// The driver's arguments. Kind of lock, variant and peer are words of peer.json.
type options struct {
	peer, server, lock, variant, key, hold, out string
	clients, first, locks, permits              int
	seconds                                     float64
	section, lease                              time.Duration
}

// Each peer connects once, and returns a function that connects one client.
var peers = map[string]func(ctx context.Context, o *options) (func(ctx context.Context) (locker, error), error){
	"redsync":            connectRedsync,
	"redislock":          connectRedislock,
	"plain":              connectPlain,
	"delex":              connectPlain,
	"delifeq":            connectPlain,
	"msetex":             connectPlain,
	"rlock-go":           connectRlock,
	"rlock-go-on-redis":  connectRlock,
	"rlock-go-on-valkey": connectRlock,
	"etcd":               connectEtcd,
	"postgresql":         connectPostgresql,
}

type pair struct {
	client, lock            int
	asked, got, free, freed int64
}

type program struct {
	*options
	saying sync.Mutex
	errors int
	pairs  []pair
	stream bool
}

func parseOptions() *options {
	o := &options{}
	text := map[string]*string{"peer": &o.peer, "server": &o.server, "lock": &o.lock, "variant": &o.variant, "key": &o.key, "hold": &o.hold, "out": &o.out}
	for name, value := range text {
		flag.StringVar(value, name, "", "")
	}
	numbers := map[string]*int{"clients": &o.clients, "first": &o.first, "locks": &o.locks, "permits": &o.permits}
	for name, value := range numbers {
		flag.IntVar(value, name, 0, "")
	}
	flag.Float64Var(&o.seconds, "seconds", 0, "")
	sectionUs := flag.Int64("section-us", 0, "")
	leaseMs := flag.Int64("lease-ms", 0, "")
	flag.Parse()
	o.section, o.lease = time.Duration(*sectionUs)*time.Microsecond, time.Duration(*leaseMs)*time.Millisecond
	return o
}

// CLOCK_MONOTONIC, which programs in other languages read too. The time package does not expose it.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		log.Fatal(err)
	}
	return t.Nano()
}

func main() {
	log.SetFlags(0)
	p := &program{options: parseOptions(), stream: os.Getenv("PEERS_STREAM") == "1"}
	connect, known := peers[p.peer]
	if !known {
		log.Fatalf("unknown peer %q", p.peer)
	}
	ctx := context.Background()
	lockers, err := p.start(ctx, connect)
	if err != nil {
		log.Fatal(err)
	}
	p.say("ready")
	if line, _ := bufio.NewReader(os.Stdin).ReadString('\n'); line != "go\n" {
		os.Exit(1)
	}
	p.run(ctx, lockers)
	if err := p.write(); err != nil {
		log.Fatal(err)
	}
	p.say("done %d %d", len(p.pairs), p.errors)
}

// Connects all clients at the same time, and warms each up on its own lock.
func (p *program) start(ctx context.Context, connect func(context.Context, *options) (func(context.Context) (locker, error), error)) ([]locker, error) {
	client, err := connect(ctx, p.options)
	if err != nil {
		return nil, err
	}
	lockers, failures := make([]locker, p.clients), make(chan error, p.clients)
	for i := range lockers {
		go func() {
			locker, err := client(ctx)
			lockers[i] = locker
			if err == nil {
				err = p.warmUp(ctx, locker, fmt.Sprintf("%s:warm:%d", p.key, p.first+i))
			}
			failures <- err
		}()
	}
	for range lockers {
		if err := <-failures; err != nil {
			return nil, err
		}
	}
	return lockers, nil
}

func (p *program) warmUp(ctx context.Context, locker locker, key string) error {
	ctx, cancel := context.WithTimeout(ctx, warmUpWait)
	defer cancel()
	times := warmUps
	if p.clients >= manyClients {
		times = 2
	}
	for range times {
		free, err := locker.acquire(ctx, key)
		if free == nil {
			return err
		}
		if err := free(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *program) run(ctx context.Context, lockers []locker) {
	end := time.Now().Add(time.Duration(p.seconds * float64(time.Second)))
	var all sync.WaitGroup
	for i, locker := range lockers {
		all.Go(func() {
			client := p.first + i
			if p.hold == "yes" {
				p.keep(ctx, client, locker, end)
			} else {
				p.work(ctx, client, locker, end)
			}
		})
	}
	all.Wait()
}

func (p *program) keep(ctx context.Context, client int, locker locker, end time.Time) {
	waiting, cancel := context.WithTimeout(ctx, warmUpWait)
	defer cancel()
	if free, err := locker.acquire(waiting, p.lockOf(client)); free == nil {
		p.fail(client, err)
		return
	}
	p.say("held")
	time.Sleep(time.Until(end))
}

// The keys of a lock of the kind many.
func manyKeys(name string) []string {
	keys := make([]string, 4)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s:%d", name, i)
	}
	return keys
}

func (p *program) lockOf(client int) string { return fmt.Sprintf("%s:%d", p.key, client%p.locks) }

func (p *program) work(ctx context.Context, client int, locker locker, end time.Time) {
	waiting, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	key, lock := p.lockOf(client), client%p.locks
	var pairs []pair
	for time.Now().Before(end) {
		done := pair{client: client, lock: lock, asked: now()}
		free, err := locker.acquire(waiting, key)
		if err == nil && free != nil {
			done.got = now()
			if p.stream {
				p.say("got %d %d %d", client, lock, done.got)
			}
			if p.section > 0 {
				time.Sleep(p.section)
			}
			done.free = now()
			if err = free(ctx); err == nil {
				done.freed = now()
				pairs = append(pairs, done)
			}
		} else if !time.Now().Before(end) {
			break // The wait has timed out, which is not an error.
		}
		if err != nil {
			p.fail(client, err)
			time.Sleep(pauseAfterError)
		}
	}
	p.saying.Lock()
	defer p.saying.Unlock()
	p.pairs = append(p.pairs, pairs...)
}

func (p *program) say(format string, values ...any) {
	p.saying.Lock()
	defer p.saying.Unlock()
	fmt.Printf(format+"\n", values...)
}

func (p *program) fail(client int, err error) {
	p.saying.Lock()
	defer p.saying.Unlock()
	if p.errors++; p.errors == 1 {
		log.Printf("client %d: %v", client, err)
	}
}

func (p *program) write() error {
	file, err := os.Create(p.out)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(file)
	for _, d := range p.pairs {
		fmt.Fprintf(out, "%d,%d,%d,%d,%d,%d\n", d.client, d.lock, d.asked, d.got, d.free, d.freed)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return file.Close()
}
