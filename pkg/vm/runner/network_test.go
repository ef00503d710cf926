package runner_test

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/vm/contract"
)

func isolated(s *contract.Spec) { s.Network.Mode = contract.NetworkIsolated }

// greeting dials a port of the guest and returns the first n bytes.
func (v *vm) greeting(port uint16, n int) string {
	v.t.Helper()
	conn, err := v.runner.Dial(v.ctx(), port)
	require.NoError(v.t, err)
	defer conn.Close()
	buffer := make([]byte, n)
	_, err = io.ReadFull(conn, buffer)
	require.NoError(v.t, err)
	return string(buffer)
}

// An image without a guest agent has an address, and its ports are reachable.
func TestIsolatedNetwork(t *testing.T) {
	v := start(t, func(s *contract.Spec) {
		isolated(s)
		s.Simulation.NoGuestAgent = true
	})
	state := v.wait(func(s contract.State) bool { return s.Address != nil })
	assert.True(t, state.Isolated)
	assert.False(t, state.GuestReady)
	assert.Equal(t, "192.168.127.2", state.Address.Value)
	assert.Equal(t, contract.AddressFromDHCPLease, state.Address.Source)
	assert.Equal(t, "SSH-2.0-", v.greeting(22, 8))
	assert.Equal(t, "RFB 003.889\n", v.greeting(5900, 12))
	_, err := v.runner.Dial(v.ctx(), 23)
	assert.ErrorContains(t, err, "port 23 of the guest")
	assert.ErrorContains(t, err, "refused")

	// Each direction ends by itself.
	conn, err := v.runner.Dial(v.ctx(), 22)
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprint(conn, "hello")
	require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	all, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, "SSH-2.0-macrack-simulated\r\nhello", string(all))

	// A connection ends with the VM.
	conn, err = v.runner.Dial(v.ctx(), 5900)
	require.NoError(t, err)
	defer conn.Close()
	_, err = v.runner.Kill(v.ctx())
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err = io.Copy(io.Discard, conn)
	var timeout net.Error
	assert.NotErrorAs(t, err, &timeout, "the connection outlived its VM")
}

// The network knows the address, whatever the guest agent reports.
func TestAddressOfIsolatedGuest(t *testing.T) {
	v := start(t, isolated)
	state := v.wait(func(s contract.State) bool { return s.GuestReady && s.Address != nil })
	assert.Equal(t, "192.168.127.2", state.Address.Value)
	assert.Equal(t, contract.AddressFromDHCPLease, state.Address.Source)
	out, code := v.sh("echo still works")
	assert.Equal(t, "still works\n", out)
	assert.Zero(t, code)
}

func TestDialWithoutIsolatedNetwork(t *testing.T) {
	v := start(t, func(s *contract.Spec) { s.Network.Mode = contract.NetworkNAT }).ready()
	_, err := v.runner.Dial(v.ctx(), 22)
	assert.ErrorContains(t, err, "the virtual machine has no isolated network")
}

func TestInvalidAllowedDestination(t *testing.T) {
	v := start(t, func(s *contract.Spec) {
		isolated(s)
		s.Network.AllowedCIDRs = []string{"10.0.0.1/8"}
	})
	result := v.end()
	assert.Equal(t, contract.ExitStartFailed, result.Reason)
	assert.Contains(t, result.Error.Message, `allowed destinations: "10.0.0.1/8" must end in zero bits; use 10.0.0.0/8`)
}
