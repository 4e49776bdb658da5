// Command conformance answers the requests of clients/conformance/PROTOCOL.md with this package.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"github.com/rlock-redis/rlock-go"
)

type request struct {
	ID           json.RawMessage `json:"id"`
	Do           string          `json:"do"`
	Client       string          `json:"client"`
	URL          string          `json:"url"`
	Cluster      bool            `json:"cluster"`
	Sentinel     *sentinel       `json:"sentinel"`
	CAFile       string          `json:"ca_file"`
	KeyPrefix    string          `json:"key_prefix"`
	Decode       bool            `json:"decode"` // go-redis returns text always.
	Pool         int             `json:"pool"`
	CommandMS    int64           `json:"command_timeout_ms"`
	Driver       string          `json:"driver"`
	Hold         string          `json:"hold"`
	Kind         string          `json:"kind"`
	Keys         []string        `json:"keys"`
	Permits      int64           `json:"permits"`
	WaitMS       *span           `json:"wait_ms"`
	LeaseMS      *span           `json:"lease_ms"`
	FixedLeaseMS *span           `json:"fixed_lease_ms"`
	SessionMS    *span           `json:"session_ms"`
	Owner        string          `json:"owner"`
	Note         string          `json:"note"`
	GraceMS      *span           `json:"grace_ms"`
	Task         string          `json:"task"`
	KeepMS       *span           `json:"keep_ms"`
	Tasks        int             `json:"tasks"`
	Times        int             `json:"times"`
	Spread       int             `json:"spread"`
	OverMS       int64           `json:"over_ms"`
	ForMS        int64           `json:"for_ms"`
	HoldMS       int64           `json:"hold_ms"`
	WorkMS       int64           `json:"work_ms"`
	Fails        string          `json:"fails"`
	IdleMS       *span           `json:"idle_ms"`
	Request      json.RawMessage `json:"request"`
	AdvanceMS    int64           `json:"advance_ms"`
}

// span is a duration of the protocol: milliseconds, or the name of an extreme value.
type span struct {
	time.Duration
	unsupported bool // This language has no such duration.
}

func (s *span) UnmarshalJSON(text []byte) error {
	switch string(text) {
	case `"max"`:
		s.Duration = math.MaxInt64
	case `"min"`:
		s.Duration = math.MinInt64
	case `"inf"`, `"-inf"`, `"nan"`:
		s.unsupported = true
	default:
		var ms float64
		if err := json.Unmarshal(text, &ms); err != nil {
			return err
		}
		s.Duration = time.Duration(ms * float64(time.Millisecond))
	}
	return nil
}

// features are abilities, and the rules that the package keeps of those that are not kept everywhere
// yet.
var features = []string{"cluster", "sentinel", "tls", "clock", "timed", "B29", "B30", "B31", "B32", "B33", "B34", "B35"}

type sentinel struct {
	Master string   `json:"master"`
	Nodes  []string `json:"nodes"`
}

type fields map[string]any

type client struct {
	*rlock.Client
	rdb   redis.UniversalClient
	ahead *atomic.Int64
}

type program struct {
	out sync.Mutex

	mu      sync.Mutex
	clients map[string]client
	holds   map[string]*rlock.Hold
	cancels map[string]context.CancelFunc
	tasks   map[string]chan func()
}

var errUnsupported = errors.New("unsupported")

func clock(id int32) time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(id, &t)
	return time.Duration(t.Nano())
}

func nowUS() int64 { return clock(unix.CLOCK_MONOTONIC).Microseconds() }

