package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A step that fails ends the test, and the later steps do not pass.
func TestFailedStep(t *testing.T) {
	w := &world{plan: plan{Dir: t.TempDir()}}
	broken := errors.New("broken")
	ran := 0
	steps := []step{
		{name: "first", run: func(context.Context) error { ran++; return nil }},
		{name: "second", run: func(context.Context) error { ran++; return broken }},
		{name: "third", run: func(context.Context) error { ran++; return nil }},
	}
	require.ErrorIs(t, w.runSteps(t.Context(), steps), broken)
	assert.Equal(t, 2, ran)
	r, err := w.readResult()
	require.NoError(t, err)
	assert.Equal(t, result{Steps: 3, Passed: 1, Failed: 1}, r)
}

func TestRefused(t *testing.T) {
	assert.NoError(t, refused(errors.New("rule 1: no"), "rule 1"))
	assert.ErrorContains(t, refused(nil, "rule 1"), "accepted")
	assert.ErrorContains(t, refused(errors.New("connection refused"), "rule 1"), "not by rule 1")
}

func TestLoad(t *testing.T) {
	assert.NoError(t, load{sent: 10, failed: 1, outage: maxOutage}.check())
	assert.ErrorContains(t, load{sent: 10, failed: 1, outage: maxOutage + time.Second, last: errors.New("last")}.check(), "last")
}

func TestStopwatch(t *testing.T) {
	var out bytes.Buffer
	stopwatch{{"make images", time.Minute}, {"the chart is installed", 30 * time.Second}}.print(&out)
	assert.Contains(t, out.String(), "1m30s\n")
}

// The files of config are complete for any Node.
func TestRender(t *testing.T) {
	files, err := configs.ReadDir("config")
	require.NoError(t, err)
	for _, file := range files {
		text, err := render(file.Name(), settings{Name: "node-1"})
		require.NoError(t, err)
		assert.NotContains(t, text, "{{", file.Name())
	}
}

// Groups that containers have made in a group are removed with it.
func TestRemoveTree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "group")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "kubepods", "pod"), 0o755))
	require.NoError(t, removeTree(dir))
	assert.NoDirExists(t, dir)
}
