package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/agent/state"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/vm/sim"
)

func TestAdministratorEndsQuarantine(t *testing.T) {
	r := newRack(t, func(r *rack) {
		s, err := state.Open(filepath.Join(r.dir, "state.json"))
		require.NoError(t, err)
		require.NoError(t, s.Change(func(m *state.Data) {
			m.Unhealthy = &state.Unhealthy{Reason: rackv1alpha1.ReasonKernelQuotaStuck, Message: "stuck", BootID: "boot-1"}
		}))
	})
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonKernelQuotaStuck)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonKernelQuotaStuck, Since: metav1.Now()}
	})
	r.eventually(func() bool { u := r.agent.state.Get().Unhealthy; return u != nil && u.Quarantined }, func() any { return r.agent.state.Get() })
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Quarantine = nil })
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
}

func TestSilentRunner(t *testing.T) {
	r := newRack(t)
	i := r.run("a")
	slot := r.slotOf(i)
	r.post(slot, sim.PathHang)
	c := r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonCannotReattach)
	assert.Contains(t, c.Message, "does not respond")
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, r.instance("a").Status.Phase, "silence ends nothing")
	r.post(slot, sim.PathWake)
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
	r.eventually(func() bool { return r.instance("a").Status.Message == "" }, func() any { return r.instance("a").Status })
}

func TestSerialNumberOfAnotherMac(t *testing.T) {
	r := newRack(t, func(r *rack) {
		r.host = sim.HostDir(tempDir(r.t))
		require.NoError(r.t, r.host.Init("C02OTHER", "boot-1"))
	})
	c := r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonSerialMismatch)
	assert.Contains(t, c.Message, "C02OTHER")
}

func TestCorruptSlot(t *testing.T) {
	r := newRack(t)
	i := r.run("a")
	slot := r.slotOf(i)
	r.stop()
	r.post(slot, sim.PathCrash)
	r.eventually(func() bool { return r.running() == 0 }, func() any { return nil })
	r.launcher.Wait()
	require.NoError(t, os.WriteFile(r.slot(slot).SpecPath(), nil, 0o600))
	r.start()
	assert.Contains(t, r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed).Message, "no longer exists on the Mac")
	r.eventually(func() bool { return r.recorded("GarbledSlot") }, func() any { return r.records() })
	r.waitFree()
	r.run("b")
}

// A write of the agent that the cache does not have yet does not end a quarantine.
func TestQuarantineEndsByTheCacheAlone(t *testing.T) {
	r := newRack(t)
	r.waitCondition(rackv1alpha1.MacNodeStorageHealthy, metav1.ConditionTrue, "EnoughFree")
	require.NoError(t, r.agent.state.Change(func(m *state.Data) {
		m.Unhealthy = &state.Unhealthy{Reason: rackv1alpha1.ReasonKernelQuotaStuck, Message: "stuck", BootID: "boot-1"}
	}))
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonKernelQuotaStuck, Since: metav1.Now()}
	})
	r.eventually(func() bool { return r.agent.state.Get().Unhealthy.Quarantined }, func() any { return r.agent.state.Get() })
	ahead := r.macNode()
	ahead.ResourceVersion, ahead.Status.Quarantine = "1000000", nil
	r.agent.objects.macNode.Wrote(ahead)
	require.NoError(t, r.agent.macNode.Reconcile(t.Context()))
	assert.NotNil(t, r.agent.state.Get().Unhealthy)
}
