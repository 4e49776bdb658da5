package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rlock-redis/rlock-go"
)

// counting remembers how many calls were inside at the same time, and the tokens.
type counting struct {
	mu           sync.Mutex
	inside, most int
	tokens       []int64
}

func (c *counting) Ship(ctx context.Context, _ string, token int64) error {
	c.mu.Lock()
	c.inside++
	c.most = max(c.most, c.inside)
	c.tokens = append(c.tokens, token)
	c.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	c.mu.Lock()
	c.inside--
	c.mu.Unlock()
	return ctx.Err()
}

func client(t *testing.T) *rlock.Client {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Getenv("PORT")})
	locks := rlock.New(rdb)
	t.Cleanup(func() {
		_ = locks.Close()
		_ = rdb.Close()
	})
	return locks
}

func ship(t *testing.T, server *httptest.Server) int {
	response, err := http.Post(server.URL+"/orders/7/ship", "", nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

func TestOneOrderIsShippedOnceAtATime(t *testing.T) {
	store := &counting{}
	one, other := httptest.NewServer(Handler(client(t), store)), httptest.NewServer(Handler(client(t), store))
	defer one.Close()
	defer other.Close()
	var all sync.WaitGroup
	for range 10 {
		for _, server := range []*httptest.Server{one, other} {
			all.Go(func() {
				if status := ship(t, server); status != http.StatusNoContent {
					t.Errorf("status %d", status)
				}
			})
		}
	}
	all.Wait()
	if store.most != 1 || len(store.tokens) != 20 {
		t.Fatalf("%d inside at the same time, %d shipped", store.most, len(store.tokens))
	}
	for i, token := range store.tokens[1:] {
		if token <= store.tokens[i] {
			t.Fatalf("tokens do not rise: %v", store.tokens)
		}
	}
	fmt.Println("ok  go: requests of two servers ship an order one after the other")
}

func TestAPortThatIsInUseEndsTheProgramWithAnError(t *testing.T) {
	t.Setenv("REDIS_URL", "redis://127.0.0.1:"+os.Getenv("PORT"))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := run(listener.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("got %v", err)
	}
	fmt.Println("ok  go: a port that is in use is an error")
}

// lossy loses the lock while it works.
type lossy struct{ *redis.Client }

func (l lossy) Ship(ctx context.Context, order string, _ int64) error {
	l.Del(ctx, "order:"+order)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(30 * time.Second):
		return errors.New("the loss was not told")
	}
}

func TestALostLockEndsTheWork(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Getenv("PORT")})
	defer rdb.Close()
	server := httptest.NewServer(Handler(client(t), lossy{rdb}))
	defer server.Close()
	if status := ship(t, server); status != http.StatusServiceUnavailable {
		t.Fatalf("status %d", status)
	}
	fmt.Println("ok  go: a lost lock ends the work of its request")
}

func TestAnOrderThatIsLockedIsAConflict(t *testing.T) {
	hold, err := client(t).Lock(context.Background(), "order:7")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(Handler(client(t), &counting{}))
	defer server.Close()
	if status := ship(t, server); status != http.StatusConflict {
		t.Fatalf("status %d", status)
	}
	if err := hold.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	if status := ship(t, server); status != http.StatusNoContent {
		t.Fatalf("status %d", status)
	}
	fmt.Println("ok  go: a request that waits too long gets 409")
}

func TestAnOutageIsNoConflict(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	rdb := redis.NewClient(&redis.Options{Addr: address}) // Nobody listens there.
	locks := rlock.New(rdb)
	defer rdb.Close()
	defer locks.Close()
	server := httptest.NewServer(Handler(locks, &counting{}))
	defer server.Close()
	if status := ship(t, server); status != http.StatusServiceUnavailable {
		t.Fatalf("status %d", status)
	}
	fmt.Println("ok  go: a request during an outage gets 503")
}
