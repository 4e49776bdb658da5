// Package check decodes the manifest with the types of Kubernetes, strictly: a field that they do not have fails. It
// runs the scripts of the manifest with a Sentinel on this machine.
package check

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func decode[T any](t *testing.T, document []byte) T {
	var into T
	if err := yaml.UnmarshalStrict(document, &into); err != nil {
		t.Fatal(err)
	}
	return into
}

// manifest returns the stateful set and the scripts of rlock.yaml.
func manifest(t *testing.T) (set apps.StatefulSet, scripts map[string]string) {
	text, err := os.ReadFile("../rlock.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var kind meta.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			t.Fatal(err)
		}
		names[kind.Kind] = true
		switch kind.Kind {
		case "Secret":
			decode[core.Secret](t, document)
		case "Service":
			decode[core.Service](t, document)
		case "ConfigMap":
			scripts = decode[core.ConfigMap](t, document).Data
		case "StatefulSet":
			set = decode[apps.StatefulSet](t, document)
		default:
			t.Errorf("unexpected kind %q", kind.Kind)
		}
	}
	if len(names) != 4 {
		t.Errorf("kinds: %v", names)
	}
	return set, scripts
}

func TestManifest(t *testing.T) {
	set, scripts := manifest(t)
	if *set.Spec.Replicas != 3 {
		t.Errorf("%d replicas", *set.Spec.Replicas)
	}
	for _, container := range set.Spec.Template.Spec.Containers {
		script := strings.TrimPrefix(container.Command[1], "/etc/rlock/")
		if scripts[script] == "" {
			t.Errorf("container %s: there is no script %q", container.Name, script)
		}
	}
	// The settings of docs, "Failover without two holders".
	environment := map[string]string{}
	for _, variable := range set.Spec.Template.Spec.Containers[0].Env {
		environment[variable.Name] = variable.Value
	}
	number := func(name string) int {
		n, err := strconv.Atoi(environment[name])
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return n
	}
	if environment["RLOCK_SETTING_EXCLUSION"] != "failover" || number("RLOCK_SETTING_REPLICAS") != int(*set.Spec.Replicas)-1 {
		t.Errorf("%v", environment)
	}
	// For a detection within 5 s: docs/operations/failover.md.
	if number("RLOCK_SETTING_MAX_LEASE_MS") < 15000 {
		t.Errorf("the longest lease is too short: %v", environment)
	}
	if !strings.Contains(scripts["server"], "--repl-ping-replica-period 1") {
		t.Error("repl-ping-replica-period is not 1")
	}
	// A Service of another team must not configure the server.
	if links := set.Spec.Template.Spec.EnableServiceLinks; links == nil || *links {
		t.Error("enableServiceLinks is not false")
	}
}

// pod is a folder with the scripts of the manifest, and with programs in place of those of the image. The programs
// print what they are started with. redis-cli is the real one, and reaches the Sentinel of pod 1 on a port of this
// machine.
type pod struct {
	folder string
}

func newPod(t *testing.T, sentinelPort int) pod {
	client, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Fatal(err)
	}
	_, scripts := manifest(t)
	pod := pod{t.TempDir()}
	for name, script := range scripts {
		script = strings.ReplaceAll(script, "/etc/rlock", pod.folder)
		pod.write(t, name, strings.ReplaceAll(script, "/tmp/sentinel.conf", pod.folder+"/sentinel.conf"))
	}
	pod.write(t, "entrypoint", "#!/bin/sh\necho \"$@\"\n")
	pod.write(t, "redis-server", "#!/bin/sh\ncat \"$1\"\n")
	pod.write(t, "redis-cli", fmt.Sprintf(`#!/bin/sh
[ "$1 $3 $4" = "-h -p 26379" ] || exit 2
case $2 in rlock-1.rlock) port=%d ;; *) port=1 ;; esac
shift 4
exec %s -h 127.0.0.1 -p $port "$@"
`, sentinelPort, client))
	return pod
}

func (p pod) write(t *testing.T, name, text string) {
	if err := os.WriteFile(filepath.Join(p.folder, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// run runs a script as pod 0, and returns its output.
func (p pod) run(t *testing.T, script, password string) string {
	command := exec.Command("sh", filepath.Join(p.folder, script))
	command.Env = []string{"PATH=" + p.folder + ":" + os.Getenv("PATH"), "HOSTNAME=rlock-0", "REQUIREPASS=" + password}
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, output)
	}
	return string(output)
}

func freePort(t *testing.T) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// startSentinel starts a Sentinel that names the master 127.0.0.1, and returns its port.
func startSentinel(t *testing.T) int {
	port := freePort(t)
	configuration := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\nsentinel monitor rlock 127.0.0.1 %d 1\n", port, freePort(t))
	if err := os.WriteFile(configuration, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.Command("redis-server", configuration, "--sentinel")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			connection.Close()
			return port
		}
		if time.Now().After(deadline) {
			t.Fatal("the Sentinel does not listen")
		}
	}
}

func TestServerFollowsTheMasterThatASentinelNames(t *testing.T) {
	started := newPod(t, startSentinel(t)).run(t, "server", "secret")
	if !strings.Contains(started, "--replicaof 127.0.0.1 6379") {
		t.Errorf("pod 0 started with: %s", started)
	}
	started = newPod(t, 1).run(t, "server", "secret")
	if strings.Contains(started, "--replicaof") {
		t.Errorf("no Sentinel answers, and pod 0 started with: %s", started)
	}
}

func TestSentinelWatchesTheMasterThatAnotherSentinelNames(t *testing.T) {
	configuration := newPod(t, startSentinel(t)).run(t, "sentinel", `a "b\c d`)
	for _, line := range []string{
		"sentinel monitor rlock 127.0.0.1 6379 2",
		"sentinel announce-ip rlock-0.rlock",
		`sentinel auth-pass rlock "a \"b\\c d"`,
	} {
		if !strings.Contains(configuration, line+"\n") {
			t.Errorf("%s is missing in:\n%s", line, configuration)
		}
	}
}
