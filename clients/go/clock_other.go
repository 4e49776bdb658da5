//go:build !linux

package rlock

import "time"

func systemClock() func() time.Duration { return combinedClock() }
