package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReportHTML(t *testing.T) {
	path, dir := exportLeases(t), t.TempDir()
	html, heads := filepath.Join(dir, "evidence.html"), filepath.Join(dir, "heads.txt")
	_, err := run("", "verify", path, "--heads", heads)
	require.NoError(t, err)

	out, err := run("", "report", path, "--window", "2026-08-31..2026-09-02", "--expect", heads, "--html", html)
	require.NoError(t, err)
	assert.Regexp(t, `^evidence: .*evidence.html verdict=Compliant violations=0 export-sha256=[0-9a-f]{64}\n$`, out)
	page, err := os.ReadFile(html)
	require.NoError(t, err)
	sum := out[len(out)-65 : len(out)-1]
	for _, want := range []string{sum, "Compliant", "acme/build, base", "The records continue the heads of 2 chains", "C07MAC2", "--window 2026-08-31..2026-09-02"} {
		assert.Contains(t, string(page), want)
	}

	content, err := os.ReadFile(path)
	require.NoError(t, err)
	edited := strings.Replace(string(content), `"attemptedAt":"2026-08-31T23:50:01Z"`, `"attemptedAt":"2026-08-31T23:50:02Z"`, 1)
	require.NotEqual(t, string(content), edited)
	require.NoError(t, os.WriteFile(path, []byte(edited), 0o600))
	_, err = run("", "report", path, "--window", "2026-08-31..2026-09-02", "--html", html)
	assert.ErrorContains(t, err, "the verdict is Incomplete")
	assert.Equal(t, 1, exitCode(err))
	page, err = os.ReadFile(html)
	require.NoError(t, err)
	assert.Contains(t, string(page), "acme/c07mac1-000000000002 was edited")
}

func TestReportHTMLRefuses(t *testing.T) {
	html := filepath.Join(t.TempDir(), "evidence.html")
	_, err := run("", "report", "-", "--html", html)
	assert.ErrorContains(t, err, "use a file")
	assert.Equal(t, 2, exitCode(err))
	_, err = run("", "report", "missing.jsonl", "--html", html)
	assert.Equal(t, 2, exitCode(err))
	other := filepath.Join(t.TempDir(), "other.txt")
	require.NoError(t, os.WriteFile(other, []byte("x"), 0o600))
	_, err = run("", "report", other, "--html", html)
	assert.ErrorContains(t, err, "not an export")
	assert.Equal(t, 1, exitCode(err))
	require.NoError(t, os.WriteFile(other, nil, 0o600))
	_, err = run("", "report", other, "--html", html)
	assert.ErrorContains(t, err, "no records")
	assert.NoFileExists(t, html)
}
