package rlock

import (
	"sync"
	"time"
)

// combinedClock returns a clock that moves by the larger advance of the monotonic and the wall
// clock between two calls. The monotonic clock may stand still while the machine is suspended,
// and the wall clock may be set back: a lease must not look longer through either.
func combinedClock() func() time.Duration {
	var mu sync.Mutex
	var now time.Duration
	last := time.Now()
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		next := time.Now()
		now += max(next.Sub(last), next.Round(0).Sub(last.Round(0)))
		last = next
		return now
	}
}
