// Package check decodes the manifest with the types of Kubernetes, strictly: a field that they do not have fails.
package check

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"

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

func TestManifest(t *testing.T) {
	text, err := os.ReadFile("../rlock.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var set apps.StatefulSet
	var scripts core.ConfigMap
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
			scripts = decode[core.ConfigMap](t, document)
		case "StatefulSet":
			set = decode[apps.StatefulSet](t, document)
		default:
			t.Errorf("unexpected kind %q", kind.Kind)
		}
	}
	if len(names) != 4 {
		t.Errorf("kinds: %v", names)
	}
	if *set.Spec.Replicas != 3 {
		t.Errorf("%d replicas", *set.Spec.Replicas)
	}
	for _, container := range set.Spec.Template.Spec.Containers {
		script := strings.TrimPrefix(container.Command[1], "/etc/rlock/")
		if scripts.Data[script] == "" {
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
	if environment["RLOCK_SETTING_QUARANTINE_AFTER"] != "failover" || number("RLOCK_SETTING_MIN_REPLICAS") != 1 {
		t.Errorf("%v", environment)
	}
	if number("RLOCK_SETTING_QUARANTINE_MS") < number("RLOCK_SETTING_MAX_LEASE_MS")+number("RLOCK_SETTING_MAX_REPLICA_LAG_MS")+1000 {
		t.Errorf("the quarantine is too short: %v", environment)
	}
	if !strings.Contains(scripts.Data["server"], "--repl-ping-replica-period 1") {
		t.Error("repl-ping-replica-period is not 1")
	}
	// A Service of another team must not configure the server.
	if links := set.Spec.Template.Spec.EnableServiceLinks; links == nil || *links {
		t.Error("enableServiceLinks is not false")
	}
}
