package rlock

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// silence is after which time a subscriber's connection is pinged, and given up if that has no answer.
const silence = 5 * time.Second

var errSubscriptionLost = errors.New("the subscription was lost")

// cluster is what a redis.ClusterClient has beside a redis.UniversalClient.
type cluster interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ReloadState(ctx context.Context)
}

// feed receives the answers to requests that wait: over one connection, or in a cluster over one for
// each node, with a shard channel for each slot.
type feed struct {
	c       *Client
	cluster cluster

	mu      sync.Mutex
	links   map[string]*link // By the node's address.
	subs    map[string]*subscription
	tags    map[uint16]string
	waiters map[int64]chan string
}

// link is a connection. It is not mended: when it fails, all of its subscriptions are gone.
type link struct {
	address string
	pubsub  *redis.PubSub
	ctx     context.Context // Ends with the link.
	end     context.CancelFunc
}

type subscription struct {
	channel   string
	link      *link
	confirmed bool
	ready     chan struct{} // Closed when the server has confirmed it.
	gone      chan struct{} // Closed when it has ended.
	err       error         // Why it has ended, set before gone is closed.
}

func newFeed(c *Client) *feed {
	f := &feed{
		c: c, links: map[string]*link{}, subs: map[string]*subscription{},
		tags: map[uint16]string{}, waiters: map[int64]chan string{},
	}
	f.cluster, _ = c.rdb.(cluster)
	return f
}

// expect returns where the message with this id will arrive.
func (f *feed) expect(id int64) <-chan string {
	f.mu.Lock()
	defer f.mu.Unlock()
	answers := make(chan string, 1)
	f.waiters[id] = answers
	return answers
}

func (f *feed) forget(id int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiters, id)
}

// subscribe returns the subscription for the key when the server has confirmed it.
func (f *feed) subscribe(ctx context.Context, key string) (*subscription, error) {
	channel := "rlock:" + f.c.id
	if f.cluster != nil {
		channel += ":{" + f.tag(slotOf(key)) + "}"
	}
	client, address, err := f.node(ctx, channel)
	if err != nil {
		return nil, err
	}
	s := f.open(channel, address, client)
	select {
	case <-s.ready:
		return s, nil
	case <-s.gone:
		return nil, s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// node returns the node that serves the key, and its address: "" outside a cluster.
func (f *feed) node(ctx context.Context, key string) (redis.UniversalClient, string, error) {
	if f.cluster == nil {
		return f.c.rdb, "", nil
	}
	var node *redis.Client
	var err error
	if _, ended := within(ctx, func() { node, err = f.cluster.MasterForKey(ctx, key) }); ended != nil {
		return nil, "", ended
	}
	if err != nil {
		return nil, "", err
	}
	return node, node.Options().Addr, nil
}

// isHome is whether the node that serves the slot has the subscription. A node that became a replica still
// accepts subscriptions, but its master does not see them, and undoes the grants that it publishes.
func (f *feed) isHome(ctx context.Context, s *subscription) bool {
	_, address, err := f.node(ctx, s.channel)
	return err != nil || address == s.link.address
}

func (f *feed) tag(slot uint16) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tags[slot] == "" {
		f.tags[slot] = tagOf(slot)
	}
	return f.tags[slot]
}

// open returns the subscription to the channel, and begins it if needed.
func (f *feed) open(channel, address string, client redis.UniversalClient) *subscription {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.subs[channel]; s != nil {
		if s.link.address == address {
			return s
		}
		f.lose(s, errSubscriptionLost)
	}
	l := f.links[address]
	if l == nil {
		l = &link{address: address, pubsub: client.Subscribe(f.c.open)}
		l.ctx, l.end = context.WithCancel(f.c.open)
		// A read does not look at its context, so the end of the link closes the connection.
		context.AfterFunc(l.ctx, func() { _ = l.pubsub.Close() })
		f.links[address] = l
		go f.read(l)
	}
	s := &subscription{channel: channel, link: l, ready: make(chan struct{}), gone: make(chan struct{})}
	f.subs[channel] = s
	go func() {
		subscribe := l.pubsub.Subscribe
		if f.cluster != nil {
			subscribe = l.pubsub.SSubscribe
		}
		if err := subscribe(l.ctx, channel); err != nil {
			f.drop(l, err)
		}
	}()
	return s
}

func (f *feed) read(l *link) {
	pinged := false
	for {
		message, err := l.pubsub.ReceiveTimeout(l.ctx, silence)
		var failure net.Error
		if !pinged && errors.As(err, &failure) && failure.Timeout() && l.pubsub.Ping(l.ctx) == nil {
			pinged = true
			continue
		}
		if err != nil {
			if _, moved := redis.IsMovedError(err); moved && f.cluster != nil {
				f.cluster.ReloadState(l.ctx)
			}
			f.drop(l, err)
			return
		}
		pinged = false
		switch message := message.(type) {
		case *redis.Message:
			f.deliver(message.Payload)
		case *redis.Subscription:
			f.confirm(l, message)
		}
	}
}

// deliver gives a message to the request with its id.
func (f *feed) deliver(text string) {
	_, rest, _ := strings.Cut(text, " ")
	digits, _, _ := strings.Cut(rest, " ")
	id, _ := strconv.ParseInt(digits, 10, 64)
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case f.waiters[id] <- text:
	default: // Nobody waits for it any more.
	}
}

// confirm notes that a subscription has begun, or that the server ended it because its slot moved.
func (f *feed) confirm(l *link, m *redis.Subscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.subs[m.Channel]
	switch {
	case s == nil || s.link != l:
	case strings.HasSuffix(m.Kind, "unsubscribe"):
		f.lose(s, errSubscriptionLost)
	case !s.confirmed:
		s.confirmed = true
		close(s.ready)
	}
}

// drop ends a connection and all of its subscriptions.
func (f *feed) drop(l *link, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.links[l.address] == l {
		delete(f.links, l.address)
	}
	for _, s := range f.subs {
		if s.link == l {
			f.lose(s, err)
		}
	}
	l.end()
}

func (f *feed) lose(s *subscription, err error) {
	delete(f.subs, s.channel)
	s.err = err
	close(s.gone)
}
