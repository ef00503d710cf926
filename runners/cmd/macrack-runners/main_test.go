package main

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/runners/traces"
)

var update = flag.Bool("update", false, "write the numbers into the documents")

func execute(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := newCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// documents are the documents with the numbers of simulate.
var documents = []string{"../../README.md", "../../../docs/runners.md"}

const (
	begin = "<!-- begin simulate -->\n"
	end   = "<!-- end simulate -->\n"
)

func TestDocumentsHaveTheNumbersOfSimulate(t *testing.T) {
	var files []string
	for _, name := range traces.Names {
		files = append(files, "../../traces/"+name+".csv")
	}
	numbers, err := execute("simulate", "--markdown", "--jobs", strings.Join(files, ","))
	require.NoError(t, err)
	for _, document := range documents {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		before, rest, found := strings.Cut(string(text), begin)
		require.True(t, found)
		_, after, found := strings.Cut(rest, end)
		require.True(t, found)
		want := before + begin + numbers + end + after
		if *update {
			require.NoError(t, os.WriteFile(document, []byte(want), 0o644))
			continue
		}
		assert.Equal(t, want, string(text), "run go test ./cmd/macrack-runners -update")
	}
}

const trace = "queuedAt,seconds\n2026-03-02T09:00:00Z,3600\n"

func write(t *testing.T, text string) string {
	file := t.TempDir() + "/trace.csv"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestSimulate(t *testing.T) {
	out, err := execute("simulate", "--jobs", write(t, trace), "--grow-after", "5m", "--warm", "0")
	require.NoError(t, err)
	assert.Equal(t, `
TRACE               CHASSIS-DAYS   OF ORACLE   WAIT P50   WAIT P95   WAIT P99   UTILISATION
floor rule          1.0            100 %       8m0s       8m0s       8m0s       2 %
keep all            1.0            100 %       8m0s       8m0s       8m0s       2 %
release when idle   1.0            100 %       8m0s       8m0s       8m0s       2 %
oracle              1.0            100 %       8m0s       8m0s       8m0s       2 %
`, "\n"+out)
}

func TestSimulateRefusals(t *testing.T) {
	for _, test := range []struct {
		name, trace string
		flags       []string
		want        string
	}{
		{"no jobs", "queuedAt,seconds\n", nil, "the trace has no jobs"},
		{"an empty file", "", nil, "the trace has no jobs"},
		{"no header", "2026-03-02T09:00:00Z,3600\n", nil, "line 1: columns are"},
		{"a column too many", trace + "2026-03-02T09:00:00Z,1,2\n", nil, "record on line 3"},
		{"no time", trace + "today,1\n", nil, `line 3: invalid queuedAt "today"`},
		{"no duration", trace + "2026-03-02T09:00:00Z,0\n", nil, `line 3: invalid seconds "0"`},
		{"min above max", trace, []string{"--min=9"}, "--min is 9 and --max is 8"},
		{"three machines", trace, []string{"--per-lease=3"}, "--per-lease is 3; use 1 or 2"},
		{"negative warm", trace, []string{"--warm=-1"}, "--warm is -1; use 0 or more"},
		{"a negative duration", trace, []string{"--bind=-1s"}, "a duration is negative"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := execute(append([]string{"simulate", "--jobs", write(t, test.trace)}, test.flags...)...)
			assert.ErrorContains(t, err, test.want)
		})
	}
}

func TestCheck(t *testing.T) {
	out, err := execute("--check", "--config", "../../pkg/config/testdata/full.yaml")
	require.NoError(t, err)
	assert.Equal(t, "../../pkg/config/testdata/full.yaml is valid: 3 sets\n", out)
	_, err = execute("--check", "--config", write(t, "kind: Other"))
	assert.ErrorContains(t, err, "kind")
}
