// Package testserver starts servers with the module, and proxies that harm connections, for tests.
package testserver

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is a server with the module that ends with the test.
type Server struct {
	Addr    string
	Process *os.Process
}

// Start starts a server. RLOCK_MODULE names the module, RLOCK_SERVER the server's program.
func Start(t testing.TB, options ...string) *Server {
	t.Helper()
	module := os.Getenv("RLOCK_MODULE")
	if module == "" {
		t.Skip("RLOCK_MODULE does not name the module")
	}
	return StartPlain(t, append([]string{"--loadmodule", module}, options...)...)
}

// StartPlain starts a server without the module.
func StartPlain(t testing.TB, options ...string) *Server {
	t.Helper()
	program := os.Getenv("RLOCK_SERVER")
	if program == "" {
		program = "redis-server"
	}
	for range 5 { // Somebody else may take the port before the server does.
		port := FreePort(t)
		dir := t.TempDir()
		arguments := append([]string{
			"--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", dir, "--logfile", filepath.Join(dir, "log"),
		}, options...)
		command := exec.Command(program, arguments...)
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		exited := make(chan struct{})
		go func() {
			_ = command.Wait()
			close(exited)
		}()
		t.Cleanup(func() {
			_ = command.Process.Kill()
			<-exited
		})
		s := &Server{Addr: "127.0.0.1:" + port, Process: command.Process}
		if s.up(exited) {
			return s
		}
	}
	t.Fatal("the server does not start")
	return nil
}

// up waits until this very process serves the port: two servers may have been given the same one.
func (s *Server) up(exited <-chan struct{}) bool {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer func() { _ = rdb.Close() }()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		select {
		case <-exited:
			return false
		default:
		}
		info, _ := rdb.Info(context.Background(), "server").Result()
		if strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", s.Process.Pid)) {
			return true
		}
	}
	return false
}

// FreePort returns a port that is free, also with 10000 more for the bus of a cluster.
func FreePort(t testing.TB) string {
	t.Helper()
	for range 100 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := listener.Addr().(*net.TCPAddr).Port
		_ = listener.Close()
		if port < 55000 {
			return fmt.Sprint(port)
		}
	}
	t.Fatal("no port is free")
	return ""
}

// StartCluster starts three masters that serve all slots.
func StartCluster(t testing.TB) []*Server {
	t.Helper()
	var nodes []*Server
	arguments := []string{"--cluster", "create"}
	for range 3 {
		node := Start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "5000")
		nodes = append(nodes, node)
		arguments = append(arguments, node.Addr)
	}
	output, err := exec.Command("redis-cli", append(arguments, "--cluster-yes")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	for _, node := range nodes {
		rdb := redis.NewClient(&redis.Options{Addr: node.Addr})
		Eventually(t, func() bool {
			info, _ := rdb.ClusterInfo(context.Background()).Result()
			return strings.Contains(info, "cluster_state:ok")
		})
		_ = rdb.Close()
	}
	return nodes
}

// Eventually waits until the condition is true.
func Eventually(t testing.TB, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come true")
		}
	}
}

// Proxy passes connections on to a server.
type Proxy struct {
	Addr     string
	target   string
	listener net.Listener

	mu      sync.Mutex
	changed *sync.Cond
	stalled bool
	mute    int // Replies to swallow, each with its connection.
	delay   time.Duration
	conns   map[net.Conn]struct{}
}

// StartProxy starts a proxy that ends with the test.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: listener.Addr().String(), target: target, listener: listener, conns: map[net.Conn]struct{}{}}
	p.changed = sync.NewCond(&p.mu)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(conn)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		p.Stall(false)
		p.Cut()
	})
	return p
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	p.conns[client], p.conns[server] = struct{}{}, struct{}{}
	p.mu.Unlock()
	go p.pass(client, server, false)
	p.pass(server, client, true)
}

// pass delays each piece without delaying those behind it even more.
func (p *Proxy) pass(from, to net.Conn, replies bool) {
	type piece struct {
		bytes []byte
		due   time.Time
	}
	pieces := make(chan piece, 10000)
	defer close(pieces)
	go func() {
		defer func() {
			_, _ = from.Close(), to.Close()
			for range pieces {
			}
		}()
		for piece := range pieces {
			time.Sleep(time.Until(piece.due))
			p.mu.Lock()
			for p.stalled {
				p.changed.Wait()
			}
			mute := replies && p.mute > 0
			if mute {
				p.mute--
			}
			p.mu.Unlock()
			if mute {
				return
			}
			if _, err := to.Write(piece.bytes); err != nil {
				return
			}
		}
	}()
	for {
		buffer := make([]byte, 64*1024)
		n, err := from.Read(buffer)
		if err != nil {
			p.mu.Lock()
			delete(p.conns, from)
			p.mu.Unlock()
			return
		}
		p.mu.Lock()
		due := time.Now().Add(p.delay / 2)
		p.mu.Unlock()
		pieces <- piece{buffer[:n], due}
	}
}

// Stall stops all bytes in both directions, or lets them go on.
func (p *Proxy) Stall(stalled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = stalled
	p.changed.Broadcast()
}

// Delay delays answers by a round trip of this length.
func (p *Proxy) Delay(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// LoseReplies loses the next n replies together with their connections.
func (p *Proxy) LoseReplies(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = n
}

// LosesReplies reports whether there are replies left to lose.
func (p *Proxy) LosesReplies() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mute > 0
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
	clear(p.conns)
}
