package rlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// The reasons of an [Error]. Test for them with [errors.Is].
var (
	// ErrNotAcquired: the lock is held by another owner, and the call was not to wait.
	ErrNotAcquired = errors.New("not acquired")
	// ErrTimeout: the time to wait has passed, or the deadline of the caller's context. It is also
	// [ErrUnavailable] if the server was unreachable, silent or refusing when the time ended, and only
	// that tells an outage from a lock that another owner held for so long.
	ErrTimeout = errors.New("timed out waiting for the lock")
	// ErrLost: the hold ended before it was released. It is the cause of [Hold.Context] then.
	ErrLost = errors.New("the lock was lost")
	// ErrDeadlock: the owner would wait for itself through other owners. Release what it
	// holds, and start again.
	ErrDeadlock = errors.New("deadlock")
	// ErrSuperseded: a newer request of the same owner for the same key ended this one.
	ErrSuperseded = errors.New("superseded by a newer request of the same owner")
	// ErrModuleMissing: the server does not know the commands of rlock.
	ErrModuleMissing = errors.New("the server has no rlock module")
	// ErrModuleTooOld: the server's module does not know an option that this package needs.
	ErrModuleTooOld = errors.New("the server's rlock module is too old")
	// ErrClosed: the [Client] was closed.
	ErrClosed = errors.New("the client is closed")
	// ErrUnavailable: the server could not be reached or does not serve at present. A later
	// attempt may succeed; [Error.RetryAfter] is how long the server asks to wait, if it says.
	ErrUnavailable = errors.New("unavailable")
	// ErrRefused: the server refused the request, and would refuse it again. [Error.Code] says why.
	ErrRefused = errors.New("refused")
)

// Error is every error of this package but misuse: invalid options are reported by plain errors.
// [errors.Is] finds its Reason as well as its Err.
type Error struct {
	// Reason is one of the Err variables of this package, or [context.Canceled].
	Reason error
	// Key is the first key of the request.
	Key string
	// Code is the first word of the server's error, if there was one.
	Code string
	// RetryAfter is the time after which the server expects to serve again, 0 if unknown.
	RetryAfter time.Duration
	// Err is the underlying error, if there is one.
	Err error
}

// Error returns the reason, the key and the text of the underlying error.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("rlock: %v: %q", e.Reason, e.Key)
	}
	return fmt.Sprintf("rlock: %v: %q: %v", e.Reason, e.Key, e.Err)
}

// Unwrap returns the reason and the underlying error.
func (e *Error) Unwrap() []error { return []error{e.Reason, e.Err} }

// errSilent stands for an answer that did not come in time.
var errSilent = errors.New("the server did not answer in time")

// serverError is an error that the server published instead of replying it.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

// retried are the codes of errors that may pass.
const retried = " UNBLOCKED READONLY LOADING MASTERDOWN MISCONF OOM BUSY CLUSTERDOWN TRYAGAIN QUARANTINE NOREPLICAS MOVED ASK "

// code returns the first word of the server's error, and "" for an error that is not the server's.
func code(err error) string {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return ""
	}
	word, _, _ := strings.Cut(answer.Error(), " ")
	return word
}

// classify wraps what a command failed with.
func classify(key string, err error) *Error {
	e := &Error{Reason: ErrUnavailable, Key: key, Code: code(err), Err: err}
	text := err.Error()
	switch {
	case errors.As(err, &e): // It is one already.
	case e.Code == "" || redis.IsMaxClientsError(err):
	case e.Code == "DEADLOCK":
		e.Reason = ErrDeadlock
	case e.Code == "SUPERSEDED":
		e.Reason = ErrSuperseded
	case strings.HasPrefix(text, "ERR unknown command"):
		e.Reason = ErrModuleMissing
	case strings.HasPrefix(text, "ERR unknown option"):
		e.Reason = ErrModuleTooOld
	case !strings.Contains(retried, " "+e.Code+" "):
		e.Reason = ErrRefused
	case e.Code == "QUARANTINE": // … ; N ms left
		_, text, _ = strings.Cut(text, "; ")
		_, _ = fmt.Sscan(text, &e.RetryAfter)
		e.RetryAfter *= time.Duration(time.Millisecond)
	}
	return e
}

// retryable reports whether the same request may succeed later.
func (e *Error) retryable() bool {
	return e.Reason == ErrUnavailable && !errors.Is(e.Err, redis.ErrClosed)
}

// outage is an error that is [ErrUnavailable], and nil without a cause.
func outage(key string, cause error) error {
	if cause == nil {
		return nil
	}
	return classify(key, cause)
}

// ended wraps the end of a context. last is what the server could not do until then, if anything.
func ended(ctx context.Context, key string, last error) *Error {
	cause := context.Cause(ctx)
	switch {
	case cause == ErrClosed || cause == ErrTimeout || cause == ErrUnavailable:
		return &Error{Reason: cause, Key: key, Code: code(last), Err: outage(key, last)}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &Error{Reason: ErrTimeout, Key: key, Code: code(last), Err: errors.Join(cause, outage(key, last))}
	}
	return &Error{Reason: context.Canceled, Key: key, Err: cause}
}
