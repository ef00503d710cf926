package controllers

import (
	"errors"
	"strings"
	"sync"
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
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/rules"
)

// TestALeaseFromBeginningToEnd walks through a lease's life. The controllers are restarted on the
// way, because they keep no state of their own.
func TestALeaseFromBeginningToEnd(t *testing.T) {
	r := newRack(t)
	stop := r.run()
	macComesOnline(t, r)
	firstLeaseIsBound(t, r)
	instanceIsScheduled(t, r)
	stop()
	stop = r.run()
	deletedLeaseIsHeld(t, r)
	macIsReleasedAtTheFloor(t, r)
	instanceWaitsForTheNode(t, r)
	stop()
}

func macComesOnline(t *testing.T, r *rack) {
	r.eventually("the Node of a free Mac is tainted", func() bool { return r.taints() == "macrack.io/unleased:NoSchedule" })
	r.eventually("the class is counted", func() bool {
		class, err := r.ours.RackV1alpha1().MacNodeClasses().Get(t.Context(), "base", metav1.GetOptions{})
		return err == nil && class.Status == rackv1alpha1.MacNodeClassStatus{Total: 1, Available: 1}
	})
	r.eventually("the policies know the Mac", func() bool {
		binding, err := r.core.RbacV1().ClusterRoleBindings().Get(t.Context(), "macrack-macs", metav1.GetOptions{})
		return err == nil && len(binding.Subjects) == 1 && binding.Subjects[0].Name == "system:node:mac-1"
	})
	assert.Empty(t, r.isReady(), "the Mac has never been online")
	r.beat(1)
	r.eventually("the Mac is online", func() bool { return r.isReady() == "True" })
}

// firstLeaseIsBound creates two leases: the first is bound, and the second reports why it waits.
func firstLeaseIsBound(t *testing.T, r *rack) {
	pending := func(name string, second int) *rackv1alpha1.MacNodeLease {
		return &rackv1alpha1.MacNodeLease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: name, UID: "uid-" + "a", CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(second) * time.Second))},
			Spec:       rackv1alpha1.MacNodeLeaseSpec{ClassName: "base", MinimumDuration: scalar.NewDuration(24 * time.Hour)},
			Status:     rackv1alpha1.MacNodeLeaseStatus{Phase: rackv1alpha1.MacNodeLeasePending},
		}
	}
	first, second := pending("first", 0), pending("second", 1)
	first.UID, second.UID = "uid-first", "uid-second"
	require.NoError(t, r.ours.Tracker().Add(first))
	r.eventually("the first lease is bound", func() bool { return r.lease("first").Status.Phase == rackv1alpha1.MacNodeLeaseBound })
	require.NoError(t, r.ours.Tracker().Add(second))
	waits := "waiting for a Mac of class base: 1 Leased, 0 Available; the earliest can be released at 2026-08-02T12:00:00Z"
	r.eventually("the second lease reports the reason of its wait", func() bool {
		c := meta.FindStatusCondition(r.lease("second").Status.Conditions, "Bound")
		return c != nil && c.Message == waits
	})
	r.eventually("the Node has the tenant's taint", func() bool { return r.taints() == "macrack.io/tenant=acme:NoSchedule" })
}

// anInstance returns a new instance of a bound lease.
func anInstance(name, lease string) *instancev1alpha1.MacOSInstance {
	return &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "acme", Name: name, UID: types.UID("uid-" + name), Finalizers: []string{rules.FinalizerVM}, CreationTimestamp: metav1.NewTime(noon),
			OwnerReferences: []metav1.OwnerReference{{Kind: "MacNodeLease", Name: lease, UID: types.UID("uid-" + lease)}},
		},
		Spec:   instancev1alpha1.MacOSInstanceSpec{LeaseName: lease, ImageName: "tahoe"},
		Status: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstancePending, NodeName: "mac-1"},
	}
}

