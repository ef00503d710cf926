package registry

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/apis/rack"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

// patchStatus writes an instance's status as agents and controllers do.
func (f *fleet) patchStatus(as versioned.Interface, name, patch string) (*instancev1alpha1.MacOSInstance, error) {
	return as.InstanceV1alpha1().MacOSInstances("acme").Patch(f.t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
}

func claim(n int) string {
	id, mac := identityOf(n)
	return fmt.Sprintf(`{"status":{"phase":"Starting","machineID":%q,"macAddress":%q}}`, id, mac)
}

// A start is granted, counted and recorded in the transaction that gives the virtual machine its
// identity.
func TestStartIsGranted(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	agent := f.agent("mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	before := len(f.records("acme"))
	one, err := f.patchStatus(agent, "one", claim(1))
	require.NoError(t, err)
	require.NotNil(t, one.Status.StartGrantedAt)
	assert.Nil(t, one.Status.StartedAt, "it does not run yet")
	assert.EqualValues(t, 1, f.node("mac-1").Status.RunningVMs)
	records := f.records("acme")
	require.Len(t, records, before+1)
	assert.Equal(t, rackv1alpha1.InstanceStarted, records[before].Type)

	again, err := f.patchStatus(agent, "one", `{"status":{"phase":"Starting"}}`)
	require.NoError(t, err)
	assert.Equal(t, one.Status.StartGrantedAt, again.Status.StartGrantedAt)
	for name, patch := range map[string]string{
		"no grant": `{"status":{"startGrantedAt":null}}`, "a later grant": `{"status":{"startGrantedAt":"2030-01-01T00:00:00Z"}}`,
	} {
		kept, err := f.patchStatus(agent, "one", patch)
		require.NoError(t, err, name)
		assert.Equal(t, one.Status.StartGrantedAt, kept.Status.StartGrantedAt, name)
	}
	f.write(agent, "acme", "one", func(s *instancev1alpha1.MacOSInstanceStatus) { s.Phase = instancev1alpha1.MacOSInstanceRunning })
	require.Len(t, f.records("acme"), before+1, "counted once")
	f.stopped("mac-1", "acme", "one")
	assert.Zero(t, f.node("mac-1").Status.RunningVMs)

	t.Run("a launch that fails", func(t *testing.T) {
		require.NoError(t, f.create(t.Context(), newInstance("acme", "two", "build")))
		_, err := f.patchStatus(agent, "two", claim(2))
		require.NoError(t, err)
		_, err = f.patchStatus(agent, "two", `{"status":{"phase":"Failed","message":"the disk is full"}}`)
		require.NoError(t, err)
		assert.Zero(t, f.node("mac-1").Status.RunningVMs)
		records := f.records("acme")
		last := records[len(records)-1]
		assert.Equal(t, rackv1alpha1.InstanceStopped, last.Type)
		assert.Equal(t, "its virtual machine never ran: the disk is full", last.Details.Message)
	})
}

// An instance that may not start gets no grant.
func TestStartIsNotGranted(t *testing.T) {
	quarantine := func(f *fleet) {
		f.report("mac-1", func(s *rackv1alpha1.MacNodeStatus) {
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeSlotsHealthy, Status: metav1.ConditionFalse, Reason: rackv1alpha1.ReasonUnknownInstance, Message: "slot 0"})
		})
	}
	stop := func(f *fleet) {
		_, err := f.acme.InstanceV1alpha1().MacOSInstances("acme").Stop(f.t.Context(), "one", &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
		require.NoError(f.t, err)
	}
	id, mac := identityOf(1)
	for name, test := range map[string]struct {
		prepare func(*fleet)
		patch   string
		says    string
		record  string
	}{
		"a Mac in quarantine":       {quarantine, claim(1), "is in quarantine (UnknownInstance)", "MacQuarantined"},
		"a stop was requested":      {stop, fmt.Sprintf(`{"status":{"machineID":%q,"macAddress":%q}}`, id, mac), "the instance is stopping", ""},
		"a stop, in phase Starting": {stop, claim(1), "does not go back", ""},
		"it runs already":           {func(*fleet) {}, fmt.Sprintf(`{"status":{"phase":"Running","machineID":%q,"macAddress":%q}}`, id, mac), "after its start was granted", "StartNotGranted"},
		"it has started already":    {func(*fleet) {}, fmt.Sprintf(`{"status":{"phase":"Starting","startedAt":"2026-01-01T00:00:00Z","machineID":%q,"macAddress":%q}}`, id, mac), "after its start was granted", "StartNotGranted"},
		"half an identity":          {func(*fleet) {}, fmt.Sprintf(`{"status":{"phase":"Starting","machineID":%q}}`, id), "must be set together", ""},
		"Running without identity":  {func(*fleet) {}, `{"status":{"phase":"Running"}}`, "required for a running virtual machine", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 1)
			f.mac("mac-1", "C07AAAAA0001")
			f.lease("acme", "build", "mac-1")
			require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
			// Its pod exists, so that the agent has to carry out a stop.
			_, err := f.patchStatus(f.controllers, "one", `{"status":{"podName":"one-vm"}}`)
			require.NoError(t, err)
			test.prepare(f)
			_, err = f.patchStatus(f.agent("mac-1"), "one", test.patch)
			require.ErrorContains(t, err, test.says)
			assert.Empty(t, f.getInstance("acme", "one").Status.MachineID)
			assert.Zero(t, f.node("mac-1").Status.RunningVMs)
			reasons := []string{}
			for _, r := range f.records("acme") {
				if r.Type == rackv1alpha1.InstanceRejected {
					reasons = append(reasons, r.Details.Reason)
				}
			}
			if test.record == "" {
				assert.Empty(t, reasons)
			} else {
				assert.Equal(t, []string{test.record}, reasons)
			}
		})
	}
}

