package tart

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
)

func (g *realGuest) setUp(t *testing.T, setup guest.Setup, offset int64) (*guest.SetupResult, string) {
	t.Helper()
	var out bytes.Buffer
	result, err := g.Setup(deadline(t), setup, offset, func(data []byte) { out.Write(data) })
	require.NoError(t, err)
	return result, out.String()
}

func (g *realGuest) read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(g.home, path))
	require.NoError(t, err)
	return string(data)
}

func TestSetupRunsOnce(t *testing.T) {
	g := newRealGuest(t)
	setup := guest.Setup{
		InstanceUID: "uid-1", SSHAuthorizedKeys: []string{"ssh-ed25519 AAAA one", "ssh-ed25519 BBBB two"},
		StartupScript: "echo ran >> ran; echo hello; echo oops >&2; exit 3",
	}
	result, out := g.setUp(t, setup, 0)
	assert.Equal(t, &guest.SetupResult{ExitCode: 3}, result)
	assert.Equal(t, "hello\noops\n", out)

	result, out = g.setUp(t, setup, 6)
	assert.Equal(t, &guest.SetupResult{ExitCode: 3}, result)
	assert.Equal(t, "oops\n", out, "the output continues")
	assert.Equal(t, "ran\n", g.read(t, "ran"))
	assert.Equal(t, "ssh-ed25519 AAAA one\nssh-ed25519 BBBB two\n", g.read(t, ".ssh/authorized_keys"))
	info, err := os.Stat(filepath.Join(g.home, ".ssh/authorized_keys"))
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm())
	left, err := filepath.Glob(filepath.Join(g.home, ".macrack", "*", "script*"))
	require.NoError(t, err)
	assert.Empty(t, left, "nothing is left of the script")

	setup.InstanceUID = "uid-2"
	_, _ = g.setUp(t, setup, 0)
	assert.Equal(t, "ran\nran\n", g.read(t, "ran"), "an image that was made of a guest is set up again")
}

// Variables reach the script and nothing else: neither a file nor the next command.
func TestSetupWithEnvironment(t *testing.T) {
	g := newRealGuest(t)
	const secret = "it's a \"secret\"; $(exit 9) `exit 8` \\ \n two lines "
	setup := guest.Setup{
		InstanceUID: "uid-1", Caches: true,
		StartupScript: `printf '%s|' "$TOKEN" "$A" "$MACRACK_CACHES" ${#HIDDEN}; grep -rl 'only in memo'"ry" "$HOME" || echo nowhere`,
		Environment: []contract.EnvironmentVariable{
			{Name: "A", Value: []byte("first")}, {Name: "TOKEN", Value: []byte(secret)}, {Name: "A", Value: []byte("last")},
			{Name: "-x.y", Value: []byte("1")}, {Name: "HIDDEN", Value: []byte("only in memory")},
		},
	}
	result, out := g.setUp(t, setup, 0)
	assert.Equal(t, secret+"|last|/Volumes/My Shared Files|14|nowhere\n", out)
	assert.Zero(t, result.ExitCode)
	var after bytes.Buffer
	_, err := g.Exec(deadline(t), guest.Command{Args: []string{"sh", "-c", "echo $TOKEN$A"}, Stdout: &after})
	require.NoError(t, err)
	assert.Equal(t, "\n", after.String())
}

// Linux, which runs this test, bounds one variable to 128 KiB.
func TestSetupWithLargeEnvironment(t *testing.T) {
	g := newRealGuest(t)
	setup := guest.Setup{InstanceUID: "uid-1", StartupScript: `echo $((${#A} + ${#B}))`}
	for _, name := range []string{"A", "B"} {
		setup.Environment = append(setup.Environment, contract.EnvironmentVariable{Name: name, Value: bytes.Repeat([]byte("'"), 50<<10)})
	}
	_, out := g.setUp(t, setup, 0)
	assert.Equal(t, "102400\n", out)
}