func (p *program) write(line fields) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	p.out.Lock()
	defer p.out.Unlock()
	_, _ = os.Stdout.Write(append(text, '\n'))
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func main() {
	p := &program{
		clients: map[string]client{}, holds: map[string]*rlock.Hold{},
		cancels: map[string]context.CancelFunc{}, tasks: map[string]chan func(){},
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		decoder := json.NewDecoder(strings.NewReader(lines.Text()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&r); err != nil {
			p.write(fields{"id": r.ID, "error": "Unsupported", "message": err.Error()})
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		p.mu.Lock()
		p.cancels[string(r.ID)] = cancel
		p.mu.Unlock()
		answer := func() {
			ok, err := p.do(ctx, &r)
			cancel()
			p.mu.Lock()
			delete(p.cancels, string(r.ID))
			p.mu.Unlock()
			if err != nil {
				name, code := name(err)
				p.write(fields{"id": r.ID, "error": name, "code": code, "message": err.Error(), "cause": cause(err)})
				return
			}
			p.write(fields{"id": r.ID, "ok": ok})
		}
		if r.Task == "" {
			go answer()
		} else {
			p.task(r.Task) <- answer
		}
	}
}

// task returns the queue of a goroutine that carries out requests one after another.
func (p *program) task(name string) chan func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tasks[name] == nil {
		queue := make(chan func(), 1000)
		p.tasks[name] = queue
		go func() {
			for answer := range queue {
				answer()
			}
		}()
	}
	return p.tasks[name]
}

func name(err error) (string, string) {
	var e *rlock.Error
	if !errors.As(err, &e) {
		if errors.Is(err, errUnsupported) {
			return "Unsupported", ""
		}
		return "Misuse", ""
	}
	for reason, name := range map[error]string{
		rlock.ErrTimeout: "LockTimeout", rlock.ErrLost: "LockLost", rlock.ErrDeadlock: "Deadlock",
		rlock.ErrSuperseded: "Superseded", rlock.ErrModuleMissing: "ModuleMissing",
		rlock.ErrModuleTooOld: "ModuleTooOld", rlock.ErrClosed: "Closed",
		rlock.ErrUnavailable: "Unavailable", rlock.ErrRefused: "Refused", context.Canceled: "Cancelled",
	} {
		if e.Reason == reason {
			return name, e.Code
		}
	}
	return "LockError", e.Code
}

// cause returns the text of the error that caused another one, except for the end of a context.
func cause(err error) string {
	var e *rlock.Error
	if !errors.As(err, &e) || e.Err == nil || errors.Is(e.Err, context.DeadlineExceeded) {
		return ""
	}
	return e.Err.Error()
}

func (p *program) do(ctx context.Context, r *request) (fields, error) {
	p.mu.Lock()
	c, known := p.clients[r.Client]
	hold := p.holds[r.Hold]
	p.mu.Unlock()
	if !known && r.Client != "" && r.Do != "connect" {
		return nil, fmt.Errorf("no client %q", r.Client)
	}
	if r.Do == "release" || r.Do == "held" {
		if hold == nil {
			return nil, fmt.Errorf("no hold %q", r.Hold)
		}
	}
	switch r.Do {
	case "hello":
		return fields{"language": "go", "package": "rlock-go", "features": features}, nil
	case "connect":
		return fields{}, p.connect(r)
	case "acquire":
		hold, err := acquire(ctx, c, r)
		if errors.Is(err, rlock.ErrNotAcquired) {
			return fields{"tokens": []int64{}, "at_us": nowUS(), "valid_ms": 0}, nil
		}
		if err != nil {
			return nil, err
		}
		at, valid := nowUS(), hold.Remaining().Milliseconds()
		p.keep(r.Hold, hold)
		return fields{"tokens": hold.Tokens(), "at_us": at, "valid_ms": valid}, nil
	case "release":
		if r.KeepMS != nil && r.KeepMS.unsupported {
			return nil, errUnsupported
		}
		if r.KeepMS != nil {
			return fields{}, hold.ReleaseAndKeep(ctx, r.KeepMS.Duration)
		}
		return fields{}, hold.Release(ctx)
	case "held":
		at, valid := nowUS(), hold.Remaining().Milliseconds()
		return fields{"held": hold.Held(), "valid_ms": valid, "at_us": at}, nil
	case "work":
		return p.work(ctx, c, r), nil
	case "run":
		hold, err := acquire(ctx, c, r)
		if err != nil {
			return nil, err
		}
		p.keep(r.Hold, hold)
		err = hold.Run(func(ctx context.Context, _ *rlock.Hold) error {
			select {
			case <-time.After(ms(r.WorkMS)):
			case <-ctx.Done():
			}
			p.write(fields{"event": "step", "hold": r.Hold, "at_us": nowUS()})
			if r.Fails != "" {
				return errors.New(r.Fails)
			}
			return nil
		})
		return fields{"result": "done"}, err
	case "lead":
		options, err := options(r)
		if err != nil {
			return nil, err
		}
		err = c.Lead(ctx, r.Keys[0], func(ctx context.Context, hold *rlock.Hold) error {
			p.write(fields{"event": "elected", "hold": r.Hold, "token": hold.Token(), "at_us": nowUS()})
			p.keep(r.Hold, hold)
			<-ctx.Done()
			return nil
		}, options...)
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		return fields{}, err
	case "init":
		if r.IdleMS == nil {
			r.IdleMS = &span{}
		}
		if r.IdleMS.unsupported {
			return nil, errUnsupported
		}
		made, err := c.InitSemaphore(ctx, r.Keys[0], r.Permits, r.IdleMS.Duration)
		return fields{"made": made}, err
	case "cancel":
		p.mu.Lock()
		cancel := p.cancels[string(r.Request)]
		p.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		return fields{}, nil
	case "clock":
		c.ahead.Add(int64(ms(r.AdvanceMS)))
		return fields{}, nil
	case "close":
		err := c.Close()
		_ = c.rdb.Close()
		return fields{}, err
	case "stats":
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		handles, _ := os.ReadDir("/proc/self/fd")
		return fields{
			"memory_bytes": m.HeapInuse + m.StackInuse, "handles": len(handles), "tasks": runtime.NumGoroutine(),
		}, nil
	case "exit":
		os.Exit(0)
	}
	return nil, fmt.Errorf("%w: %q", errUnsupported, r.Do)
}

func (p *program) connect(r *request) error {
	if r.Driver != "" {
		return errUnsupported
	}
	o, err := redis.ParseURL(r.URL)
	if err != nil && (r.URL != "" || r.Sentinel == nil) {
		return err
	}
	if err != nil {
		o = &redis.Options{}
	}
	if r.CAFile != "" {
		text, err := os.ReadFile(r.CAFile)
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(text)
		if o.TLSConfig == nil {
			o.TLSConfig = &tls.Config{}
		}
		o.TLSConfig.RootCAs = roots
	}
	var timeout time.Duration // 0: that of go-redis.
	if r.CommandMS > 0 {
		timeout = ms(r.CommandMS)
	}
	all := &redis.UniversalOptions{
		Addrs: []string{o.Addr}, DB: o.DB, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig,
		PoolSize: r.Pool, ReadTimeout: timeout, WriteTimeout: timeout, IsClusterMode: r.Cluster,
	}
	if r.Sentinel != nil {
		all.MasterName, all.Addrs = r.Sentinel.Master, r.Sentinel.Nodes
	}
	c := client{rdb: redis.NewUniversalClient(all), ahead: new(atomic.Int64)}
	now := func() time.Duration { return clock(unix.CLOCK_BOOTTIME) + time.Duration(c.ahead.Load()) }
	c.Client = rlock.New(c.rdb, rlock.WithClock(now), rlock.WithPrefix(r.KeyPrefix))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients[r.Client] = c
	return nil
}

func options(r *request) ([]rlock.Option, error) {
	var all []rlock.Option
	for _, o := range []struct {
		span *span
		make func(time.Duration) rlock.Option
	}{
		{r.WaitMS, rlock.WithTimeout}, {r.LeaseMS, rlock.WithLease}, {r.FixedLeaseMS, rlock.WithFixedLease},
		{r.SessionMS, rlock.WithSession}, {r.GraceMS, rlock.WithGrace},
	} {
		if o.span != nil && o.span.unsupported {
			return nil, errUnsupported
		}
		if o.span != nil {
			all = append(all, o.make(o.span.Duration))
		}
	}
	if len(r.Keys) == 0 {
		return nil, errors.New("no keys")
	}
	return append(all, rlock.WithOwner(r.Owner), rlock.WithNote(r.Note)), nil
}

func acquire(ctx context.Context, c client, r *request) (*rlock.Hold, error) {
	all, err := options(r)
	if err != nil {
		return nil, err
	}
	// The context of the request ends with its answer, and the hold goes on.
	holding, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	switch r.Kind {
	case "mutex", "":
		return c.Lock(holding, r.Keys[0], all...)
	case "fair":
		return c.FairLock(holding, r.Keys[0], all...)
	case "read":
		return c.RLock(holding, r.Keys[0], all...)
	case "write":
		return c.WLock(holding, r.Keys[0], all...)
	case "semaphore":
		return c.Acquire(holding, r.Keys[0], max(1, r.Permits), all...)
	case "many":
		return c.LockMany(holding, r.Keys, all...)
	}
	return nil, errUnsupported
}

// keep keeps a hold for later requests, and tells of its loss.
func (p *program) keep(name string, hold *rlock.Hold) {
	p.mu.Lock()
	p.holds[name] = hold
	p.mu.Unlock()
	context.AfterFunc(hold.Context(), func() {
		if context.Cause(hold.Context()) == rlock.ErrLost {
			p.write(fields{"event": "lost", "hold": name, "at_us": nowUS()})
		}
	})
}

func (p *program) work(ctx context.Context, c client, r *request) fields {
	var mu sync.Mutex
	var done, missed, lost int
	failures := map[string]int{}
	var all sync.WaitGroup
	for number := range max(1, r.Tasks) {
		all.Go(func() {
			time.Sleep(ms(r.OverMS) * time.Duration(number) / time.Duration(max(1, r.Tasks)))
			end := time.Now().Add(ms(r.ForMS))
			r := *r
			if r.Spread > 0 {
				r.Keys = []string{r.Keys[0] + strconv.Itoa(number%r.Spread)}
			}
			for n := 0; ctx.Err() == nil && (r.Times > 0 && n < r.Times || r.Times == 0 && time.Now().Before(end)); n++ {
				asked := nowUS()
				hold, err := acquire(ctx, c, &r)
				if errors.Is(err, rlock.ErrNotAcquired) || errors.Is(err, rlock.ErrTimeout) {
					mu.Lock()
					missed++
					mu.Unlock()
					continue
				}
				if err == nil {
					until := time.Now().Add(ms(r.HoldMS))
					if r.ForMS > 0 && end.Before(until) {
						until = end
					}
					p.interval(hold, &r, asked, until)
					err = hold.Release(ctx)
				}
				mu.Lock()
				if errors.Is(err, rlock.ErrLost) {
					lost++
				} else if err != nil {
					name, _ := name(err)
					failures[name]++
				} else {
					done++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return fields{"done": done, "not_acquired": missed, "lost": lost, "errors": failures}
}

// interval works under a hold. The interval ends before the release, or at the deadline that was seen last.
func (p *program) interval(hold *rlock.Hold, r *request, asked int64, end time.Time) {
	from := nowUS()
	to := from
	step := 5 * time.Millisecond
	if r.LeaseMS != nil {
		// Shorter than from a renewal to its deadline, so each deadline is seen.
		step = max(step, r.LeaseMS.Duration/10)
	}
	for {
		now := nowUS()
		left := hold.Remaining()
		if left > 0 {
			to = now + left.Microseconds()
		}
		if left == 0 || !time.Now().Before(end) {
			to = min(to, now)
			break
		}
		select {
		case <-hold.Context().Done():
		case <-time.After(min(time.Until(end), step)):
		}
	}
	tokens := hold.Tokens()
	for i, key := range r.Keys {
		p.write(fields{"event": "interval", "key": key, "token": tokens[i], "asked_us": asked, "from_us": from, "to_us": to})
	}
}
