package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rlock-redis/rlock-go"
)

var (
	rdb    = redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	client = rlock.New(rdb)
)

func Example() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	client := rlock.New(rdb)
	defer client.Close()

	err := client.Run(ctx, "orders:42", func(ctx context.Context, hold *rlock.Hold) error {
		return writeToTheDatabase(ctx, hold.Token())
	}, rlock.WithTimeout(10*time.Second))
	switch {
	case errors.Is(err, rlock.ErrTimeout):
		fmt.Println("somebody else holds it")
	case errors.Is(err, rlock.ErrLost):
		fmt.Println("the lock was lost before the work was done")
	}
}

func ExampleClient_Lock() {
	ctx := context.Background()
	hold, err := client.Lock(ctx, "orders:42", rlock.WithLease(10*time.Second))
	if err != nil {
		return
	}
	defer hold.Release(ctx)
	_ = writeToTheDatabase(hold.Context(), hold.Token())
}

func ExampleClient_TryLock() {
	hold, err := client.TryLock(context.Background(), "nightly-report")
	if errors.Is(err, rlock.ErrNotAcquired) {
		return // Another process does it.
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	// At most once an hour, whatever the clocks of the machines say.
	_ = hold.ReleaseAndKeep(context.Background(), time.Hour)
}

func ExampleClient_Acquire() {
	ctx := context.Background()
	if _, err := client.InitSemaphore(ctx, "printers", 3, 0); err != nil {
		return
	}
	hold, err := client.Acquire(ctx, "printers", 1)
	if err != nil {
		return
	}
	defer hold.Release(ctx)
}

func ExampleClient_LockMany() {
	ctx := context.Background()
	hold, err := client.LockMany(ctx, []string{"{bank}account:1", "{bank}account:2"})
	if err != nil {
		return
	}
	defer hold.Release(ctx)
	fmt.Println(hold.Tokens())
}

func ExampleClient_Lead() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	err := client.Lead(ctx, "scheduler", func(ctx context.Context, hold *rlock.Hold) error {
		for ctx.Err() == nil { // Ends when the lead is lost.
			runDueJobs(ctx, hold.Token())
		}
		return nil
	}, rlock.WithNote("host-1"))
	fmt.Println(err)
}

func writeToTheDatabase(context.Context, int64) error { return nil }
func runDueJobs(context.Context, int64)               {}
