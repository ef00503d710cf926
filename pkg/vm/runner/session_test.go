package runner_test

import (
	"bytes"
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/sim"
)

// parentOn returns the process that runs commands on a port of the guest.
func (v *vm) parentOn(port uint32) string {
	v.t.Helper()
	c, err := guest.NewClient(func(ctx context.Context) (net.Conn, error) { return v.runner.Connect(ctx, port) })
	require.NoError(v.t, err)
	defer c.Close()
	var out bytes.Buffer
	code, err := c.Exec(v.ctx(), guest.Command{Args: []string{"sh", "-c", "echo $PPID"}, Stdout: &out})
	require.NoError(v.t, err)
	require.Zero(v.t, code)
	return out.String()
}

func TestLoginSession(t *testing.T) {
	v := start(t, func(s *contract.Spec) {
		s.Simulation.LoginMillis = 500
		s.StartupScript = "echo $PPID"
	})
	state := v.wait(func(s contract.State) bool {
		assert.False(t, s.GuestReady && s.SessionPort == 0, "commands would miss the login session")
		return s.GuestReady && s.StartupScript != nil
	})
	assert.EqualValues(t, guest.SessionPort, state.SessionPort)
	inSession := v.parentOn(state.SessionPort)
	assert.Equal(t, inSession, state.StartupScript.OutputTail, "the startup script runs in the session")
	assert.NotEqual(t, inSession, v.parentOn(guest.Port))

	v.post(sim.PathLogOut)
	v.wait(func(s contract.State) bool { return s.SessionPort == 0 })
	_, code := v.sh("true")
	assert.Zero(t, code, "commands run without a session")
}