func TestSetupKeepsKeysOfTheImage(t *testing.T) {
	g := newRealGuest(t)
	require.NoError(t, os.Mkdir(filepath.Join(g.home, ".ssh"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(g.home, ".ssh/authorized_keys"), []byte("ssh-rsa OLD without newline"), 0o600))
	result, _ := g.setUp(t, guest.Setup{InstanceUID: "a", SSHAuthorizedKeys: []string{"ssh-rsa NEW", "-e -x"}}, 0)
	assert.Equal(t, &guest.SetupResult{}, result)
	assert.Equal(t, "ssh-rsa OLD without newline\nssh-rsa NEW\n-e -x\n", g.read(t, ".ssh/authorized_keys"))
}

func TestSetupRunsOtherInterpreters(t *testing.T) {
	g := newRealGuest(t)
	_, out := g.setUp(t, guest.Setup{InstanceUID: "a", StartupScript: "#!/bin/cat\nitself\n"}, 0)
	assert.Equal(t, "#!/bin/cat\nitself\n", out)
	result, _ := g.setUp(t, guest.Setup{InstanceUID: "b", StartupScript: "#!/no/such/interpreter"}, 0)
	assert.EqualValues(t, 127, result.ExitCode)
	_, out = g.setUp(t, guest.Setup{InstanceUID: "c", StartupScript: strings.Repeat("# long\n", 9000) + "echo end"}, 0)
	assert.Equal(t, "end\n", out)
}

func TestSetupOutputIsBounded(t *testing.T) {
	g := newRealGuest(t)
	result, out := g.setUp(t, guest.Setup{InstanceUID: "a", StartupScript: "head -c 3000000 /dev/zero; exit 4"}, 0)
	assert.EqualValues(t, 4, result.ExitCode, "a script is not ended for what it prints")
	assert.Len(t, out, guest.MaxScriptOutput)
}

func TestSetupFollowsAProcessLeftBehind(t *testing.T) {
	g := newRealGuest(t)
	result, out := g.setUp(t, guest.Setup{InstanceUID: "a", StartupScript: "sleep 60 & echo done"}, 0)
	assert.Equal(t, &guest.SetupResult{}, result)
	assert.Equal(t, "done\n", out)
}

func TestSetupAfterRestart(t *testing.T) {
	g := newRealGuest(t)
	setup := guest.Setup{InstanceUID: "a", StartupScript: "echo ran >> ran; echo begun; sleep 600"}
	ctx, cancel := context.WithCancel(deadline(t))
	_, err := g.Setup(ctx, setup, 0, func([]byte) { cancel() })
	require.ErrorIs(t, err, context.Canceled, "the connection is lost, and the script continues")
	require.NoError(t, os.WriteFile(filepath.Join(g.home, ".macrack/a/boot"), []byte("of the boot before"), 0o600))
	result, out := g.setUp(t, setup, 0)
	assert.EqualValues(t, 255, result.ExitCode)
	assert.Contains(t, result.Reason, "the script is not repeated")
	assert.Equal(t, "begun\n", out)
	assert.Equal(t, "ran\n", g.read(t, "ran"))
}

// Half a script does not run, and does not prevent that the whole one does.
func TestSetupInterruptedUpload(t *testing.T) {
	g := newRealGuest(t)
	_, err := g.part(deadline(t), "start", "a", "echo half >> ran; ec", nil, "100")
	require.ErrorContains(t, err, "the script is incomplete")
	_, _ = g.setUp(t, guest.Setup{InstanceUID: "a", StartupScript: "echo whole >> ran"}, 0)
	assert.Equal(t, "whole\n", g.read(t, "ran"))
	entries, err := os.ReadDir(filepath.Join(g.home, ".macrack"))
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}

// A guest that loses power at the worst moment does not run the script, and says so.
func TestSetupInterruptedStart(t *testing.T) {
	g := newRealGuest(t)
	require.NoError(t, os.MkdirAll(filepath.Join(g.home, ".macrack/a"), 0o700))
	result, out := g.setUp(t, guest.Setup{InstanceUID: "a", StartupScript: "echo ran >> ran"}, 0)
	assert.EqualValues(t, 255, result.ExitCode)
	assert.Contains(t, result.Reason, "the script is not repeated")
	assert.Empty(t, out)
}

func TestSetupRefuses(t *testing.T) {
	g := newRealGuest(t)
	for _, uid := range []string{"", "../x", "a/b", "-a", "a b"} {
		_, err := g.Setup(deadline(t), guest.Setup{InstanceUID: uid}, 0, nil)
		require.ErrorContains(t, err, "invalid instance UID", uid)
	}
	_, err := g.Setup(deadline(t), guest.Setup{InstanceUID: "a", SSHAuthorizedKeys: []string{"a\nb"}}, 0, nil)
	require.ErrorContains(t, err, "more than one line")
	require.NoError(t, os.WriteFile(filepath.Join(g.home, ".macrack"), nil, 0o600))
	_, err = g.Setup(deadline(t), guest.Setup{InstanceUID: "a", StartupScript: "true"}, 0, nil)
	require.ErrorContains(t, err, "failed to start the startup script: mkdir")
}

func TestSetupSurvivesALostConnection(t *testing.T) {
	g := newRealGuest(t)
	setup := guest.Setup{InstanceUID: "a", StartupScript: "echo begun; sleep 1; echo end"}
	ctx, cancel := context.WithCancel(deadline(t))
	var got bytes.Buffer
	_, err := g.Setup(ctx, setup, 0, func(data []byte) { got.Write(data); cancel() })
	require.ErrorIs(t, err, context.Canceled)
	time.Sleep(10 * time.Millisecond)
	result, rest := g.setUp(t, setup, int64(got.Len()))
	assert.Equal(t, &guest.SetupResult{}, result)
	assert.Equal(t, "begun\nend\n", got.String()+rest)
}