func instanceIsScheduled(t *testing.T, r *rack) {
	_, err := r.ours.ImageV1alpha1().MacOSImages().Create(t.Context(), &imagev1alpha1.MacOSImage{ObjectMeta: metav1.ObjectMeta{Name: "tahoe"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, r.ours.Tracker().Add(anInstance("vm", "first")))
	pods := r.core.CoreV1().Pods("acme")
	r.eventually("the pod is created", func() bool {
		_, err := pods.Get(t.Context(), "vm-vm", metav1.GetOptions{})
		return err == nil
	})
	pod, err := pods.Get(t.Context(), "vm-vm", metav1.GetOptions{})
	require.NoError(t, err)
	pod.Spec.NodeName = "mac-1"
	_, err = pods.Update(t.Context(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	r.eventually("the instance is scheduled", func() bool { return r.instance("vm").Status.Phase == instancev1alpha1.MacOSInstanceScheduled })
	r.assertEvents("Heartbeat", "Bound", "WaitingForMac", "Scheduled")
}

// deletedLeaseIsHeld deletes the first lease after an hour: its instances are stopped and deleted.
func deletedLeaseIsHeld(t *testing.T, r *rack) {
	pods := r.core.CoreV1().Pods("acme")
	r.changeInstance("vm", func(instance *instancev1alpha1.MacOSInstance) {
		instance.Status.Phase, instance.Status.MachineID = instancev1alpha1.MacOSInstanceRunning, "machine"
	})
	r.clock.Step(time.Hour)
	at := metav1.NewTime(r.clock.Now())
	r.changeLease("first", func(lease *rackv1alpha1.MacNodeLease) {
		lease.Status.Phase, lease.Status.HeldAt, lease.DeletionTimestamp = rackv1alpha1.MacNodeLeaseHeld, &at, &at
		lease.Status.Instances = []rackv1alpha1.LeaseSlot{{Name: "vm", UID: "uid-vm", Stop: true}}
	})
	r.eventually("the instance is asked to stop", func() bool { return r.instance("vm").Status.StopRequest != nil })
	assert.Equal(t, "LeaseHeld", r.instance("vm").Status.StopRequest.Reason)
	r.eventually("the second lease reports the time of the release", func() bool {
		c := meta.FindStatusCondition(r.lease("second").Status.Conditions, "Bound")
		return c.Message == "waiting for a Mac of class base: 1 Held, 0 Available; the earliest is released at 2026-08-02T12:00:00Z"
	})

	// The agent has stopped it, and the object is deleted.
	r.changeInstance("vm", func(instance *instancev1alpha1.MacOSInstance) {
		instance.Status.Phase, instance.DeletionTimestamp = instancev1alpha1.MacOSInstanceStopped, &at
	})
	r.eventually("the pod is deleted", func() bool {
		_, err := pods.Get(t.Context(), "vm-vm", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	r.eventually("the instance is deleted", func() bool {
		instance := r.instance("vm")
		return instance == nil || len(instance.Finalizers) == 0
	})
	r.changeLease("first", func(lease *rackv1alpha1.MacNodeLease) { lease.Status.Instances = nil })
}

func macIsReleasedAtTheFloor(t *testing.T, r *rack) {
	r.clock.Step(23*time.Hour - time.Second)
	require.Equal(t, rackv1alpha1.MacNodeLeaseHeld, r.lease("first").Status.Phase)
	r.clock.Step(time.Second)
	r.eventually("the release begins", func() bool { return r.lease("first").Status.Phase == rackv1alpha1.MacNodeLeaseReleasing })

	now := metav1.NewTime(r.clock.Now())
	r.changeMac(func(mac *rackv1alpha1.MacNode) {
		mac.Status.Phase, mac.Status.ReleasingSince = rackv1alpha1.MacNodeReleasing, &now
	})
	r.changeMac(func(mac *rackv1alpha1.MacNode) {
		mac.Status.Scrub = &rackv1alpha1.ScrubReport{LeaseUID: "uid-first", FinishedAt: now}
		meta.SetStatusCondition(&mac.Status.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeScrubbed, Status: metav1.ConditionTrue, Reason: "Scrubbed"})
	})
	r.eventually("the lease is released", func() bool { return r.lease("first") == nil })
	r.eventually("the next lease gets the Mac", func() bool { return r.lease("second").Status.Phase == rackv1alpha1.MacNodeLeaseBound })
	r.eventually("the Node has the tenant's taint again", func() bool { return r.taints() == "macrack.io/tenant=acme:NoSchedule" })
	r.assertEvents("Held", "Releasing", "Released", "Bound", "Stopped")
}

// instanceWaitsForTheNode deletes the Node. An instance waits until the agent has registered the
// Node again and it is tainted.
func instanceWaitsForTheNode(t *testing.T, r *rack) {
	require.NoError(t, r.core.CoreV1().Nodes().Delete(t.Context(), "mac-1", metav1.DeleteOptions{}))
	r.eventually("the controllers see the deletion of the Node", func() bool {
		_, err := r.manager.deps.Nodes.Lister().Get("mac-1")
		return apierrors.IsNotFound(err)
	})
	require.NoError(t, r.ours.Tracker().Add(anInstance("again", "second")))
	r.eventually("the instance reports the missing Node", func() bool {
		return strings.HasPrefix(r.instance("again").Status.Message, "Node mac-1 not found")
	})
	_, err := r.core.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "mac-1", UID: "another-node"},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: rules.TaintUnleased, Effect: corev1.TaintEffectNoSchedule}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r.eventually("the Node has the tenant's taint once more", func() bool { return r.taints() == "macrack.io/tenant=acme:NoSchedule" })
	r.eventually("the pod is created", func() bool {
		_, err := r.core.CoreV1().Pods("acme").Get(t.Context(), "again-vm", metav1.GetOptions{})
		return err == nil
	})
}

// The tenant extends spec.expireAfter just after it has passed, and the cache of the controllers is
// stale.
func TestLengthenedLeaseIsNotDeleted(t *testing.T) {
	r := newRack(t)
	const day = 24 * time.Hour
	boundAt, floor := metav1.NewTime(noon.Add(-2*day)), metav1.NewTime(noon.Add(-day))
	require.NoError(t, r.ours.Tracker().Add(&rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "a", UID: "uid-a", ResourceVersion: "1", Finalizers: []string{rules.FinalizerFloor}},
		Spec:       rackv1alpha1.MacNodeLeaseSpec{ClassName: "base", MinimumDuration: scalar.NewDuration(day), ExpireAfter: scalar.NewDuration(2 * day)},
		Status:     rackv1alpha1.MacNodeLeaseStatus{Phase: rackv1alpha1.MacNodeLeaseBound, NodeName: "mac-1", SerialNumber: "S-1", BoundAt: &boundAt, EarliestReleaseAt: &floor},
	}))
	var lengthen sync.Once
	var refused atomic.Int32
	r.ours.PrependReactor("delete", "macnodeleases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		lengthen.Do(func() {
			r.changeLease("a", func(lease *rackv1alpha1.MacNodeLease) { lease.Spec.ExpireAfter = scalar.NewDuration(3 * day) })
		})
		wanted := action.(clienttesting.DeleteActionImpl).GetDeleteOptions().Preconditions
		if lease := r.lease("a"); lease != nil && wanted.ResourceVersion != nil && *wanted.ResourceVersion != lease.ResourceVersion {
			refused.Add(1)
			return true, nil, apierrors.NewConflict(rackv1alpha1.Resource("macnodeleases"), "a", errors.New("it has changed"))
		}
		return false, nil, nil
	})
	defer r.run()()
	r.eventually("a deletion is refused", func() bool { return refused.Load() > 0 || r.lease("a") == nil })
	require.NotNil(t, r.lease("a"), "deleted a day early")
	r.clock.Step(day)
	r.eventually("the lease is deleted when the new time has passed", func() bool { return r.lease("a") == nil })
}
