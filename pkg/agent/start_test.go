package agent

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

func TestPodBecomesVirtualMachine(t *testing.T) {
	r := newRack(t)
	i := newInstance("a")
	i.Spec.StartupScript = "true"
	r.create(i, newPod(i))
	r.eventually(func() bool { return r.instance("a").Status.Startup != nil }, func() any { return r.instance("a").Status })
	status := r.waitPhase("a", instancev1alpha1.MacOSInstanceRunning)
	assert.NotEmpty(t, status.MachineID)
	mac, err := net.ParseMAC(status.MACAddress)
	require.NoError(t, err)
	assert.EqualValues(t, 0b10, mac[0]&0b11, "locally administered, unicast")
	assert.Equal(t, "sha256:26", status.ImageDigest)
	assert.Equal(t, "192.168.64.2", status.IPAddress.Value)
	assert.Equal(t, "GuestAgent", status.IPAddress.Source)
	assert.NotNil(t, status.StartedAt)
	assert.EqualValues(t, 0, status.Startup.ExitCode)
	assert.True(t, meta.IsStatusConditionTrue(status.Conditions, instancev1alpha1.MacOSInstanceImageReady))
	assert.True(t, meta.IsStatusConditionTrue(status.Conditions, instancev1alpha1.MacOSInstanceGuestReady))
	spec, err := r.slot(0).ReadSpec()
	require.NoError(t, err)
	assert.Equal(t, status.MachineID, spec.MachineID, "the VM has the identity that the API has")
	assert.Equal(t, status.MACAddress, spec.MACAddress)
	disk, err := os.Stat(r.slot(0).DiskPath())
	require.NoError(t, err)
	assert.EqualValues(t, 16<<20, disk.Size(), "grown to the class's size")

	r.eventually(func() bool { return r.pod("pod-a").Status.Phase == corev1.PodRunning }, func() any { return r.pod("pod-a").Status })
	assert.True(t, r.pod("pod-a").Status.ContainerStatuses[0].Ready)
	log, err := r.agent.session.Logs(r.ctx, tenant, "pod-a", "vm", api.ContainerLogOpts{})
	require.NoError(t, err)
	text, err := io.ReadAll(log)
	require.NoError(t, err)
	assert.Contains(t, string(text), "the guest agent responds")

	node, err := r.kube.CoreV1().Nodes().Get(r.ctx, nodeName, metav1.GetOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 2, ptr(node.Status.Allocatable[rules.ResourceMacOSVM]).Value())
	assert.Equal(t, []corev1.Taint{{Key: rules.TaintUnleased, Effect: corev1.TaintEffectNoSchedule}}, node.Spec.Taints)
	assert.Equal(t, "darwin", node.Labels[corev1.LabelOSStable])

	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
	m := r.macNode().Status
	assert.Equal(t, "boot-1", m.BootID)
	assert.Equal(t, serial, m.Hardware.SerialNumber)
	r.eventually(func() bool { return len(r.macNode().Status.Images) == 1 }, func() any { return r.macNode().Status })
	assert.Equal(t, "macos-26", r.macNode().Status.Images[0].Name)

	// It stops on request, and is reported as stopped only after its end.
	stopped := make(chan int, 1)
	r.onMacRack.prepend("patch", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if r.patched(action).Status.Phase == instancev1alpha1.MacOSInstanceStopped {
			n, _ := r.host.RunningVMs()
			stopped <- n
		}
		return false, nil, nil
	})
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) {
		i.Status.Phase = instancev1alpha1.MacOSInstanceStopping
		i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now(), By: "acme", Reason: "Asked", GracePeriodSeconds: 30}
	})
	status = r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped)
	assert.Equal(t, 0, <-stopped)
	assert.Nil(t, status.IPAddress)
	assert.NotNil(t, status.StoppedAt)
	assert.Equal(t, "Asked", status.Message)
	r.waitFree()
	r.eventually(func() bool { return r.pod("pod-a").Status.Phase == corev1.PodSucceeded }, func() any { return r.pod("pod-a").Status })
}

func TestThirdVirtualMachineIsRefused(t *testing.T) {
	r := newRack(t)
	a, b := r.run("a"), r.run("b")
	assert.NotEqual(t, a.Status.IPAddress.Value, b.Status.IPAddress.Value)
	assert.NotEqual(t, a.Status.MachineID, b.Status.MachineID)
	c := newInstance("c")
	r.create(c, newPod(c))
	status := r.waitPhase("c", instancev1alpha1.MacOSInstanceFailed)
	assert.Contains(t, status.Message, "SlotsFull: 2 virtual machines are on the Mac")
	assert.Empty(t, status.MachineID)
	r.eventually(func() bool { return r.pod("pod-c").Status.Reason == "SlotsFull" }, func() any { return r.pod("pod-c").Status })
	assert.Equal(t, 2, r.running())
	assert.Equal(t, "SlotsFull", r.records()[0].Details.Reason)

	// An instance waits for a slot that is being erased.
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) {
		i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now(), GracePeriodSeconds: 30}
	})
	r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped)
	r.run("d")
	assert.Equal(t, 2, r.running())
}

func TestRegistryMustAcceptIdentity(t *testing.T) {
	var refused []string
	r := newRack(t, func(r *rack) {
		r.onMacRack.prepend("patch", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
			i := r.patched(action)
			if i.Status.MachineID == "" || len(refused) >= 2 {
				return false, nil, nil
			}
			n, _ := r.host.RunningVMs()
			assert.Equal(t, 0, n, "no VM starts before its identity is accepted")
			refused = append(refused, i.Status.MachineID)
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), i.Name, fmt.Errorf("the machine ID is another instance's"))
		})
	})
	i := r.run("a")
	require.Len(t, refused, 2)
	assert.NotEqual(t, refused[0], refused[1])
	assert.NotContains(t, refused, i.Status.MachineID)
	spec, err := r.slot(0).ReadSpec()
	require.NoError(t, err)
	assert.Equal(t, i.Status.MachineID, spec.MachineID)
}

