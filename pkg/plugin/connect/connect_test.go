package connect

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/guest"
	"macrack.io/macrack/pkg/plugin/plugintest"
)

// fakeGuest has host keys, and a forwarded port.
type fakeGuest struct {
	keys  string
	err   error
	ports []int
}

func (g *fakeGuest) Exec(_ context.Context, pod guest.Pod, command []string, s guest.Streams) error {
	if pod != (guest.Pod{Namespace: "acme", Name: "one-vm"}) || !strings.Contains(strings.Join(command, " "), "/etc/ssh/ssh_host_*_key.pub") {
		return errors.New("an unexpected command")
	}
	_, err := io.WriteString(s.Out, g.keys)
	return errors.Join(err, g.err)
}

func (g *fakeGuest) Forward(_ context.Context, _ guest.Pod, port int) (int, error) {
	g.ports = append(g.ports, port)
	return 40022, nil
}

func (g *fakeGuest) access(*cmdutil.Clients) guest.Access { return g }

func (g *fakeGuest) ssh(env *cmdutil.Env) *cobra.Command  { return newSSHCommand(env, g.access) }
func (g *fakeGuest) copy(env *cmdutil.Env) *cobra.Command { return newCopyCommand(env, g.access) }
func (g *fakeGuest) vnc(env *cmdutil.Env) *cobra.Command  { return newVNCCommand(env, g.access) }

func newKey(t *testing.T, seed byte) ssh.PublicKey {
	t.Helper()
	key, err := ssh.NewPublicKey(ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune(seed)), ed25519.SeedSize))).Public())
	require.NoError(t, err)
	return key
}

func instance(phase instancev1alpha1.MacOSInstancePhase) *instancev1alpha1.MacOSInstance {
	return &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "one"},
		Status:     instancev1alpha1.MacOSInstanceStatus{Phase: phase, PodName: "one-vm"},
	}
}

func running() *plugintest.Fixture {
	return plugintest.New(instance(instancev1alpha1.MacOSInstanceRunning))
}

// install replaces the programs of the user by one that prints its name, arguments and known hosts.
func install(t *testing.T, names ...string) {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"${0##*/}\"\nfor a in \"$@\"; do echo \"$a\"; case $a in UserKnownHostsFile=*) cat \"${a#*=}\" ;; esac; done\nexit ${CODE:-0}\n"
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	t.Setenv("PATH", dir+":/bin:/usr/bin")
}

func TestSSH(t *testing.T) {
	install(t, "ssh")
	t.Setenv("TMPDIR", t.TempDir())
	key := newKey(t, 'a')
	g := &fakeGuest{keys: string(ssh.MarshalAuthorizedKey(key)), err: errors.New("another key cannot be read")}
	out := running().Run(t, g.ssh, "mi/one", "-l", "ci", "-i", "/keys/id", "--", "uptime", "-p")
	assert.Equal(t, []int{22}, g.ports)
	for _, want := range []string{
		"ssh\n-o\nHostName=127.0.0.1\n-o\nHostKeyAlias=macrack.acme.one\n-o\nUser=ci\n-o\nStrictHostKeyChecking=yes\n",
		"-i\n/keys/id\n-p\n40022\n--\nmacrack.acme.one\nuptime\n-p\n",
		"\nmacrack.acme.one " + string(ssh.MarshalAuthorizedKey(key)),
	} {
		assert.Contains(t, out, want)
	}
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	assert.Empty(t, left, "the known hosts are removed")
}

// The file of known hosts accepts the keys that the guest agent reports, and no others.
func TestKnownHosts(t *testing.T) {
	good, other := newKey(t, 'a'), newKey(t, 'b')
	file, err := writeKnownHosts(t.TempDir(), "macrack.acme.one", []ssh.PublicKey{good})
	require.NoError(t, err)
	check, err := knownhosts.New(file)
	require.NoError(t, err)
	assert.NoError(t, check("macrack.acme.one:22", address{}, good))
	assert.ErrorContains(t, check("macrack.acme.one:22", address{}, other), "key mismatch")
}

type address struct{}

func (address) Network() string { return "tcp" }
func (address) String() string  { return "127.0.0.1:22" }

