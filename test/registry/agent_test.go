package registry

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/test/registrytest"
)

// A hostile agent can damage its own Mac, and no other object.
func TestAgentIsKeptToItsMac(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	f.lease("acme", "build", "mac-1")
	f.lease("globex", "build", "mac-2")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "mine", "build")))
	require.NoError(t, f.create(t.Context(), newInstance("globex", "theirs", "build")))
	agent := f.agent("mac-1")
	rack, instances := agent.RackV1alpha1(), agent.InstanceV1alpha1()
	forbidden := func(err error) {
		t.Helper()
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
	}

	_, err := rack.MacNodes().Get(t.Context(), "mac-2", metav1.GetOptions{})
	forbidden(err)
	_, err = rack.MacNodes().List(t.Context(), metav1.ListOptions{})
	forbidden(err)
	nodes, err := rack.MacNodes().List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=mac-1"})
	require.NoError(t, err)
	assert.Len(t, nodes.Items, 1)
	_, err = rack.MacNodeLeases("").List(t.Context(), metav1.ListOptions{})
	forbidden(err)
	_, err = rack.AuditRecords("").List(t.Context(), metav1.ListOptions{})
	forbidden(err)
	_, err = instances.MacOSInstances("").List(t.Context(), metav1.ListOptions{})
	forbidden(err)
	_, err = instances.MacOSInstances("").Watch(t.Context(), metav1.ListOptions{FieldSelector: "status.nodeName=mac-2"})
	forbidden(err)
	_, err = instances.MacOSInstances("globex").Get(t.Context(), "theirs", metav1.GetOptions{})
	forbidden(err)
	_, err = instances.MacOSInstances("globex").Get(t.Context(), "none", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	own, err := instances.MacOSInstances("").List(t.Context(), metav1.ListOptions{FieldSelector: "status.nodeName=mac-1"})
	require.NoError(t, err)
	require.Len(t, own.Items, 1)
	assert.Equal(t, "mine", own.Items[0].Name)

	theirs := f.getInstance("globex", "theirs")
	theirs.Status.Phase = instancev1alpha1.MacOSInstanceStopped
	_, err = instances.MacOSInstances("globex").UpdateStatus(t.Context(), theirs, metav1.UpdateOptions{})
	forbidden(err)
	forbidden(rack.MacNodes().Delete(t.Context(), "mac-1", metav1.DeleteOptions{}))
	_, err = rack.MacNodes().Patch(t.Context(), "mac-1", types.MergePatchType, []byte(`{"spec":{"maintenance":true}}`), metav1.PatchOptions{})
	forbidden(err)
	_, err = rack.MacNodes().Patch(t.Context(), "mac-2", types.MergePatchType, []byte(`{"status":{"bootID":"9"}}`), metav1.PatchOptions{}, "status")
	forbidden(err)
	_, err = rack.MacNodes().Patch(t.Context(), "mac-1", types.ApplyPatchType,
		[]byte(`{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNode","metadata":{"name":"mac-1"},"status":{"conditions":[{"type":"Ready","status":"True","reason":"ISaySo","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`),
		metav1.PatchOptions{FieldManager: "agent"}, "status")
	forbidden(err)
	assert.ErrorContains(t, err, "heartbeats")
	_, err = rack.MacNodeLeases("acme").Bind(t.Context(), "build", &rackv1alpha1.MacNodeLeaseBinding{NodeName: "mac-1"}, metav1.CreateOptions{})
	forbidden(err)
	_, err = instances.MacOSInstances("acme").Stop(t.Context(), "mine", &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
	forbidden(err)

	t.Run("it cannot revert reported facts", func(t *testing.T) {
		f.start("mac-1", "acme", "mine", 1)
		f.stopped("mac-1", "acme", "mine")
		for _, phase := range []instancev1alpha1.MacOSInstancePhase{instancev1alpha1.MacOSInstanceRunning, instancev1alpha1.MacOSInstancePending, instancev1alpha1.MacOSInstanceFailed} {
			assert.Error(t, f.write(agent, "acme", "mine", func(s *instancev1alpha1.MacOSInstanceStatus) { s.Phase = phase }), phase)
		}
		assert.Zero(t, f.node("mac-1").Status.RunningVMs)
	})
	t.Run("it cannot report the virtual machine of another Mac's instance", func(t *testing.T) {
		before := f.getInstance("globex", "theirs")
		forbidden(f.write(agent, "globex", "theirs", func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.Phase = instancev1alpha1.MacOSInstanceStarting
			s.MachineID, s.MACAddress = identityOf(7)
		}))
		assert.Equal(t, before, f.getInstance("globex", "theirs"))
	})
}

