// An HTTP service that ships an order once at a time, on however many machines it runs.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rlock-redis/rlock-go"
)

// A Store refuses a write whose token is lower than one that it has seen for the order.
type Store interface {
	Ship(ctx context.Context, order string, token int64) error
}

// Handler serves POST /orders/{id}/ship.
func Handler(locks *rlock.Client, store Store) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}/ship", func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		// The context of the work ends if the lock is lost, or if the caller has gone.
		err := locks.Run(r.Context(), "order:"+id, func(ctx context.Context, hold *rlock.Hold) error {
			if err := store.Ship(ctx, id, hold.Token()); err != nil {
				return errors.Join(err, context.Cause(ctx)) // The cause names the loss.
			}
			return nil
		}, rlock.WithTimeout(2*time.Second), rlock.WithSession(time.Second), rlock.WithNote(r.RemoteAddr))
		switch {
		case err == nil:
			w.WriteHeader(http.StatusNoContent)
		case errors.Is(err, rlock.ErrLost), errors.Is(err, rlock.ErrUnavailable): // After a wait too.
			w.Header().Set("Retry-After", "1")
			http.Error(w, "try again", http.StatusServiceUnavailable)
		case errors.Is(err, rlock.ErrTimeout):
			http.Error(w, "the order is being shipped", http.StatusConflict)
		case r.Context().Err() != nil: // Nobody reads the answer.
		default:
			log.Printf("order %s: %v", id, err)
			http.Error(w, "internal error", http.StatusInternalServerError)
		}
	})
	return mux
}

type printing struct{}

func (printing) Ship(_ context.Context, order string, token int64) error {
	fmt.Println("ships order", order, "with token", token)
	return nil
}

func main() {
	if err := run(":8080"); err != nil {
		log.Fatal(err)
	}
}

func run(address string) error {
	options, err := redis.ParseURL(os.Getenv("REDIS_URL")) // Such as redis://127.0.0.1:6379
	if err != nil {
		return fmt.Errorf("REDIS_URL: %w", err)
	}
	rdb := redis.NewClient(options)
	locks := rlock.New(rdb)
	server := &http.Server{Addr: address, Handler: Handler(locks, printing{}), ReadHeaderTimeout: 5 * time.Second}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err = <-failed: // The port is in use, for instance.
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = server.Shutdown(ctx) // Requests end first,
	_ = locks.Close()        // then locks are released,
	_ = rdb.Close()          // then the connections close.
	return err
}
