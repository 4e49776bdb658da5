package rlock

import (
	"context"
	"errors"
)

// Run acquires the mutex, calls work while it is held, and releases it. The context of work ends when
// the lock is lost. Run returns the error of the acquisition or of work; [Hold.Run] says more.
func (c *Client) Run(ctx context.Context, key string, work func(ctx context.Context, hold *Hold) error, options ...Option) error {
	hold, err := c.Lock(ctx, key, options...)
	if err != nil {
		return err
	}
	return hold.Run(work)
}

// Lead takes part in the election of a leader: it waits for the mutex, calls lead while it is held, and
// waits again whenever the lock was lost. It returns when lead returns while it still leads, with the
// error of lead; when ctx ends, with its error; and when the server refuses the request. lead must
// return when its context ends.
func (c *Client) Lead(ctx context.Context, key string, lead func(ctx context.Context, hold *Hold) error, options ...Option) error {
	for {
		hold, err := c.Lock(ctx, key, options...)
		if err != nil {
			return err
		}
		var led error
		lost := false
		err = hold.Run(func(ctx context.Context, hold *Hold) error {
			led = lead(ctx, hold)
			lost = hold.lost()
			return led
		})
		if !lost && (led != nil || !errors.Is(err, ErrLost)) {
			return err
		}
	}
}
