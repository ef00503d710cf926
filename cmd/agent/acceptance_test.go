package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/agent/acceptance"
)

func runAcceptance(args ...string) (string, error) {
	cmd := newAcceptanceCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetIn(strings.NewReader("y\n"))
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.Execute()
	return out.String(), err
}

func TestAcceptanceCommand(t *testing.T) {
	out, err := runAcceptance("--list")
	require.NoError(t, err)
	assert.Contains(t, out, "third-vm\tLimit of two VMs\n")

	_, err = runAcceptance("--backend=sim", "--sim-host-dir", t.TempDir(), "--sim-serial-number=C02TEST", "--state-dir", t.TempDir())
	require.ErrorContains(t, err, "no image was given; use --tart-vm")

	vm := t.TempDir()
	for name, content := range map[string]string{
		"config.json": `{"version": 1, "hardwareModel": "bW9kZWw="}`, "disk.img": "macOS", "nvram.bin": "nvram",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(vm, name), []byte(content), 0o600))
	}
	report := filepath.Join(t.TempDir(), "report")
	out, err = runAcceptance("--backend=sim", "--sim-host-dir", t.TempDir(), "--sim-serial-number=C02TEST", "--state-dir", t.TempDir(),
		"--tart-vm", vm, "--report", report, "--only=zeros,terminals-none")
	require.ErrorContains(t, err, `unknown check "terminals-none"`)
	assert.NotContains(t, out, "zeros")
	out, err = runAcceptance("--backend=sim", "--sim-host-dir", t.TempDir(), "--sim-serial-number=C02TEST", "--state-dir", t.TempDir(),
		"--tart-vm", vm, "--report", report, "--only=zeros,guest-terminals")
	require.NoError(t, err)
	assert.Contains(t, out, "pass    zeros")
	assert.Contains(t, out, "ask     guest-terminals", "a check that needs a person becomes a question")
	markdown, err := os.ReadFile(filepath.Join(report, "report.md"))
	require.NoError(t, err)
	assert.Contains(t, string(markdown), "- model: Mac16,10\n")

	require.NoError(t, (&acceptance.Report{Versions: map[string]string{"macrack-agent": "other"}}).Write(report))
	_, err = runAcceptance("--backend=sim", "--sim-host-dir", t.TempDir(), "--sim-serial-number=C02TEST", "--state-dir", t.TempDir(),
		"--tart-vm", vm, "--report", report, "--only=zeros")
	require.ErrorContains(t, err, `is of version "other"; use --again`)
}

func TestAsker(t *testing.T) {
	var out bytes.Buffer
	ask := asker(strings.NewReader("Y\nno it does not\n s  no display\n\nwhat\n"), &out)
	for _, want := range []acceptance.Answer{
		{Outcome: acceptance.Pass}, {Outcome: acceptance.Fail, Note: "it does not"}, {Outcome: acceptance.Skip, Note: "no display"},
		{Outcome: acceptance.Ask}, {Outcome: acceptance.Ask}, {Outcome: acceptance.Ask},
	} {
		assert.Equal(t, want, ask(context.Background(), "Title", "Question"))
	}
	assert.Contains(t, out.String(), "Title\nQuestion\n")
}

func TestOwnDir(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, ownDir(filepath.Join(root, "new")))
	require.NoError(t, ownDir(filepath.Join(root, "new")), "it may exist")
	shared := filepath.Join(root, "shared")
	require.NoError(t, os.Mkdir(shared, 0o700))
	require.NoError(t, os.Chmod(shared, 0o777))
	require.ErrorContains(t, ownDir(shared), "not a directory that only this user can write to")
	link := filepath.Join(root, "link")
	require.NoError(t, os.Symlink(filepath.Join(root, "new"), link))
	require.ErrorContains(t, ownDir(link), "not a directory that only this user can write to")
}
