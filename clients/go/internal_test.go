package rlock

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestSlots(t *testing.T) {
	for key, slot := range map[string]uint16{"123456789": 12739, "foo": 12182, "{foo}1": 12182, "a{}b": 3388, "x{foo": 0} {
		if got := slotOf(key); slot != 0 && key != "a{}b" && got != slot {
			t.Errorf("%s is in slot %d, not %d", key, got, slot)
		}
	}
	if slotOf("a{}b") != crc16("a{}b")%slots || slotOf("k}{foo}") != slotOf("foo") {
		t.Error("hash tags")
	}
	for _, slot := range []uint16{0, 1, 8191, 16383} {
		if slotOf("rlock:id:{"+tagOf(slot)+"}") != slot {
			t.Error(slot)
		}
	}
}

func TestTokensAreWholeNumbersAboveZero(t *testing.T) {
	one, two := &grant{keys: []string{"a"}}, &grant{kind: many, keys: []string{"a", "b"}}
	for _, token := range []any{int64(0), "0", int64(-1), "WAITING", nil, "", "1.5"} {
		if tokens, _ := one.granted([]any{token, int64(5)}); tokens != nil {
			t.Errorf("%v is taken for a token", token)
		}
	}
	for _, answer := range []any{"WAITING", nil, int64(7), []any{}, []any{"7"}, []any{"7", "5", "5"}, []any{"7", "-1"}, []any{"7", "x"}} {
		if tokens, _ := one.granted(answer); tokens != nil {
			t.Errorf("%v is taken for a grant", answer)
		}
	}
	for _, token := range []any{int64(7), "7"} {
		if tokens, left := one.granted([]any{token, "0"}); len(tokens) != 1 || tokens[0] != 7 || left != 0 {
			t.Error(token)
		}
	}
	tokens, left := two.granted([]any{"1", int64(2), "5"})
	if none, _ := two.granted([]any{"1", "0", "5"}); none != nil || !slices.Equal(tokens, []int64{1, 2}) || left != 5 {
		t.Error("tokens of many keys")
	}
}

func TestCombinedClockFollowsTheFasterClock(t *testing.T) {
	now := combinedClock()
	first := now()
	time.Sleep(20 * time.Millisecond)
	if advance := now() - first; advance < 20*time.Millisecond {
		t.Error(advance)
	}
}

func TestAnswerToAnEarlierRenewalIsIgnored(t *testing.T) {
	c := New(redis.NewClient(&redis.Options{}), WithClock(func() time.Duration { return 0 }))
	g, _ := c.newGrant(mutex, []string{"k"}, 0, nil)
	g.believe([]int64{1}, 0, 0, 2000, 0)
	g.renewed(reply{value: int64(20_000), sent: 2 * time.Second})
	g.renewed(reply{value: int64(30_000), sent: time.Second})
	if g.deadline != 22*time.Second-202*time.Millisecond {
		t.Error(g.deadline)
	}
}

func TestSubscriptionHearsOnlyItsOwnLink(t *testing.T) {
	f := newFeed(&Client{})
	old := &link{address: "a"}
	s := &subscription{channel: "c", link: &link{address: "b"}, ready: make(chan struct{}), gone: make(chan struct{})}
	f.subs["c"] = s
	// Another node serves the slot now, so the old link was replaced. Its last messages are read after that.
	steps := []struct {
		link        *link
		kind        string
		ready, gone bool
	}{
		{old, "ssubscribe", false, false},
		{old, "sunsubscribe", false, false},
		{s.link, "ssubscribe", true, false},
		{old, "sunsubscribe", true, false},
		{s.link, "sunsubscribe", true, true},
	}
	for _, step := range steps {
		f.confirm(step.link, &redis.Subscription{Kind: step.kind, Channel: "c"})
		if isClosed(s.ready) != step.ready || isClosed(s.gone) != step.gone {
			t.Fatalf("%s of node %s: ready %t, gone %t", step.kind, step.link.address, isClosed(s.ready), isClosed(s.gone))
		}
	}
}

// instant answers commands before the caller looks for the answer.
type instant struct{}

func (instant) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (instant) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (instant) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return nil }
}

func TestAnsweredCommandIsNotLost(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(50)) // The system suspends some of so many.
	c := New(redis.NewClient(&redis.Options{}))
	c.rdb.AddHook(instant{})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 2000 {
				if replies, _ := c.send(context.Background(), time.Minute, []any{"ECHO", "k"}); replies[0].err != nil {
					t.Error(replies[0].err)
					return
				}
			}
		})
	}
	all.Wait()
}

// stalledCluster answers nothing, as go-redis does while no node answers, whatever the context says.
type stalledCluster struct{ cluster }

func (stalledCluster) MasterForKey(context.Context, string) (*redis.Client, error) { select {} }

func TestNodeOfAStalledClusterIsAwaitedAsLongAsTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := (&feed{cluster: stalledCluster{}}).node(ctx, "k"); err != context.Canceled {
		t.Error(err)
	}
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