func TestNoHostKeys(t *testing.T) {
	install(t, "ssh", "scp")
	for name, g := range map[string]*fakeGuest{
		"no Remote Login": {err: errors.New("cat: no such file")},
		"no guest agent":  {err: errors.New("the guest agent does not answer")},
		"garbage":         {keys: "\x1b[31mnot a key\n" + strings.Repeat("x", 1<<20)},
	} {
		f := running()
		err := f.Try(t, g.ssh, "mi/one")
		assert.ErrorContains(t, err, "the guest agent reports no SSH host keys", name)
		assert.ErrorContains(t, err, "--insecure-host-key", name)
		assert.ErrorContains(t, f.Try(t, g.copy, "file", "mi/one:file"), "--insecure-host-key", name)
		assert.Empty(t, f.Out.String(), "ssh is not run")
		assert.Empty(t, g.ports)

		out := running().Run(t, g.ssh, "mi/one", "--insecure-host-key")
		assert.Contains(t, out, "StrictHostKeyChecking=no\n-o\nUserKnownHostsFile=/dev/null\n")
	}
}

func TestCopy(t *testing.T) {
	install(t, "scp")
	g := &fakeGuest{keys: string(ssh.MarshalAuthorizedKey(newKey(t, 'a')))}
	out := running().Run(t, g.copy, "-r", "src:1", "mi/one:src")
	assert.Contains(t, out, "scp\n")
	assert.Contains(t, out, "-P\n40022\n-r\n--\n./src:1\nmacrack.acme.one:src\n")
	out = running().Run(t, g.copy, "mi/one:a b", "/tmp/x")
	assert.Contains(t, out, "--\nmacrack.acme.one:a b\n/tmp/x\n")
	for _, args := range [][]string{{"a", "b"}, {"mi/one:a", "mi/one:b"}, {"mi/one", "b"}, {"mi/:a", "b"}} {
		assert.Error(t, running().Try(t, g.copy, args...), args)
	}
}

func TestExitCodeOfSSH(t *testing.T) {
	install(t, "ssh")
	t.Setenv("CODE", "7")
	g := &fakeGuest{keys: string(ssh.MarshalAuthorizedKey(newKey(t, 'a')))}
	code, message := cmdutil.ExitCode(running().Try(t, g.ssh, "mi/one"))
	assert.Equal(t, 7, code)
	assert.Empty(t, message)
}

func TestVNC(t *testing.T) {
	install(t, "viewer")
	g := &fakeGuest{}
	f := running()
	assert.Equal(t, "viewer\n127.0.0.1::40022\n", f.Run(t, g.vnc, "mi/one", "--viewer", "viewer"))
	assert.Equal(t, []int{5900}, g.ports)
	assert.Contains(t, f.ErrOut.String(), "The screen of one is at 127.0.0.1:40022. Press Ctrl-C to end.\n")
	assert.EqualError(t, running().Try(t, g.vnc, "mi/one", "--viewer", "none"), "none is not in $PATH; install it")
}

func TestInstancesThatCannotBeReached(t *testing.T) {
	g := &fakeGuest{}
	for phase, want := range map[instancev1alpha1.MacOSInstancePhase]string{
		instancev1alpha1.MacOSInstancePulling: "does not run yet (Pulling); run kubectl macrack why mi/one",
		instancev1alpha1.MacOSInstanceFailed:  "has ended (Failed)",
	} {
		f := plugintest.New(instance(phase))
		assert.ErrorContains(t, f.Try(t, g.ssh, "mi/one"), want)
		assert.ErrorContains(t, f.Try(t, g.vnc, "mi/one"), want)
	}
	assert.ErrorContains(t, running().Try(t, g.ssh, "mi/two"), "not found")
	for _, args := range [][]string{{"one"}, {"mn/one"}, {"mi/"}, {"mi/one/x"}, {}, {"mi/one", "uptime"}, {"--", "uptime"}} {
		assert.Error(t, running().Try(t, g.ssh, args...), args)
	}
	assert.ErrorContains(t, running().Try(t, g.ssh, "mi/one", "-l", "-oProxyCommand=x"), "invalid user")
}
