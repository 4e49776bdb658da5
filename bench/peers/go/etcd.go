package main

import (
	"context"
	"math"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

const etcdDialTimeout = 5 * time.Second

// etcd's concurrency.Mutex, with one client for the process and one session for each of its users.
// The session keeps its lease alive. Waiters are served in the order of their keys, so the lock is
// fair.
type etcdLocker struct {
	*concurrency.Session
}

func connectEtcd(_ context.Context, o *options) (func(context.Context) (locker, error), error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{o.server}, DialTimeout: etcdDialTimeout, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	lease := int(math.Ceil(o.lease.Seconds())) // It supports whole seconds only.
	return func(context.Context) (locker, error) {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(lease))
		return &etcdLocker{session}, err
	}, nil
}

func (l *etcdLocker) acquire(ctx context.Context, key string) (release, error) {
	mutex := concurrency.NewMutex(l.Session, "/"+key+"/")
	if err := mutex.Lock(ctx); err != nil {
		return nil, err
	}
	return mutex.Unlock, nil
}
