package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func line(key, owner string, times [3]int, more string) string {
	return fmt.Sprintf(`{"key":%q,"owner":%q,"sent":%d,"from":%d,"until":%d%s}`, key, owner, times[0], times[1], times[2], more)
}

func TestVerdicts(t *testing.T) {
	ofTwo, reads, writes := `,"of":2`, `,"of":4`, `,"takes":4,"of":4`
	for name, one := range map[string]struct {
		overlaps bool
		lines    []string
	}{
		"one after another":          {false, []string{line("k", "a", [3]int{0, 1, 5}, ""), line("k", "b", [3]int{1, 5, 9}, "")}},
		"at the same time":           {true, []string{line("k", "a", [3]int{0, 1, 5}, ""), line("k", "b", [3]int{1, 4, 9}, "")}},
		"within another":             {true, []string{line("k", "a", [3]int{0, 1, 9}, ""), line("k", "b", [3]int{2, 3, 4}, "")}},
		"on two keys":                {false, []string{line("k", "a", [3]int{0, 1, 5}, ""), line("l", "b", [3]int{1, 4, 9}, "")}},
		"of one owner":               {false, []string{line("k", "a", [3]int{0, 1, 5}, ""), line("k", "a", [3]int{1, 4, 9}, "")}},
		"of one owner, then another": {true, []string{line("k", "a", [3]int{0, 1, 5}, ""), line("k", "a", [3]int{1, 4, 9}, ""), line("k", "b", [3]int{1, 8, 9}, "")}},
		"a long wait":                {false, []string{line("k", "a", [3]int{0, 8, 9}, ""), line("k", "b", [3]int{1, 2, 4}, ""), line("k", "c", [3]int{1, 5, 8}, "")}},
		"two of two permits":         {false, []string{line("k", "a", [3]int{0, 1, 5}, ofTwo), line("k", "b", [3]int{1, 4, 9}, ofTwo)}},
		"three of two permits":       {true, []string{line("k", "a", [3]int{0, 1, 5}, ofTwo), line("k", "b", [3]int{1, 4, 9}, ofTwo), line("k", "c", [3]int{1, 3, 9}, ofTwo)}},
		"readers":                    {false, []string{line("k", "a", [3]int{0, 1, 5}, reads), line("k", "b", [3]int{1, 4, 9}, reads), line("k", "c", [3]int{1, 9, 10}, writes)}},
		"a reader and a writer":      {true, []string{line("k", "a", [3]int{0, 1, 5}, reads), line("k", "b", [3]int{1, 4, 9}, writes)}},
	} {
		text := strings.Join(one.lines, "\n")
		if _, broken, err := judge([]byte(text + "\n")); (err != nil) != one.overlaps || (len(broken) > 0) != one.overlaps {
			t.Errorf("%s: keys %v, error %v", name, broken, err)
		}
		if _, _, err := judge([]byte(`{"overlaps":1}` + "\n" + text)); (err == nil) != one.overlaps {
			t.Errorf("%s, after a check that found an overlap: %v", name, err)
		}
	}
}

func TestLinesThatAreNoBeliefs(t *testing.T) {
	for _, text := range []string{"", "{", line("k", "", [3]int{0, 1, 2}, ""), line("k", "a", [3]int{2, 1, 3}, ""), line("k", "a", [3]int{0, 1, 1}, "")} {
		if _, _, err := judge([]byte(text)); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestFoldersWithAPlantedOverlapFail(t *testing.T) {
	folder := t.TempDir()
	write := func(name string, lines ...string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := run([]string{folder}); err == nil {
		t.Error("an empty folder was accepted")
	}
	write("sound", line("k", "a", [3]int{0, 1, 5}, ""))
	if err := run([]string{folder}); err != nil {
		t.Error(err)
	}
	write("planted", line("k", "a", [3]int{0, 1, 5}, ""), line("k", "b", [3]int{0, 1, 5}, ""))
	if err := run([]string{folder}); err == nil {
		t.Error("the planted overlap was accepted")
	}
}
