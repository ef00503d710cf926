package agent

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
)

func (r *rack) recorded(reason string) bool {
	for _, record := range r.records() {
		if record.Details.Reason == reason {
			return true
		}
	}
	return false
}

// A stale cache does not end a virtual machine.
func TestPodThatTheCacheHasNot(t *testing.T) {
	r := newRack(t)
	i := r.run("a")
	stop, _, _, err := r.agent.mustStop(r.ctx, i, nil)
	require.NoError(t, err)
	assert.False(t, stop, "the API has the pod")
	r.onKube.prepend("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("down")
	})
	_, _, _, err = r.agent.mustStop(r.ctx, i, nil)
	require.Error(t, err, "silence of the API ends nothing")
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
	r.loseInstance("a")
	r.eventually(func() bool { s, ok := r.agent.slots.Find(string(i.UID)); return ok && s.Phase == slots.Exited }, func() any { return r.agent.slots.Statuses() })
	s, _ := r.agent.slots.Find(string(i.UID))
	require.Error(t, r.agent.syncMismatch(r.ctx, s))
	_, err := os.Stat(r.slot(s.Slot).SpecPath())
	require.NoError(t, err, "still there")
	down.Store(false)
	r.eventually(func() bool { return r.recorded("UnknownInstance") }, func() any { return r.records() })
	r.waitFree()
}

// ledger accepts records, or fails as an unavailable or overloaded one.
type ledger struct {
	away  atomic.Bool
	tries atomic.Int32
}

func (r *rack) ledgerFails(err error) *ledger {
	l := &ledger{}
	l.away.Store(true)
	r.onMacRack.prepend("create", "auditrecords", func(clienttesting.Action) (bool, runtime.Object, error) {
		l.tries.Add(1)
		return l.away.Load(), nil, err
	})
	return l
}

func TestInstanceIsNotRefusedBeforeItIsRecorded(t *testing.T) {
	r := newRack(t)
	ledger := r.ledgerFails(apierrors.NewTooManyRequests("too many rejections", 0))
	i := newInstance("a")
	i.Spec.LeaseName = "lease-2"
	r.create(i, newPod(i))
	r.eventually(func() bool { return ledger.tries.Load() > 1 }, func() any { return r.instance("a").Status })
	assert.Equal(t, instancev1alpha1.MacOSInstanceScheduled, r.instance("a").Status.Phase)
	ledger.away.Store(false)
	r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed)
	assert.True(t, r.recorded("ForeignPod"))
}

// A foreign pod is refused even while the ledger is unavailable, and is recorded later.
func TestForeignPodIsRecordedLater(t *testing.T) {
	r := newRack(t)
	ledger := r.ledgerFails(apierrors.NewServiceUnavailable("down"))
	pod := newPod(newInstance("nobody"))
	r.create(nil, pod)
	r.eventually(func() bool { return r.pod(pod.Name).Status.Phase == corev1.PodFailed }, func() any { return r.pod(pod.Name).Status })
	require.NoError(t, r.kube.CoreV1().Pods(tenant).Delete(r.ctx, pod.Name, metav1.DeleteOptions{}))
	assert.Empty(t, r.records())
	ledger.away.Store(false)
	r.eventually(func() bool { return len(r.records()) > 0 }, func() any { return nil })
	require.Len(t, r.records(), 1)
	assert.Equal(t, "ForeignPod", r.records()[0].Details.Reason)
	assert.Equal(t, "nobody", r.records()[0].Instance.Name)
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

// A virtual machine that ran without an agent is recorded as having run.
func TestVirtualMachineThatRanUnseen(t *testing.T) {
	r := newRack(t)
	i := newInstance("a")
	i.Status.Phase, i.Status.MachineID, i.Status.MACAddress = instancev1alpha1.MacOSInstanceStarting, "bQ==", "02:00:00:00:00:01"
	r.stop()
	started := make(chan bool, 100)
	r.onMacRack.prepend("patch", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		s := r.patched(action).Status
		started <- s.StartedAt != nil && !rules.InstanceEnded(s.Phase)
		return false, nil, nil
	})
	at := time.Now().Add(-time.Hour)
	require.NoError(t, contract.WriteJSON(r.slot(0).SpecPath(), &contract.Spec{
		InstanceUID: string(i.UID), Namespace: tenant, Name: "a", MachineID: "bQ==", MACAddress: "02:00:00:00:00:01", CPU: 1, MemoryBytes: 1,
	}))
	require.NoError(t, contract.WriteJSON(r.slot(0).StartedPath(), contract.Started{InstanceUID: string(i.UID), PID: 1, At: at}))
	r.create(i, newPod(i))
	r.start()
	status := r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed)
	assert.Contains(t, status.Message, "process was killed, or the Mac lost power")
	assert.True(t, <-started, "the ledger gets its start before its end")
	assert.WithinDuration(t, at, status.StartedAt.Time, time.Second)
	r.waitFree()
}

// No instance is declared gone while the content of a slot is unknown.
func TestUnknownVirtualMachine(t *testing.T) {
	r := newRack(t)
	i := r.run("a")
	slot := r.slotOf(i)
	r.stop()
	r.post(slot, sim.PathHang)
	require.NoError(t, os.WriteFile(r.slot(slot).SpecPath(), []byte("{"), 0o600))
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
	i := r.run("a")
	slot := r.slotOf(i)
	r.stop()
	r.post(slot, sim.PathHang)
	require.NoError(t, os.WriteFile(r.slot(slot).SpecPath(), []byte("{"), 0o600))
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

func TestGarbledSlot(t *testing.T) {
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

func TestGarbledState(t *testing.T) {
	for _, content := range []string{"", "{", "[]", `{"erased":1}`} {
		path := filepath.Join(t.TempDir(), "state.json")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		s, err := openState(path)
		require.NoError(t, err, content)
		assert.Equal(t, memory{}, s.get())
		require.NoError(t, s.change(func(m *memory) { m.LeaseUID = "l" }))
		aside, err := os.ReadFile(path + ".garbled")
		require.NoError(t, err)
		assert.Equal(t, content, string(aside))
		s, err = openState(path)
		require.NoError(t, err)
		assert.Equal(t, types.UID("l"), s.get().LeaseUID)
	}
}

// Erasing works on a full disk.
func TestWhatIsErasedIsRememberedLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	s, err := openState(filepath.Join(dir, "state.json"))
	require.NoError(t, err)
	s.erasing([]slots.Removed{{Path: "0/disk", Bytes: 1}})
	require.Error(t, s.keep())
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, s.keep())
	s, err = openState(s.path)
	require.NoError(t, err)
	assert.Equal(t, []string{"slots/0/disk (1 bytes)"}, s.get().Erased)
}

// A clock that was set back does not delay a try.
func TestClockPutBack(t *testing.T) {
	now := time.Now()
	a := &Agent{config: Config{Clock: clocktesting.NewFakeClock(now)}}
	assert.Equal(t, refusalPause, a.nextTry(now.Add(24*time.Hour)))
	assert.Equal(t, time.Second, a.nextTry(now.Add(time.Second-refusalPause)))
}
