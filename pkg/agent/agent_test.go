package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
)

func TestRestartAdopts(t *testing.T) {
	r := newRack(t)
	before := r.run("a")
	r.eventually(func() bool { return r.pod("pod-a").Status.Phase == corev1.PodRunning }, func() any { return r.pod("pod-a").Status })
	r.restart()
	r.run("b") // the new agent works
	after := r.instance("a")
	assert.Equal(t, before.Status.MachineID, after.Status.MachineID)
	assert.Equal(t, before.Status.MACAddress, after.Status.MACAddress)
	assert.Equal(t, before.Status.StartedAt, after.Status.StartedAt)
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, after.Status.Phase)
	assert.Equal(t, corev1.PodRunning, r.pod("pod-a").Status.Phase)
	assert.Equal(t, 2, r.running())
	assert.Len(t, r.machineIDs, 2, "an adopted VM keeps its identity")

	// It ends while no agent runs.
	r.stop()
	r.post(0, sim.PathCrash)
	r.eventually(func() bool { return r.running() == 1 }, func() any { return nil })
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, r.instance("a").Status.Phase)
	r.start()
	status := r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed)
	assert.Contains(t, status.Message, "crashed")
	assert.Nil(t, status.IPAddress)
}

func TestDeletedNodeIsRegisteredAgain(t *testing.T) {
	r := newRack(t)
	get := func() *corev1.Node {
		n, err := r.kube.CoreV1().Nodes().Get(r.ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return n
	}
	r.eventually(func() bool { return get() != nil }, func() any { return nil })
	r.run("a")

	// The taint set by the controllers survives a restart of the agent.
	node := get()
	tainted := []corev1.Taint{{Key: rules.TaintTenant, Value: tenant, Effect: corev1.TaintEffectNoSchedule}}
	node.Spec.Taints = tainted
	_, err := r.kube.CoreV1().Nodes().Update(r.ctx, node, metav1.UpdateOptions{})
	require.NoError(t, err)
	r.restart()
	r.run("b")
	assert.Equal(t, tainted, get().Spec.Taints)

	require.NoError(t, r.kube.CoreV1().Nodes().Delete(r.ctx, nodeName, metav1.DeleteOptions{}))
	r.eventually(func() bool { return get() != nil }, func() any { return nil })
	assert.Equal(t, rules.TaintUnleased, get().Spec.Taints[0].Key)
	assert.Equal(t, 2, r.running())
}

func TestUnchangedStatusIsNotWritten(t *testing.T) {
	r := newRack(t)
	r.run("a")
	r.eventually(func() bool { return len(r.macNode().Status.Images) == 1 }, func() any { return r.macNode().Status })
	writes := func() int {
		n := 0
		for _, action := range r.macrack.Actions() {
			if action.GetVerb() == "patch" {
				n++
			}
		}
		return n
	}
	var before int
	r.eventually(func() bool {
		m, err := r.agent.objects.macNode.Cached()
		if err != nil {
			return false
		}
		i, err := r.agent.objects.instances.Cached(tenant, "a")
		before = writes()
		return err == nil && m.ResourceVersion == r.macNode().ResourceVersion && i.ResourceVersion == r.instance("a").ResourceVersion
	}, func() any { return nil })
	for range 5 {
		require.NoError(t, r.agent.macNode.Reconcile(r.ctx))
		require.NoError(t, r.agent.instance.Reconcile(r.ctx, types.NamespacedName{Namespace: tenant, Name: "a"}))
	}
	assert.Equal(t, before, writes())
}

func TestOneAgentAtATime(t *testing.T) {
	r := newRack(t)
	r.run("a")
	second, err := New(r.agent.config)
	require.NoError(t, err)
	require.ErrorIs(t, second.Run(r.ctx), contract.ErrLocked)
}

func TestHeartbeats(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now().Add(48 * time.Hour).Truncate(time.Second))
	r := newRack(t, func(r *rack) { r.clock = fake })
	lease := func() *coordinationv1.Lease {
		l, err := r.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(r.ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return l
	}
	r.eventually(func() bool { return lease() != nil }, func() any { return nil })
	assert.True(t, lease().Spec.RenewTime.Time.Equal(fake.Now()), "heartbeats carry the agent's time, %s", lease().Spec.RenewTime)

	// The interval is that of the RackConfig.
	_, err := r.macrack.ConfigV1alpha1().RackConfigs().Create(r.ctx, &configv1alpha1.RackConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       configv1alpha1.RackConfigSpec{Agent: configv1alpha1.AgentConfig{HeartbeatInterval: scalar.NewDuration(time.Second)}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r.eventually(func() bool { return *lease().Spec.LeaseDurationSeconds == 4 }, func() any { return lease() })
	fake.Step(time.Minute)
	r.eventually(func() bool { return lease().Spec.RenewTime.Time.Equal(fake.Now()) }, func() any { return lease() })
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
