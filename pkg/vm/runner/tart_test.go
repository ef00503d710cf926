package runner_test

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/clients"
	"macrack.io/macrack/pkg/vm/sim"
)

func startTart(t *testing.T, change func(*contract.Spec)) *vm {
	return start(t, func(s *contract.Spec) {
		s.Simulation = &contract.Simulation{TartAgent: true}
		if change != nil {
			change(s)
		}
	})
}

func (v *vm) tart() guest.Agent {
	v.t.Helper()
	c, err := clients.New(contract.GuestAgentTart, func(ctx context.Context) (net.Conn, error) {
		return v.runner.Connect(ctx, clients.Port(contract.GuestAgentTart))
	})
	require.NoError(v.t, err)
	v.t.Cleanup(c.Close)
	return c
}

func (v *vm) tartShell(script string) string {
	v.t.Helper()
	var out bytes.Buffer
	c := v.tart()
	defer c.Close()
	_, err := c.Exec(v.ctx(), guest.Command{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	require.NoError(v.t, err)
	return out.String()
}

// A guest with tart's agent gets what a guest with MacRack's gets.
func TestTartAgent(t *testing.T) {
	v := startTart(t, func(s *contract.Spec) {
		s.SSHAuthorizedKeys = []string{"ssh-ed25519 AAAA one"}
		s.StartupScript = "echo ran >> ran; echo hello; exit 3"
	})
	state := v.wait(func(s contract.State) bool { return s.StartupScript != nil && s.Address != nil })
	assert.Equal(t, contract.GuestAgentTart, state.GuestAgent)
	assert.True(t, state.GuestReady)
	assert.Equal(t, "192.168.64.2", state.Address.Value)
	assert.Equal(t, contract.AddressFromGuestAgent, state.Address.Source)
	assert.EqualValues(t, 3, state.StartupScript.ExitCode)
	assert.Equal(t, "hello\n", state.StartupScript.OutputTail)
	assert.Equal(t, "ran\nssh-ed25519 AAAA one\n", v.tartShell("cat ran .ssh/authorized_keys"))

	v.post(sim.PathReboot)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := v.tart().Info(ctx)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	assert.Equal(t, "ran\n", v.tartShell("cat ran"), "the script does not run again")

	_, err := v.runner.Stop(v.ctx(), time.Minute)
	require.NoError(t, err)
	assert.Equal(t, contract.ExitStopped, v.end().Reason)
}

func TestTartAgentGoesAway(t *testing.T) {
	v := startTart(t, nil).ready()
	ended := make(chan error, 1)
	began := writerFunc(func() { v.post(sim.PathGuestKill) })
	go func() {
		_, err := v.tart().Exec(v.ctx(), guest.Command{Args: []string{"sh", "-c", "echo; exec sleep 600"}, Stdout: began})
		ended <- err
	}()
	require.ErrorIs(t, <-ended, guest.ErrLost)
	v.ready()
}

func TestTartAgentHangs(t *testing.T) {
	v := startTart(t, func(s *contract.Spec) { s.StartupScript = "sleep 600" }).ready()
	v.post(sim.PathGuestFreeze)
	v.wait(func(s contract.State) bool { return !s.GuestReady && s.GuestSeen })
	_, err := v.runner.Stop(v.ctx(), time.Second)
	require.NoError(t, err)
	assert.Equal(t, contract.ExitStoppedByForce, v.end().Reason)
}
