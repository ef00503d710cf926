package agent

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
)

func (r *rack) loseInstance(name string) {
	r.t.Helper()
	require.NoError(r.t, r.macrack.Tracker().Delete(instancev1alpha1.SchemeGroupVersion.WithResource("macosinstances"), tenant, name))
}

// loseRunning loses an instance whose pod the agent knows to run: it refuses a pod that has never
// run.
func (r *rack) loseRunning(name string) {
	r.t.Helper()
	r.eventually(func() bool {
		pod, err := r.agent.pods.Lister().Pods(tenant).Get("pod-" + name)
		return err == nil && pod.Status.Phase == corev1.PodRunning
	}, func() any { return r.pod("pod-" + name).Status })
	r.loseInstance(name)
}

// A virtual machine without an instance means that the API has lost state: the agent must not stop
// it.
func TestVirtualMachineWithoutInstance(t *testing.T) {
	for name, test := range map[string]struct {
		now func(r *rack, lost *instancev1alpha1.MacOSInstance)
		why string
	}{
		"no such instance": {func(*rack, *instancev1alpha1.MacOSInstance) {}, "the API has no such instance"},
		"another one of its name": {func(r *rack, lost *instancev1alpha1.MacOSInstance) {
			other := newInstance("a")
			other.UID = "uid-other"
			r.create(other, nil)
		}, "the API has another instance of that name (UID uid-other)"},
		"it is on another Mac": {func(r *rack, lost *instancev1alpha1.MacOSInstance) {
			elsewhere := lost.DeepCopy()
			elsewhere.ResourceVersion, elsewhere.Status.NodeName = "", "mac-2"
			r.create(elsewhere, nil)
		}, `the API has the instance on Mac "mac-2"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t)
			lost := r.run("a")
			// The agent's last write is newer than all objects of an API that was restored to an
			// earlier state.
			written := lost.DeepCopy()
			written.ResourceVersion = "1000000"
			r.agent.objects.instances.Wrote(written)
			r.loseRunning("a")
			test.now(r, lost)
			r.eventually(func() bool {
				c := meta.FindStatusCondition(r.macNode().Status.Conditions, rackv1alpha1.MacNodeSlotsHealthy)
				return c != nil && c.Reason == rackv1alpha1.ReasonUnknownInstance && strings.Contains(c.Message, test.why)
			}, func() any { return r.macNode().Status.Conditions })
			c := r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonUnknownInstance)
			assert.Contains(t, c.Message, "slot 0 has run acme/a (UID uid-a) since "+lost.Status.StartedAt.UTC().Format(time.RFC3339))
			r.changeMacNode(func(m *rackv1alpha1.MacNode) {
				m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonUnknownInstance, Since: metav1.Now(), EndInstances: []string{"uid-b"}}
			})

			// No VM starts, even after a restart of the agent, and the virtual machine continues to
			// run. Until the agent has looked up its instance, it does not report the slots as
			// healthy.
			r.onMacRack.prepend("patch", "macnodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if patch := string(action.(clienttesting.PatchAction).GetPatch()); strings.Contains(patch, "SlotsObtainable") {
					assert.Equal(t, 0, r.running(), patch)
				}
				return false, nil, nil
			})
			r.restart()
			b := newInstance("b")
			r.create(b, newPod(b))
			r.eventually(func() bool { return strings.Contains(r.instance("b").Status.Message, "quarantined") }, func() any { return r.instance("b").Status })
			r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonUnknownInstance)
			assert.Equal(t, 1, r.running())
			assert.Empty(t, r.records())

			// An administrator decides.
			r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Quarantine.EndInstances = []string{"uid-a"} })
			r.waitFree()
			assert.Equal(t, 0, r.running())
			assert.True(t, r.recorded("UnknownInstance"))
			r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
			r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Quarantine = nil })
			r.waitPhase("b", instancev1alpha1.MacOSInstanceRunning)
		})
	}
}

// After the API has been restored, the instance exists again.
func TestUnknownInstanceReturns(t *testing.T) {
	r := newRack(t)
	lost := r.run("a")
	r.loseRunning("a")
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonUnknownInstance)
	lost.ResourceVersion = ""
	r.create(lost, nil)
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, r.instance("a").Status.Phase)
	assert.Equal(t, 1, r.running())
}

func TestSilenceOfTheAPIEndsNothing(t *testing.T) {
	r := newRack(t)
	r.run("a")
	broken := true
	r.onMacRack.prepend("get", "macosinstances", func(clienttesting.Action) (bool, runtime.Object, error) {
		return broken, nil, apierrors.NewServiceUnavailable("down")
	})
	slot, ok := r.agent.slots.Find("uid-a")
	require.True(t, ok)
	require.Error(t, r.agent.mismatches.SyncSlot(r.ctx, slot))
	broken = false
	require.NoError(t, r.agent.mismatches.SyncSlot(r.ctx, slot), "the API knows the instance")
	assert.Equal(t, 1, r.running())
	still, ok := r.agent.slots.Find("uid-a")
	require.True(t, ok)
	assert.Equal(t, contract.VMRunning, still.State.VM)
}

func (r *rack) recorded(reason string) bool {
	for _, record := range r.records() {
		if record.Details.Reason == reason {
			return true
		}
	}
	return false
}

func TestUnknownInstanceIsNotForgottenBeforeItIsRecorded(t *testing.T) {
	r := newRack(t)
	i := r.run("a")
	var down atomic.Bool
	down.Store(true)
	r.onMacRack.prepend("create", "auditrecords", func(clienttesting.Action) (bool, runtime.Object, error) {
		return down.Load(), nil, apierrors.NewServiceUnavailable("down")
	})
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonUnknownInstance, Since: metav1.Now(), EndInstances: []string{"uid-a"}}
	})
	r.loseRunning("a")
	r.eventually(func() bool { s, ok := r.agent.slots.Find(string(i.UID)); return ok && s.Phase == slots.Exited }, func() any { return r.agent.slots.Statuses() })
	s, _ := r.agent.slots.Find(string(i.UID))
	require.Error(t, r.agent.mismatches.SyncSlot(r.ctx, s))
	_, err := os.Stat(r.slot(s.Slot).SpecPath())
	require.NoError(t, err, "still there")
	down.Store(false)
	r.eventually(func() bool { return r.recorded("UnknownInstance") }, func() any { return r.records() })
	r.waitFree()
}

func TestVirtualMachineOfAnotherIdentity(t *testing.T) {
	r := newRack(t)
	i := r.run("a")
	slot := r.slotOf(i)
	r.stop()
	spec, err := r.slot(slot).ReadSpec()
	require.NoError(t, err)
	spec.MachineID = sim.NewMachineID()
	require.NoError(t, contract.WriteJSON(r.slot(slot).SpecPath(), spec))
	r.start()
	assert.Contains(t, r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed).Message, "no longer exists on the Mac")
	assert.True(t, r.recorded("ForeignIdentity"))
	assert.Equal(t, 0, r.running())
	r.waitFree()
}

func TestCopyOfAVirtualMachine(t *testing.T) {
	r := newRack(t)
	i := r.run("a")
	slot := r.slotOf(i)
	r.stop()
	spec, err := r.slot(slot).ReadSpec()
	require.NoError(t, err)
	require.NoError(t, contract.WriteJSON(r.slot(1-slot).SpecPath(), spec))
	r.start()
	r.eventually(func() bool { return r.recorded("DuplicateIdentity") }, func() any { return r.records() })
	r.eventually(func() bool { return r.agent.slots.Statuses()[1-slot].Phase == slots.Free }, func() any { return r.agent.slots.Statuses() })
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, r.instance("a").Status.Phase)
	assert.Equal(t, 1, r.running())
}

// loseSlot runs an instance and stops the agent. The next agent cannot read the slot of the
// instance, and its runner does not answer.
func (r *rack) loseSlot(name string) (slot int) {
	slot = r.slotOf(r.run(name))
	r.stop()
	r.post(slot, sim.PathHang)
	require.NoError(r.t, os.WriteFile(r.slot(slot).SpecPath(), []byte("{"), 0o600))
	return slot
}

// No instance is declared gone while the content of a slot is unknown.
func TestUnknownVirtualMachine(t *testing.T) {
	r := newRack(t)
	slot := r.loseSlot("a")
	r.start()
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonCannotReattach)
	r.eventually(func() bool { return strings.Contains(r.instance("a").Status.Message, "cannot determine") }, func() any { return r.instance("a").Status })
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, r.instance("a").Status.Phase)
	r.post(slot, sim.PathWake)
	r.eventually(func() bool { return r.instance("a").Status.Message == "" }, func() any { return r.instance("a").Status })
	assert.Equal(t, 1, r.running())
}

// A stop request does not change that.
func TestStopOfAnUnknownVirtualMachine(t *testing.T) {
	r := newRack(t)
	slot := r.loseSlot("a")
	var running atomic.Int32
	r.onMacRack.prepend("patch", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if rules.InstanceEnded(r.patched(action).Status.Phase) {
			n, _ := r.host.RunningVMs()
			running.Add(int32(n))
		}
		return false, nil, nil
	})
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) {
		i.Status.Phase = instancev1alpha1.MacOSInstanceStopping
		i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now(), Reason: "Asked", GracePeriodSeconds: 30}
	})
	r.start()
	r.eventually(func() bool {
		s := r.instance("a").Status
		return strings.Contains(s.Message, "cannot determine") || s.Phase == instancev1alpha1.MacOSInstanceStopped
	}, func() any { return r.instance("a").Status })
	assert.Equal(t, instancev1alpha1.MacOSInstanceStopping, r.instance("a").Status.Phase)
	r.post(slot, sim.PathWake)
	assert.Equal(t, "Asked", r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped).Message)
	assert.Zero(t, running.Load(), "stopped means that the VM is gone")
	r.waitFree()
}
