// Judges recorded beliefs with porcupine, a checker of linearizability that knows nothing of rlock.
//
//	porcupine FILE|FOLDER...
//
// A history is a file of JSON lines, one for each belief of an owner in a lock:
//
//	{"key": "k", "owner": "w", "sent": 1, "from": 2, "until": 3, "takes": 1, "of": 1}
//
// Times are nanoseconds. sent is the time of the request that gave the belief, or of the beginning
// of the wait. The belief takes some of the lock's permits, by default 1 of 1; an owner does not
// exclude itself. A line {"overlaps": n} has the verdict of the recorder's own check: n beliefs
// overlapped. Without it none may overlap.
//
// The exit status is 0 if porcupine agrees about every history.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// A belief of an owner in a lock.
type belief struct {
	Key, Owner        string
	Sent, From, Until int64
	Takes, Of         int64
	// Set in a line without a belief.
	Overlaps *int
}

// A step of the model: a belief begins or ends.
type step struct {
	belief
	ends bool
}

// The beliefs of a moment, sorted by owner.
type holds []hold

type hold struct {
	owner string
	takes int64
}

// A lock that expires. An acquisition takes effect between the request and the beginning of the
// belief, its end at any time from the end of the belief on.
var lock = porcupine.Model{
	Init: func() any { return holds(nil) },
	Step: func(state, input, _ any) (bool, any) {
		held, step := state.(holds), input.(step)
		one := hold{step.Owner, step.Takes}
		if at := slices.Index(held, one); step.ends {
			return at >= 0, slices.Delete(slices.Clone(held), max(at, 0), at+1)
		}
		taken := step.Takes
		for _, other := range held {
			if other.owner != step.Owner {
				taken += other.takes
			}
		}
		at, _ := slices.BinarySearchFunc(held, one, func(a, b hold) int { return strings.Compare(a.owner, b.owner) })
		return taken <= step.Of, slices.Insert(slices.Clone(held), at, one)
	},
	Equal: func(a, b any) bool { return slices.Equal(a.(holds), b.(holds)) },
}

// How long porcupine may search in the beliefs of one key.
const patience = 2 * time.Minute

// Returns the beliefs of a history by key, and how many overlap by the recorder's own check.
func read(text []byte) (map[string][]porcupine.Operation, int, error) {
	keys, overlaps := map[string][]porcupine.Operation{}, 0
	for number, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		one := belief{Takes: 1, Of: 1}
		if err := json.Unmarshal(line, &one); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", number+1, err)
		}
		if one.Overlaps != nil {
			overlaps += *one.Overlaps
			continue
		}
		if one.Owner == "" || one.Sent > one.From || one.From >= one.Until {
			return nil, 0, fmt.Errorf("line %d: expected an owner, and sent <= from < until", number+1)
		}
		keys[one.Key] = append(keys[one.Key],
			porcupine.Operation{Input: step{one, false}, Call: one.Sent, Return: one.From},
			porcupine.Operation{Input: step{one, true}, Call: one.Until, Return: math.MaxInt64})
	}
	return keys, overlaps, nil
}

// Returns the number of beliefs, and the keys whose beliefs overlap.
func judge(text []byte) (int, []string, error) {
	keys, overlaps, err := read(text)
	if err != nil {
		return 0, nil, err
	}
	count, broken := 0, []string{}
	for key, operations := range keys {
		count += len(operations) / 2
		switch porcupine.CheckOperationsTimeout(lock, operations, patience) {
		case porcupine.Illegal:
			broken = append(broken, key)
		case porcupine.Unknown:
			return count, nil, fmt.Errorf("key %s: no verdict within %v", key, patience)
		}
	}
	slices.Sort(broken)
	if (overlaps > 0) != (len(broken) > 0) {
		return count, broken, fmt.Errorf("porcupine finds overlaps on %d keys %q, and the recorder found %d overlaps", len(broken), broken, overlaps)
	}
	return count, broken, nil
}

func run(paths []string) error {
	files, beliefs, expected, failed := 0, 0, 0, 0
	visit := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		count, broken, err := judge(text)
		files, beliefs = files+1, beliefs+count
		if err != nil {
			failed++
			fmt.Printf("%s: %v\n", path, err)
		} else if len(broken) > 0 {
			expected++
		}
		return nil
	}
	for _, path := range paths {
		if err := filepath.WalkDir(path, visit); err != nil {
			return err
		}
	}
	fmt.Printf("porcupine: %d histories with %d beliefs; it agrees about %d, of which %d overlap\n", files, beliefs, files-failed, expected)
	if files == 0 || failed > 0 {
		return fmt.Errorf("%d of %d histories failed", failed, files)
	}
	return nil
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "porcupine:", err)
		os.Exit(1)
	}
}
