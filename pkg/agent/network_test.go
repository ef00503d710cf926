package agent

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/sim"
)

// withoutGuestAgent gives guests a network, and no agent.
func withoutGuestAgent(r *rack) {
	require.NoError(r.t, r.host.SetGuest(contract.Simulation{NoGuestAgent: true}))
	r.launcher.Backend = &sim.Backend{Host: r.host, Clock: clock.RealClock{}, Network: true}
	_, err := r.macrack.ConfigV1alpha1().RackConfigs().Create(r.ctx, &configv1alpha1.RackConfig{
		ObjectMeta: metav1.ObjectMeta{Name: configv1alpha1.RackConfigName},
		Spec:       configv1alpha1.RackConfigSpec{GuestNetwork: configv1alpha1.GuestNetworkConfig{AllowedCIDRs: []string{"10.20.0.0/16"}, AllowedNames: []string{"git.corp"}}},
	}, metav1.CreateOptions{})
	require.NoError(r.t, err)
}

func TestPortForwardWithoutGuestAgent(t *testing.T) {
	r := newRack(t, withoutGuestAgent)
	r.run("a")
	r.eventually(func() bool { return r.instance("a").Status.IPAddress != nil }, func() any { return r.instance("a").Status })
	assert.Equal(t, "192.168.127.2", r.instance("a").Status.IPAddress.Value)
	assert.Equal(t, "DHCP", r.instance("a").Status.IPAddress.Source)
	slot, ok := r.agent.slots.Find("uid-a")
	require.True(t, ok)
	assert.Equal(t, contract.Network{Mode: contract.NetworkIsolated, AllowedCIDRs: []string{"10.20.0.0/16"}, AllowedNames: []string{"git.corp"}}, slot.Spec.Network)

	r.greets(22)
	_, ended := r.forward(23)
	err := <-ended
	require.ErrorIs(t, err, guest.ErrSilent)
	require.ErrorContains(t, err, "its network does not connect either")
	require.ErrorContains(t, err, "refused")
}

// The network reaches the ports of a guest with tart's agent, whose command nc this guest lacks.
func TestPortForwardWithTartAgent(t *testing.T) {
	r := newRack(t, withoutGuestAgent, func(r *rack) {
		require.NoError(r.t, r.host.SetGuest(contract.Simulation{TartAgent: true}))
	})
	r.run("a")
	r.eventually(func() bool {
		slot, ok := r.agent.slots.Find("uid-a")
		return ok && slot.State != nil && slot.State.GuestReady && slot.State.Address != nil
	}, func() any { return r.instance("a").Status })
	r.greets(22)
	_, ended := r.forward(23)
	err := <-ended
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "its network", "a service may listen only on the loopback interface, which the agent reaches")
}

// forward forwards a port of the guest of instance a.
func (r *rack) forward(port int32) (net.Conn, <-chan error) {
	r.t.Helper()
	client, stream := net.Pipe()
	require.NoError(r.t, client.SetDeadline(time.Now().Add(30*time.Second)))
	ended := make(chan error, 1)
	go func() {
		ended <- r.agent.session.PortForward(r.ctx, tenant, "pod-a", port, stream)
		_ = stream.Close()
	}()
	return client, ended
}

// greets expects the greeting of a simulated guest on a port.
func (r *rack) greets(port int32) {
	r.t.Helper()
	const greeting = "SSH-2.0-macrack-simulated\r\n"
	client, ended := r.forward(port)
	buffer := make([]byte, len(greeting))
	_, err := io.ReadFull(client, buffer)
	require.NoError(r.t, err)
	assert.Equal(r.t, greeting, string(buffer))
	_ = client.Close()
	require.NoError(r.t, <-ended)
}