// The ledger accepts reports of rejections only from the components that reject, and about their
// own rejections.
func TestReports(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	lease := f.lease("acme", "build", "mac-1")
	report := func(layer rackv1alpha1.AuditLayer, node string) *rackv1alpha1.AuditRecord {
		return &rackv1alpha1.AuditRecord{
			Type: rackv1alpha1.InstanceRejected, Chassis: rackv1alpha1.AuditChassis{NodeName: node},
			Details: rackv1alpha1.AuditDetails{Layer: layer, Reason: "ForeignPod", Message: "a pod that is not a placeholder"},
		}
	}
	agent := f.agent("mac-1").RackV1alpha1()
	_, err := agent.AuditRecords("acme").Create(t.Context(), report(rackv1alpha1.LayerAgent, "mac-1"), metav1.CreateOptions{})
	require.NoError(t, err)
	records := f.records("acme")
	own := records[len(records)-1]
	assert.Equal(t, rackv1alpha1.InstanceRejected, own.Type)
	assert.Equal(t, rackv1alpha1.AuditChassis{NodeName: "mac-1", SerialNumber: "C07AAAAA0001"}, own.Chassis)
	assert.Equal(t, "system:node:mac-1", own.Actor.Username)

	// The source is the namespace of the foreign pod; neither tenant may read the record.
	_, err = agent.AuditRecords("globex").Create(t.Context(), report(rackv1alpha1.LayerAgent, "mac-1"), metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Empty(t, f.records("globex"))
	system := f.records("macrack-system")
	require.NotEmpty(t, system)
	cross := system[len(system)-1]
	assert.Equal(t, rackv1alpha1.CrossTenantRejected, cross.Type)
	assert.Equal(t, "acme", cross.Tenant)
	assert.Equal(t, "globex", cross.Details.SourceNamespace)
	assert.Equal(t, lease.UID, cross.Lease.UID)
	assert.Equal(t, own.Sequence+1, cross.Sequence, "one chain for the Mac")

	_, err = f.controllers.RackV1alpha1().AuditRecords("acme").Create(t.Context(), report(rackv1alpha1.LayerScheduler, "mac-1"), metav1.CreateOptions{})
	require.NoError(t, err)

	count := len(f.records(""))
	for name, create := range map[string]func() error{
		"an administrator": func() error {
			_, err := f.admin.RackV1alpha1().AuditRecords("acme").Create(t.Context(), report(rackv1alpha1.LayerAgent, "mac-1"), metav1.CreateOptions{})
			return err
		},
		"a tenant": func() error {
			_, err := f.acme.RackV1alpha1().AuditRecords("acme").Create(t.Context(), report(rackv1alpha1.LayerScheduler, "mac-1"), metav1.CreateOptions{})
			return err
		},
		"an agent, of another Mac": func() error {
			_, err := agent.AuditRecords("acme").Create(t.Context(), report(rackv1alpha1.LayerAgent, "mac-2"), metav1.CreateOptions{})
			return err
		},
		"the controllers, of an agent's": func() error {
			_, err := f.controllers.RackV1alpha1().AuditRecords("acme").Create(t.Context(), report(rackv1alpha1.LayerAgent, "mac-1"), metav1.CreateOptions{})
			return err
		},
		"the controllers, of no Mac": func() error {
			_, err := f.controllers.RackV1alpha1().AuditRecords("acme").Create(t.Context(), report(rackv1alpha1.LayerScheduler, "mac-9"), metav1.CreateOptions{})
			return err
		},
	} {
		assert.True(t, apierrors.IsForbidden(create()), name)
	}
	released := report(rackv1alpha1.LayerAgent, "mac-1")
	released.Type = rackv1alpha1.LeaseReleased
	_, err = agent.AuditRecords("acme").Create(t.Context(), released, metav1.CreateOptions{})
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
	assert.Len(t, f.records(""), count)
}

// Faulty controllers cannot report in place of an agent that a Mac is healthy, scrubbed, or running
// virtual machines.
func TestControllersAreNoAgents(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	for name, change := range map[string]func(*rackv1alpha1.MacNodeStatus){
		"scrubbed": func(s *rackv1alpha1.MacNodeStatus) {
			s.Scrub = &rackv1alpha1.ScrubReport{LeaseUID: s.LeaseRef.UID, FinishedAt: metav1.NewTime(noon)}
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeScrubbed, Status: metav1.ConditionTrue, Reason: "Scrubbed"})
		},
		"rebooted": func(s *rackv1alpha1.MacNodeStatus) { s.BootID = "boot-9" },
	} {
		node := f.node("mac-1")
		change(&node.Status)
		_, err := f.controllers.RackV1alpha1().MacNodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%s: %v", name, err)
	}
	err := f.write(f.controllers, "acme", "one", func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase = instancev1alpha1.MacOSInstanceRunning
		s.MachineID, s.MACAddress = identityOf(1)
	})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	require.NoError(t, f.write(f.controllers, "acme", "one", func(s *instancev1alpha1.MacOSInstanceStatus) { s.PodName = "one-vm" }))
}

