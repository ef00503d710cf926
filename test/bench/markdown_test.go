package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func testBlock(rounds int) Block {
	return Block{
		Part:       "writes",
		Provenance: Provenance{Date: "2026-11-30", Commit: "abc1234", Dirty: true, CPU: "AMD EPYC", Cores: 2, MemoryGiB: 24},
		Simulated:  "No Macs.",
		Results: []Result{
			{Name: "create, p50", Unit: "ms", Ours: 2.874, Peer: 3.744, Ratio: 0.7676, Goal: 0.7, Rounds: rounds},
			{Name: "cycles", Unit: "cycles/s", Ours: 225.4, Peer: 197, Ratio: 0.874, Rounds: rounds + 1},
			{Name: "memory", Unit: "MB", Ours: 331, Goal: 600, Rounds: rounds + 1},
		},
	}
}

const testMarkdown = `<!-- bench:writes -->
Measured on 2026-11-30 at commit abc1234 with uncommitted changes. Machine: AMD EPYC, 2 cores, 24
GiB of memory. Medians of 5 rounds. No Macs.

| measurement | ours | alternative | ratio | goal |
|---|---|---|---|---|
| create, p50 | 2.87 ms | 3.74 ms | 0.77 | 0.7, **missed** |
| cycles | 225 cycles/s | 197 cycles/s | 0.87 |  |
| memory | 331 MB |  |  | 600 MB, met |
<!-- /bench:writes -->
`

func TestMarkdown(t *testing.T) {
	assert.Equal(t, testMarkdown, testBlock(5).markdown())
	assert.Contains(t, testBlock(2).markdown(), "Medians of 2 rounds; a conclusion needs 5.")

	alone := testBlock(5)
	alone.Results = alone.Results[2:]
	alone.Note = "![Chart](chart.svg)"
	assert.Contains(t, alone.markdown(), "| measurement | value | goal |\n|---|---|---|\n| memory | 331 MB | 600 MB, met |\n\n![Chart](chart.svg)\n<!-- /bench:writes -->\n")
}

func TestRewrite(t *testing.T) {
	const other = "<!-- bench:reads -->\nold\n<!-- /bench:reads -->\n"
	document := "# Title\n\nProse.\n\n<!-- bench:writes -->\nold\n<!-- /bench:writes -->\n\nMore prose.\n\n" + other
	path := filepath.Join(t.TempDir(), "performance.md")
	require.NoError(t, os.WriteFile(path, []byte(document), 0o644))

	assert.ErrorContains(t, rewrite(path, testBlock(4)), "need 5 rounds")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, document, string(content))

	for range 2 { // a block can be replaced again
		require.NoError(t, rewrite(path, testBlock(5)))
		content, err = os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, "# Title\n\nProse.\n\n"+testMarkdown+"\nMore prose.\n\n"+other, string(content))
	}

	missing := testBlock(5)
	missing.Part = "images"
	assert.ErrorContains(t, rewrite(path, missing), "<!-- bench:images -->")
}

// TestDocumentHasAllParts prevents a long run whose results cannot be written.
func TestDocumentHasAllParts(t *testing.T) {
	document, err := os.ReadFile("../../docs/performance.md")
	require.NoError(t, err)
	for _, p := range (&bench{}).parts() {
		assert.Equal(t, 1, strings.Count(string(document), openMarker(p.name)+"\n"), p.name)
		assert.Equal(t, 1, strings.Count(string(document), closeMarker(p.name)+"\n"), p.name)
	}
}