// No VM is launched before the registry has granted its start.
func TestLaunchWaitsForTheGrant(t *testing.T) {
	var withheld atomic.Bool
	withheld.Store(true)
	asked := make(chan struct{}, 1000)
	r := newRack(t, func(r *rack) {
		r.judge = func(old, obj runtime.Object) error {
			if i, ok := obj.(*instancev1alpha1.MacOSInstance); ok && i.Status.MachineID != "" && withheld.Load() {
				asked <- struct{}{}
				return sameIdentity(old, obj)
			}
			return grant(old, obj)
		}
	})
	i := newInstance("a")
	r.create(i, newPod(i))
	for range 3 {
		<-asked
	}
	assert.Equal(t, instancev1alpha1.MacOSInstanceStarting, r.instance("a").Status.Phase)
	for _, s := range r.agent.slots.Statuses() {
		assert.Equal(t, slots.Free, s.Phase)
	}
	withheld.Store(false)
	r.waitPhase("a", instancev1alpha1.MacOSInstanceRunning)
	assert.Len(t, r.machineIDs, 1, "the identity is the first one's")
}

func TestStartResumesWithAcceptedIdentity(t *testing.T) {
	r := newRack(t)
	i := newInstance("a")
	i.Status.Phase, i.Status.MachineID, i.Status.MACAddress = instancev1alpha1.MacOSInstanceStarting, "bQ==", "02:00:00:00:00:01"
	r.create(i, newPod(i))
	r.waitPhase("a", instancev1alpha1.MacOSInstanceRunning)
	assert.Equal(t, "bQ==", r.instance("a").Status.MachineID)
	assert.Empty(t, r.machineIDs)
}

func TestStuckKernelQuota(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	r := newRack(t, func(r *rack) {
		r.clock = fake
		require.NoError(t, r.host.Leak(2))
	})
	i := newInstance("a")
	r.create(i, newPod(i))
	r.eventually(func() bool { return strings.Contains(r.instance("a").Status.Message, "refuses") }, func() any { return r.instance("a").Status })
	c := meta.FindStatusCondition(r.macNode().Status.Conditions, rackv1alpha1.MacNodeSlotsHealthy)
	require.NotNil(t, c)
	assert.Equal(t, metav1.ConditionTrue, c.Status, "one refusal is no proof")
	ledger := r.ledgerFails(apierrors.NewServiceUnavailable("down"))
	r.eventually(func() bool {
		fake.Step(time.Second)
		return ledger.tries.Load() > 1
	}, func() any { return r.instance("a").Status })
	assert.Equal(t, instancev1alpha1.MacOSInstanceStarting, r.instance("a").Status.Phase, "it is on record before it has failed")
	ledger.away.Store(false)
	r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed)
	c = r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonKernelQuotaStuck)
	assert.Regexp(t, `refused a virtual machine ([7-9]|\d\d+) times in \S+ although 0 of 2 run`, c.Message)
	assert.Equal(t, rackv1alpha1.LayerKernel, r.records()[0].Details.Layer)

	// No further VM is started, even after a restart of the agent.
	r.restart()
	b := newInstance("b")
	r.create(b, newPod(b))
	r.eventually(func() bool { return strings.Contains(r.instance("b").Status.Message, "quarantined") }, func() any { return r.instance("b").Status })
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonKernelQuotaStuck)

	// A reboot ends the quarantine.
	r.stop()
	require.NoError(t, r.host.Reboot("boot-2"))
	r.start()
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
	assert.Equal(t, "boot-2", r.macNode().Status.BootID)
	r.waitPhase("b", instancev1alpha1.MacOSInstanceRunning)
}

func TestRefusalThatPasses(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	r := newRack(t, func(r *rack) {
		r.clock = fake
		require.NoError(t, r.host.Leak(2))
	})
	i := newInstance("a")
	r.create(i, newPod(i))
	r.eventually(func() bool { return strings.Contains(r.instance("a").Status.Message, "refuses") }, func() any { return r.instance("a").Status })
	require.NoError(t, r.host.Reboot("boot-2")) // the kernel finds its slots again
	r.eventually(func() bool {
		fake.Step(time.Second)
		return r.instance("a").Status.Phase == instancev1alpha1.MacOSInstanceRunning
	}, func() any { return r.instance("a").Status })
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
}

// Time without tries is no proof against the kernel, and a try does not wait for the API.
func TestRefusalWhileTheAPIIsAway(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	r := newRack(t, func(r *rack) {
		r.clock = fake
		require.NoError(t, r.host.Leak(2))
	})
	var reports atomic.Int32
	r.onMacRack.prepend("patch", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if !strings.Contains(r.patched(action).Status.Message, "refuses") {
			return false, nil, nil
		}
		reports.Add(1)
		return true, nil, apierrors.NewServiceUnavailable("down")
	})
	i := newInstance("a")
	r.create(i, newPod(i))
	r.eventually(func() bool { return reports.Load() > 0 }, func() any { return r.instance("a").Status })
	require.NoError(t, r.host.Reboot("boot-2")) // the kernel finds its slots again
	fake.Step(2 * time.Minute)
	r.waitPhase("a", instancev1alpha1.MacOSInstanceRunning)
	assert.Nil(t, r.agent.state.Get().Unhealthy)
}