// An agent lists and watches the instances of its Mac by an index: all of them, and no others.
func TestInstancesOfAMac(t *testing.T) {
	f := newFleet(t, 1)
	for n, mac := range []string{"mac-1", "mac-2"} {
		f.mac(mac, fmt.Sprintf("C07AAAAA000%d", n+1))
		f.lease("acme", "on-"+mac, mac)
	}
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "on-mac-1")))
	require.NoError(t, f.create(t.Context(), newInstance("acme", "two", "on-mac-2")))
	instances := f.agent("mac-1").InstanceV1alpha1().MacOSInstances("")
	selected := metav1.ListOptions{FieldSelector: "status.nodeName=mac-1"}
	var list *instancev1alpha1.MacOSInstanceList
	for _, version := range []string{"0", ""} {
		options := selected
		options.ResourceVersion = version
		require.Eventually(t, func() bool {
			var err error
			list, err = instances.List(t.Context(), options)
			require.NoError(t, err)
			return len(list.Items) == 1 && list.Items[0].Name == "one"
		}, time.Minute, 10*time.Millisecond, "resource version %q", version)
	}
	selected.ResourceVersion = list.ResourceVersion
	watching, err := instances.Watch(t.Context(), selected)
	require.NoError(t, err)
	defer watching.Stop()
	f.start("mac-2", "acme", "two", 2)
	require.NoError(t, f.create(t.Context(), newInstance("acme", "three", "on-mac-1")))
	f.start("mac-1", "acme", "one", 1)
	f.stopped("mac-1", "acme", "one")
	var seen []string
	for len(seen) == 0 || seen[len(seen)-1] != "MODIFIED one Stopped" {
		select {
		case event := <-watching.ResultChan():
			i := event.Object.(*instancev1alpha1.MacOSInstance)
			seen = append(seen, fmt.Sprintf("%s %s %s", event.Type, i.Name, i.Status.Phase))
		case <-time.After(time.Minute):
			t.Fatalf("no more events after %q", seen)
		}
	}
	assert.Equal(t, []string{"ADDED three Pending", "MODIFIED one Starting", "MODIFIED one Running", "MODIFIED one Stopped"}, seen)
}

// kube-apiserver is asked for all agents at once, and not for each of them: a fleet has thousands.
func TestAgentsAreAuthorizedTogether(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	agents, one := registrytest.Asked(""), registrytest.Asked("system:node:mac-1")
	f.start("mac-1", "acme", "one", 1)
	instances := f.agent("mac-1").InstanceV1alpha1().MacOSInstances("acme")
	_, err := instances.Get(t.Context(), "one", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Positive(t, registrytest.Asked("")-agents)
	assert.Equal(t, one, registrytest.Asked("system:node:mac-1"))
}