// Concurrent writers cannot revert each other's writes.
func TestPatchesOfStaleWriters(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	agent := f.agent("mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	condition := func(kind string) string {
		return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"True","reason":"Said","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, kind)
	}
	for as, kind := range map[versioned.Interface]string{f.controllers: instancev1alpha1.MacOSInstanceScheduledCondition, agent: instancev1alpha1.MacOSInstanceImageReady} {
		_, err := f.patchStatus(as, "one", condition(kind))
		require.NoError(t, err)
	}
	one := f.getInstance("acme", "one")
	assert.True(t, meta.IsStatusConditionTrue(one.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition))
	assert.True(t, meta.IsStatusConditionTrue(one.Status.Conditions, instancev1alpha1.MacOSInstanceImageReady))

	_, err := f.patchStatus(agent, "one", `{"metadata":{"uid":"another"},"status":{"message":"of another"}}`)
	require.Error(t, err)
	assert.True(t, apierrors.IsConflict(err) || apierrors.IsInvalid(err), "%v", err)
	assert.Empty(t, f.getInstance("acme", "one").Status.Message, "a later instance of the same name")

	f.start("mac-1", "acme", "one", 1)
	_, err = f.acme.InstanceV1alpha1().MacOSInstances("acme").Stop(t.Context(), "one", &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
	require.NoError(t, err)
	stopping := f.getInstance("acme", "one")
	for name, patch := range map[string]string{
		"Running again": `{"status":{"phase":"Running"}}`, "Starting again": `{"status":{"phase":"Starting"}}`,
		"it never started": `{"status":{"startedAt":null}}`, "another identity": claim(2),
	} {
		_, err := f.patchStatus(agent, "one", patch)
		require.Error(t, err, name)
	}
	kept, err := f.patchStatus(agent, "one", `{"status":{"stopRequest":null,"nodeName":"mac-9"}}`)
	require.NoError(t, err)
	assert.Equal(t, stopping.Status, kept.Status)
	_, err = f.patchStatus(f.controllers, "one", `{"status":{"phase":"Stopped"}}`)
	require.Error(t, err, "the controllers cannot know that it has ended")
	assert.EqualValues(t, 1, f.node("mac-1").Status.RunningVMs)
}

// Constant writes of metadata by a tenant, through two replicas, make no write of a status fail.
func TestStatusWritesDoNotConflict(t *testing.T) {
	const writers, reports = 12, 10
	f := newFleet(t, 2)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	flood, end := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for n := range writers {
		client := f.servers[n%2].Client(t, "acme")
		group.Go(func() {
			for i := 0; flood.Err() == nil; i++ {
				patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"flood-%d":"%d"}}}`, n, i)
				_, _ = client.InstanceV1alpha1().MacOSInstances("acme").Patch(flood, "one", types.MergePatchType, patch, metav1.PatchOptions{})
				_, _ = client.RackV1alpha1().MacNodeLeases("acme").Patch(flood, "build", types.MergePatchType, patch, metav1.PatchOptions{})
			}
		})
	}
	agent := f.agent("mac-1")
	_, err := f.patchStatus(agent, "one", claim(1))
	require.NoError(t, err)
	for i := range reports {
		_, err := f.patchStatus(agent, "one", fmt.Sprintf(`{"status":{"phase":"Running","message":"%d"}}`, i))
		require.NoError(t, err)
	}
	_, err = f.acme.InstanceV1alpha1().MacOSInstances("acme").Stop(t.Context(), "one", &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = f.patchStatus(agent, "one", `{"status":{"phase":"Stopped"}}`)
	require.NoError(t, err)
	end()
	group.Wait()
	assert.Zero(t, f.node("mac-1").Status.RunningVMs)
}

// Only an administrator may order the end of unknown virtual machines.
func TestEndOfUnknownInstances(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	f.report("mac-1", func(s *rackv1alpha1.MacNodeStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeSlotsHealthy, Status: metav1.ConditionFalse, Reason: rackv1alpha1.ReasonUnknownInstance, Message: "slot 0 runs acme/one"})
	})
	quarantine := f.node("mac-1").Status.Quarantine
	require.NotNil(t, quarantine)
	assert.Equal(t, rackv1alpha1.ReasonUnknownInstance, quarantine.Reason)
	records := f.records("acme")
	last := records[len(records)-1]
	assert.Equal(t, rackv1alpha1.NodeQuarantined, last.Type)
	assert.Equal(t, "UnknownInstance: slot 0 runs acme/one", last.Details.Reason+": "+last.Details.Message)
	decide := func(as versioned.Interface) error {
		_, err := as.RackV1alpha1().MacNodes().Patch(t.Context(), "mac-1", types.MergePatchType,
			[]byte(`{"status":{"quarantine":{"reason":"Other","endInstances":["uid-1"]}}}`), metav1.PatchOptions{}, "status")
		return err
	}
	_ = decide(f.agent("mac-1"))
	require.Error(t, decide(f.controllers))
	assert.Equal(t, quarantine, f.node("mac-1").Status.Quarantine)
	require.NoError(t, decide(f.admin))
	decided := f.node("mac-1").Status.Quarantine
	assert.Equal(t, []string{"uid-1"}, decided.EndInstances)
	assert.Equal(t, quarantine.Reason, decided.Reason)
}

// A virtual machine that an older API server has counted twice does not keep its Mac from being
// released.
func TestVMCountedTwice(t *testing.T) {
	for name, again := range map[string]func(f *fleet, count func()){
		"before it stops": func(f *fleet, count func()) {
			count()
			f.stopped("mac-1", "acme", "one")
			assert.Zero(t, f.node("mac-1").Status.RunningVMs, "no slot is taken")
		},
		"and its lease is to be released": func(f *fleet, count func()) {
			f.stopped("mac-1", "acme", "one")
			count()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 1)
			f.mac("mac-1", "C07AAAAA0001")
			f.lease("acme", "build", "mac-1")
			require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
			f.start("mac-1", "acme", "one", 1)
			again(f, func() { f.count("mac-1", 1) })
			require.NoError(t, f.acme.RackV1alpha1().MacNodeLeases("acme").Delete(t.Context(), "build", metav1.DeleteOptions{}))
			f.setTime(noon.Add(25 * time.Hour))
			lease := f.getLease("acme", "build")
			lease.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing
			_, err := f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(t.Context(), lease, metav1.UpdateOptions{})
			require.NoError(t, err)
			f.scrub("mac-1")
			assert.Zero(t, f.node("mac-1").Status.RunningVMs)
			assert.NoError(t, f.release("acme", "build", "macrack.io/unleased:NoSchedule"))
		})
	}
}

// count changes the number of virtual machines of a Mac in etcd.
func (f *fleet) count(name string, by int32) {
	f.t.Helper()
	f.changeStored(name, func(node *rack.MacNode) { node.Status.RunningVMs += by })
}

// changeStored changes a MacNode in etcd, past the registry.
func (f *fleet) changeStored(name string, change func(*rack.MacNode)) {
	f.t.Helper()
	key := "/registry/rack.macrack.io/macnodes/" + name
	resp, err := f.etcd.Client.Get(f.t.Context(), key)
	require.NoError(f.t, err)
	require.Len(f.t, resp.Kvs, 1)
	codec := apiserver.Codecs.LegacyCodec(rackv1alpha1.SchemeGroupVersion)
	obj, _, err := codec.Decode(resp.Kvs[0].Value, nil, nil)
	require.NoError(f.t, err)
	change(obj.(*rack.MacNode))
	info, _ := runtime.SerializerInfoForMediaType(apiserver.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	data, err := runtime.Encode(apiserver.Codecs.EncoderForVersion(info.Serializer, rackv1alpha1.SchemeGroupVersion), obj)
	require.NoError(f.t, err)
	_, err = f.etcd.Client.Put(f.t.Context(), key, string(data))
	require.NoError(f.t, err)
}
