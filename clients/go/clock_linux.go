package rlock

import (
	"time"

	"golang.org/x/sys/unix"
)

// systemClock reads CLOCK_BOOTTIME, which never steps and goes on during suspend.
func systemClock() func() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return combinedClock()
	}
	return func() time.Duration {
		var t unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
		return time.Duration(t.Nano())
	}
}
