package registry

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/rules"
)

func TestInstanceCreate(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	lease := f.lease("acme", "build", "mac-1")
	f.image("macos-27", false)
	_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "pending"), metav1.CreateOptions{})
	require.NoError(t, err)

	for name, tt := range map[string]struct {
		change func(*instancev1alpha1.MacOSInstance)
		want   string
	}{
		"no such lease":       {func(i *instancev1alpha1.MacOSInstance) { i.Spec.LeaseName = "none" }, "rule 2 (one tenant per Mac)"},
		"a lease elsewhere":   {func(i *instancev1alpha1.MacOSInstance) { i.Namespace = "globex" }, "rule 2 (one tenant per Mac)"},
		"a lease without Mac": {func(i *instancev1alpha1.MacOSInstance) { i.Spec.LeaseName = "pending" }, "has no Mac yet"},
		"no such class":       {func(i *instancev1alpha1.MacOSInstance) { i.Spec.ClassName = "tiny" }, "no instance class"},
		"too big a class":     {func(i *instancev1alpha1.MacOSInstance) { i.Spec.ClassName = "giant" }, "asks for 64Gi memory"},
		"no such image":       {func(i *instancev1alpha1.MacOSInstance) { i.Spec.ImageName = "macos-9" }, "no image"},
		"an unchecked image":  {func(i *instancev1alpha1.MacOSInstance) { i.Spec.ImageName = "macos-27" }, "not Ready"},
		"another's child": {func(i *instancev1alpha1.MacOSInstance) {
			i.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "1"}}
		}, "owned by its lease alone"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInstance("acme", "bad", "build")
			tt.change(i)
			err := f.create(t.Context(), i)
			assert.True(t, apierrors.IsForbidden(err), "%v", err)
			assert.ErrorContains(t, err, tt.want)
			assert.Empty(t, f.getLease("acme", "build").Status.Instances)
			records := f.records(i.Namespace)
			if assert.NotEmpty(t, records) {
				last := records[len(records)-1]
				assert.Equal(t, rackv1alpha1.InstanceRejected, last.Type)
				assert.Equal(t, rackv1alpha1.LayerRegistry, last.Details.Layer)
			}
			f.clock.Step(2 * time.Minute)
		})
	}

	require.NoError(t, f.create(t.Context(), newInstance("acme", "first", "build")))
	first := f.getInstance("acme", "first")
	assert.Equal(t, instancev1alpha1.MacOSInstancePending, first.Status.Phase)
	assert.Equal(t, "mac-1", first.Status.NodeName)
	assert.Equal(t, []string{rules.FinalizerVM}, first.Finalizers)
	require.Len(t, first.OwnerReferences, 1)
	assert.Equal(t, lease.UID, first.OwnerReferences[0].UID)
	slots := f.getLease("acme", "build").Status.Instances
	require.Len(t, slots, 1)
	assert.Equal(t, first.UID, slots[0].UID)

	big := newInstance("acme", "big", "build")
	big.Spec.ClassName = "large"
	assert.ErrorContains(t, f.create(t.Context(), big), "asks for 8 cpu, but a Mac of class \"base\" has 4 left", "both instances together must fit")

	before := f.etcd.Revision(t)
	dry, err := f.acme.InstanceV1alpha1().MacOSInstances("acme").Create(t.Context(), newInstance("acme", "second", "build"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	assert.Zero(t, f.etcd.Transactions(t, before), "a dry run writes nothing")
	assert.Equal(t, first.OwnerReferences, dry.OwnerReferences, "a dry run answers as the real request")
	assert.Equal(t, first.Status, dry.Status, "a dry run answers as the real request")

	require.NoError(t, f.create(t.Context(), newInstance("acme", "second", "build")))
	err = f.create(t.Context(), newInstance("acme", "third", "build"))
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, "rule 1 (two VMs per Mac)")
	before = f.etcd.Revision(t)
	_, err = f.acme.InstanceV1alpha1().MacOSInstances("acme").Create(t.Context(), newInstance("acme", "third", "build"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	assert.ErrorContains(t, err, "rule 1 (two VMs per Mac)", "a dry run knows")
	assert.Zero(t, f.etcd.Transactions(t, before), "a dry run is not recorded")
}

func TestInstanceLife(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	agent := f.agent("mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "first", "build")))
	f.start("mac-1", "acme", "first", 1)
	first := f.getInstance("acme", "first")
	assert.NotNil(t, first.Status.StartedAt)
	assert.EqualValues(t, 1, f.node("mac-1").Status.RunningVMs)

	instances := f.acme.InstanceV1alpha1().MacOSInstances("acme")
	t.Run("identities are unique in the fleet and for life", func(t *testing.T) {
		require.NoError(t, f.create(t.Context(), newInstance("acme", "second", "build")))
		id, mac := identityOf(1)
		err := f.write(agent, "acme", "second", func(s *instancev1alpha1.MacOSInstanceStatus) { s.MachineID = id; _, s.MACAddress = identityOf(2) })
		assert.True(t, apierrors.IsConflict(err), "%v", err)
		err = f.write(agent, "acme", "second", func(s *instancev1alpha1.MacOSInstanceStatus) { s.MachineID, _ = identityOf(2); s.MACAddress = mac })
		assert.True(t, apierrors.IsConflict(err), "%v", err)
		assert.Empty(t, f.getInstance("acme", "second").Status.MachineID)
		assert.Error(t, f.write(agent, "acme", "first", func(s *instancev1alpha1.MacOSInstanceStatus) { s.MachineID, s.MACAddress = identityOf(3) }))
		f.start("mac-1", "acme", "second", 2)
		assert.EqualValues(t, 2, f.node("mac-1").Status.RunningVMs)
	})
	t.Run("only the agent may report that a virtual machine has stopped", func(t *testing.T) {
		err := f.write(f.controllers, "acme", "second", func(s *instancev1alpha1.MacOSInstanceStatus) { s.Phase = instancev1alpha1.MacOSInstanceStopped })
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		assert.Len(t, f.getLease("acme", "build").Status.Instances, 2)
	})
	t.Run("the finalizer stays until it has stopped", func(t *testing.T) {
		_, err := instances.Patch(t.Context(), "second", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
	})
	t.Run("stop", func(t *testing.T) {
		grace := int64(5)
		_, err := instances.Stop(t.Context(), "second", &instancev1alpha1.MacOSInstanceStop{GracePeriodSeconds: &grace, Reason: "Lunch"}, metav1.CreateOptions{})
		require.NoError(t, err)
		second := f.getInstance("acme", "second")
		assert.Equal(t, instancev1alpha1.MacOSInstanceStopping, second.Status.Phase)
		require.NotNil(t, second.Status.StopRequest)
		assert.Equal(t, "acme", second.Status.StopRequest.By)
		assert.EqualValues(t, 5, second.Status.StopRequest.GracePeriodSeconds)
		assert.EqualValues(t, 2, f.node("mac-1").Status.RunningVMs, "it counts as running until the agent reports its end")
		assert.Error(t, f.create(t.Context(), newInstance("acme", "third", "build")))
		f.stopped("mac-1", "acme", "second")
		assert.EqualValues(t, 1, f.node("mac-1").Status.RunningVMs)
		assert.Len(t, f.getLease("acme", "build").Status.Instances, 1)
		err = f.write(agent, "acme", "second", func(s *instancev1alpha1.MacOSInstanceStatus) { s.Phase = instancev1alpha1.MacOSInstanceRunning })
		assert.Error(t, err, "a reported end cannot be reverted")
	})
	t.Run("delete", func(t *testing.T) {
		require.NoError(t, instances.Delete(t.Context(), "first", metav1.DeleteOptions{}))
		first := f.getInstance("acme", "first")
		assert.Equal(t, instancev1alpha1.MacOSInstanceStopping, first.Status.Phase)
		f.stopped("mac-1", "acme", "first")
		_, err := f.controllers.InstanceV1alpha1().MacOSInstances("acme").Patch(t.Context(), "first", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		_, err = instances.Get(t.Context(), "first", metav1.GetOptions{})
		assert.True(t, apierrors.IsNotFound(err), "%v", err)
	})
	t.Run("an instance that never started is deleted at once", func(t *testing.T) {
		require.NoError(t, f.create(t.Context(), newInstance("acme", "fourth", "build")))
		require.NoError(t, instances.Delete(t.Context(), "fourth", metav1.DeleteOptions{}))
		assert.Equal(t, instancev1alpha1.MacOSInstanceStopped, f.getInstance("acme", "fourth").Status.Phase)
		assert.Empty(t, f.getLease("acme", "build").Status.Instances)
	})
	t.Run("an identity is free again", func(t *testing.T) {
		require.NoError(t, f.create(t.Context(), newInstance("acme", "fifth", "build")))
		f.start("mac-1", "acme", "fifth", 1)
	})
	assert.Equal(t, []rackv1alpha1.AuditRecordType{
		rackv1alpha1.LeaseBound, rackv1alpha1.InstanceStarted, rackv1alpha1.InstanceStarted, rackv1alpha1.InstanceRejected,
		rackv1alpha1.InstanceStopped, rackv1alpha1.InstanceStopped, rackv1alpha1.InstanceStarted,
	}, typesOf(f.records("acme")))
}

func TestImageInUse(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "first", "build")))
	images := f.admin.ImageV1alpha1().MacOSImages()
	err := images.Delete(t.Context(), "macos-26", metav1.DeleteOptions{})
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	assert.ErrorContains(t, err, "acme/first")
	require.NoError(t, f.acme.InstanceV1alpha1().MacOSInstances("acme").Delete(t.Context(), "first", metav1.DeleteOptions{}))
	assert.NoError(t, images.Delete(t.Context(), "macos-26", metav1.DeleteOptions{}))
}

// An image that boots only with its own machine identifier has one instance in the fleet at a time.
func TestImageWithItsOwnIdentity(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	f.lease("acme", "build", "mac-1")
	f.lease("globex", "build", "mac-2")
	images := f.admin.ImageV1alpha1().MacOSImages()
	image, err := images.Get(t.Context(), "macos-26", metav1.GetOptions{})
	require.NoError(t, err)
	image.Spec.Identity = imagev1alpha1.ImageIdentityFromImage
	image.Name, image.ResourceVersion, image.UID = "macos-26-own", "", ""
	image, err = images.Create(t.Context(), image, metav1.CreateOptions{})
	require.NoError(t, err)
	image.Status.Phase, image.Status.Digest = imagev1alpha1.MacOSImageReady, image.Spec.Source.Digest
	_, err = images.UpdateStatus(t.Context(), image, metav1.UpdateOptions{})
	require.NoError(t, err)
	own := func(namespace, name string) *instancev1alpha1.MacOSInstance {
		i := newInstance(namespace, name, "build")
		i.Spec.ImageName = image.Name
		return i
	}
	require.NoError(t, f.create(t.Context(), own("acme", "first")))
	for _, namespace := range []string{"acme", "globex"} {
		err := f.create(t.Context(), own(namespace, "second"))
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		assert.ErrorContains(t, err, `image "macos-26-own" boots only with its own machine identifier`)
		assert.NotContains(t, err.Error(), "first", "the instance may be another tenant's")
		records := f.records(namespace)
		assert.Equal(t, "ImageIdentityInUse", records[len(records)-1].Details.Reason)
	}
	require.NoError(t, f.create(t.Context(), newInstance("acme", "clone", "build")), "other images have no limit")
	require.NoError(t, f.acme.InstanceV1alpha1().MacOSInstances("acme").Delete(t.Context(), "first", metav1.DeleteOptions{}))
	require.NoError(t, f.create(t.Context(), own("globex", "second")))
}

// An image that the controllers cannot verify, because its Secret belongs to the tenant, is
// verified by the Mac of its first instance.
func TestImageThatOnlyTheTenantsMacCanVerify(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	images := f.admin.ImageV1alpha1().MacOSImages()
	image, err := images.Get(t.Context(), "macos-26", metav1.GetOptions{})
	require.NoError(t, err)
	image.ObjectMeta, image.Status = metav1.ObjectMeta{Name: "private"}, imagev1alpha1.MacOSImageStatus{}
	image.Spec.PullSecretRef = &imagev1alpha1.SecretReference{Namespace: "globex", Name: "robot"}
	image, err = images.Create(t.Context(), image, metav1.CreateOptions{})
	require.NoError(t, err)
	onImage := func(name string) error {
		i := newInstance("acme", name, "build")
		i.Spec.ImageName = "private"
		return f.create(t.Context(), i)
	}
	report := func(reason string) {
		t.Helper()
		image.Status.Conditions = []metav1.Condition{{Type: imagev1alpha1.MacOSImageReadyCondition, Status: metav1.ConditionFalse, Reason: reason,
			ObservedGeneration: image.Generation, LastTransitionTime: metav1.Now()}}
		image, err = images.UpdateStatus(t.Context(), image, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	assert.ErrorContains(t, onImage("early"), "not Ready")
	report(imagev1alpha1.ReasonPullSecretUnreadable)
	assert.ErrorContains(t, onImage("others"), "not Ready", "the Secret belongs to another tenant")
	image.Spec.PullSecretRef.Namespace = "acme"
	image, err = images.Update(t.Context(), image, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 2, image.Generation)
	assert.ErrorContains(t, onImage("stale"), "not Ready", "the finding is about another spec")
	report(imagev1alpha1.ReasonUnreachable)
	assert.ErrorContains(t, onImage("away"), "not Ready")
	report(imagev1alpha1.ReasonPullSecretUnreadable)
	require.NoError(t, onImage("first"))

	image.Spec.DiskSize = scalar.MustParse("80Gi")
	_, err = images.Update(t.Context(), image, metav1.UpdateOptions{})
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	assert.ErrorContains(t, err, "acme/first", "an image in use is immutable")
	require.NoError(t, f.acme.InstanceV1alpha1().MacOSInstances("acme").Delete(t.Context(), "first", metav1.DeleteOptions{}))
	image, err = images.Update(t.Context(), image, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, imagev1alpha1.MacOSImagePending, image.Status.Phase)
}

// The spec can be corrected until the image is Ready.
func TestImageIsCorrectedUntilReady(t *testing.T) {
	f := newFleet(t, 1)
	images := f.admin.ImageV1alpha1().MacOSImages()
	f.image("typo", false)
	image, err := images.Get(t.Context(), "typo", metav1.GetOptions{})
	require.NoError(t, err)
	condition := metav1.Condition{Type: imagev1alpha1.MacOSImageReadyCondition, Status: metav1.ConditionFalse, Reason: imagev1alpha1.ReasonManifestUnknown,
		ObservedGeneration: 1, LastTransitionTime: metav1.Now()}
	image.Status.Phase, image.Status.Message, image.Status.Conditions = imagev1alpha1.MacOSImageFailed, "no such manifest", []metav1.Condition{condition}
	image, err = images.UpdateStatus(t.Context(), image, metav1.UpdateOptions{})
	require.NoError(t, err)

	image.Spec.Source.Digest = "sha256:" + fmt.Sprintf("%064x", 27)
	image, err = images.Update(t.Context(), image, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 2, image.Generation)
	assert.Equal(t, imagev1alpha1.MacOSImagePending, image.Status.Phase)
	assert.Empty(t, image.Status.Message)

	condition.Status, condition.Reason, condition.ObservedGeneration = metav1.ConditionTrue, imagev1alpha1.ReasonVerified, 2
	image.Status.Conditions = []metav1.Condition{condition}
	_, err = images.UpdateStatus(t.Context(), image, metav1.UpdateOptions{})
	assert.ErrorContains(t, err, "Ready may be True only in phase Ready")
	image.Status.Phase, image.Status.Digest = imagev1alpha1.MacOSImageReady, image.Spec.Source.Digest
	image, err = images.UpdateStatus(t.Context(), image, metav1.UpdateOptions{})
	require.NoError(t, err)
	image.Spec.Source.Digest = "sha256:" + fmt.Sprintf("%064x", 28)
	_, err = images.Update(t.Context(), image, metav1.UpdateOptions{})
	assert.ErrorContains(t, err, "the image is Ready")
}

// 64 clients of two replicas compete for two slots, while others free them.
func TestThirdSlotRace(t *testing.T) {
	const clients, rounds = 64, 6
	f := newFleet(t, 2)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	for round := range rounds {
		var created, refused atomic.Int64
		var names sync.Map
		var group sync.WaitGroup
		for c := range clients {
			client := f.servers[c%2].Client(t, "acme")
			group.Go(func() {
				name := fmt.Sprintf("i-%d-%d", round, c)
				_, err := client.InstanceV1alpha1().MacOSInstances("acme").Create(t.Context(), newInstance("acme", name, "build"), metav1.CreateOptions{})
				switch {
				case err == nil:
					created.Add(1)
					names.Store(name, true)
				case apierrors.IsForbidden(err):
					refused.Add(1)
				case apierrors.IsTooManyRequests(err):
				default:
					t.Errorf("create %s: %v", name, err)
				}
			})
		}
		group.Wait()
		assert.EqualValues(t, 2, created.Load())
		assert.NotZero(t, refused.Load())
		assert.Len(t, f.getLease("acme", "build").Status.Instances, 2)
		names.Range(func(name, _ any) bool {
			assert.NoError(t, f.acme.InstanceV1alpha1().MacOSInstances("acme").Delete(t.Context(), name.(string), metav1.DeleteOptions{}))
			return true
		})
		assert.Empty(t, f.getLease("acme", "build").Status.Instances)
	}
}

// Two replicas bind many leases to few Macs: a Mac gets one, and a lease gets one.
func TestDoubleBindRace(t *testing.T) {
	const macs, leases = 4, 12
	f := newFleet(t, 2)
	for m := range macs {
		f.mac(fmt.Sprintf("mac-%d", m), fmt.Sprintf("C07AAAAA%04d", m))
	}
	for l := range leases {
		_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", fmt.Sprintf("lease-%d", l)), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	var bound atomic.Int64
	var group sync.WaitGroup
	for l := range leases {
		for m := range macs {
			client := f.servers[(l+m)%2].Client(t, "controllers")
			group.Go(func() {
				_, err := client.RackV1alpha1().MacNodeLeases("acme").Bind(t.Context(), fmt.Sprintf("lease-%d", l), &rackv1alpha1.MacNodeLeaseBinding{NodeName: fmt.Sprintf("mac-%d", m)}, metav1.CreateOptions{})
				switch {
				case err == nil:
					bound.Add(1)
				case apierrors.IsConflict(err), apierrors.IsTooManyRequests(err):
				default:
					t.Error(err)
				}
			})
		}
	}
	group.Wait()
	assert.EqualValues(t, macs, bound.Load())
	seen := map[types.UID]bool{}
	for m := range macs {
		ref := f.node(fmt.Sprintf("mac-%d", m)).Status.LeaseRef
		require.NotNil(t, ref)
		assert.False(t, seen[ref.UID], "lease %s has two Macs", ref.Name)
		seen[ref.UID] = true
		assert.Equal(t, fmt.Sprintf("mac-%d", m), f.getLease("acme", ref.Name).Status.NodeName)
	}
	assert.Len(t, f.records("acme"), macs)
}

// From its start until its end a virtual machine counts, whatever its agent writes in between.
func TestStartedAtIsKept(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	f.start("mac-1", "acme", "one", 1)
	err := f.write(f.agent("mac-1"), "acme", "one", func(status *instancev1alpha1.MacOSInstanceStatus) {
		status.Phase, status.StartedAt = instancev1alpha1.MacOSInstanceStopping, nil
	})
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
	assert.ErrorContains(t, err, "never changes")
	f.stopped("mac-1", "acme", "one")
	assert.Zero(t, f.node("mac-1").Status.RunningVMs)
	records := f.records("acme")
	assert.Equal(t, rackv1alpha1.InstanceStopped, records[len(records)-1].Type)
}

// The clock of a Mac may be wrong, but an instance is stopped some time after its start, and
// deleted some time after its end. So the server sets the end, and limits the start.
func TestTimesOfAMacWithAWrongClock(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	one := newInstance("acme", "one", "build")
	one.Spec.TTLSecondsAfterFinished = ptr.To[int32](3600)
	require.NoError(t, f.create(t.Context(), one))
	require.NoError(t, f.write(f.agent("mac-1"), "acme", "one", func(status *instancev1alpha1.MacOSInstanceStatus) {
		status.Phase = instancev1alpha1.MacOSInstanceStarting
		status.MachineID, status.MACAddress = identityOf(1)
	}))
	require.NoError(t, f.write(f.agent("mac-1"), "acme", "one", func(status *instancev1alpha1.MacOSInstanceStatus) {
		status.Phase, status.StartedAt = instancev1alpha1.MacOSInstanceRunning, ptr.To(metav1.NewTime(f.clock.Now().Add(24*time.Hour)))
	}))
	assert.WithinDuration(t, f.clock.Now(), f.getInstance("acme", "one").Status.StartedAt.Time, time.Second)

	dayAgo := metav1.NewTime(f.clock.Now().Add(-24 * time.Hour))
	backdate := func(status *instancev1alpha1.MacOSInstanceStatus) { status.StoppedAt = &dayAgo }
	require.NoError(t, f.write(f.agent("mac-1"), "acme", "one", backdate))
	assert.Nil(t, f.getInstance("acme", "one").Status.StoppedAt, "it runs")

	require.NoError(t, f.write(f.agent("mac-1"), "acme", "one", func(status *instancev1alpha1.MacOSInstanceStatus) {
		status.Phase, status.StoppedAt = instancev1alpha1.MacOSInstanceStopped, &dayAgo
	}))
	for name, client := range map[string]versioned.Interface{"the agent": f.agent("mac-1"), "the controllers": f.controllers} {
		require.NoError(t, f.write(client, "acme", "one", backdate))
		assert.WithinDuration(t, f.clock.Now(), f.getInstance("acme", "one").Status.StoppedAt.Time, time.Second, name)
	}
	err := f.controllers.InstanceV1alpha1().MacOSInstances("acme").Delete(t.Context(), "one", metav1.DeleteOptions{})
	assert.ErrorContains(t, err, "whose ttlSecondsAfterFinished has passed")
	f.clock.Step(time.Hour)
	require.NoError(t, f.controllers.InstanceV1alpha1().MacOSInstances("acme").Delete(t.Context(), "one", metav1.DeleteOptions{}))
}
