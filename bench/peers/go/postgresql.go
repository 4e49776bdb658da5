package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The error code of a server that listens but is not ready yet.
const cannotConnectNow = "57P03"

var errNotHeld = errors.New("the session did not hold the lock")

// PostgreSQL's session-level advisory locks, with pgx. Each client has a connection, because the
// lock belongs to the session. There is no lease.
type postgresqlLocker struct {
	*pgx.Conn
	lock, unlock string
}

func connectPostgresql(_ context.Context, o *options) (func(context.Context) (locker, error), error) {
	statements := postgresqlLocker{lock: "SELECT pg_advisory_lock(hashtextextended($1, 0))", unlock: "SELECT pg_advisory_unlock(hashtextextended($1, 0))"}
	if o.lock == "read" {
		statements.lock = "SELECT pg_advisory_lock_shared(hashtextextended($1, 0))"
		statements.unlock = "SELECT pg_advisory_unlock_shared(hashtextextended($1, 0))"
	}
	return func(ctx context.Context) (locker, error) {
		connection, err := connectWhenReady(ctx, "postgres://postgres@"+o.server+"/postgres?sslmode=disable")
		client := statements
		client.Conn = connection
		return &client, err
	}, nil
}

func connectWhenReady(ctx context.Context, url string) (*pgx.Conn, error) {
	for deadline := time.Now().Add(warmUpWait); ; time.Sleep(100 * time.Millisecond) {
		connection, err := pgx.Connect(ctx, url)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != cannotConnectNow || time.Now().After(deadline) {
			return connection, err
		}
	}
}

func (l *postgresqlLocker) acquire(ctx context.Context, key string) (release, error) {
	if _, err := l.Exec(ctx, l.lock, key); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		var held bool
		if err := l.QueryRow(ctx, l.unlock, key).Scan(&held); err != nil || held {
			return err
		}
		return errNotHeld
	}, nil
}
