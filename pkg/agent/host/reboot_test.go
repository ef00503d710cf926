package host

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/vm/sim"
)

func TestReboot(t *testing.T) {
	var ran string
	var fail error
	s := sudo{run: func(_ context.Context, name string, args ...string) ([]byte, error) {
		ran = name + " " + strings.Join(args, " ")
		return []byte("a password is required\n"), fail
	}}
	require.NoError(t, s.Reboot(t.Context()))
	assert.Equal(t, "/usr/bin/sudo -n /sbin/shutdown -r now", ran)
	fail = errors.New("exit status 1")
	require.EqualError(t, s.Reboot(t.Context()), "sudo shutdown -r now: exit status 1: a password is required; is /etc/sudoers.d/macrack installed?")
}

func TestSimulatedReboot(t *testing.T) {
	dir := sim.HostDir(t.TempDir())
	require.NoError(t, dir.Init("S", "boot-1"))
	var h Host = &Simulated{Dir: dir, StateDir: t.TempDir()}
	before, err := h.Info()
	require.NoError(t, err)
	require.NoError(t, h.(Rebooter).Reboot(t.Context()))
	after, err := h.Info()
	require.NoError(t, err)
	assert.NotEqual(t, before.BootID, after.BootID)
	assert.NotEmpty(t, after.BootID)
}
