package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/retry"
	clocktesting "k8s.io/utils/clock/testing"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/fakes"
)

var noon = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// rack is a fleet of one Mac, with the parts of the registry that the controllers need.
type rack struct {
	t      *testing.T
	clock  *clocktesting.FakeClock
	ours   *fake.Clientset
	store  *fakes.Store
	core   *kubefake.Clientset
	events *record.FakeRecorder
	// manager is the manager that run started last.
	manager *Manager
}

func resourceOf(name string) schema.GroupVersionResource {
	switch name {
	case "macosinstances":
		return instancev1alpha1.SchemeGroupVersion.WithResource(name)
	default:
		return rackv1alpha1.SchemeGroupVersion.WithResource(name)
	}
}

func newRack(t *testing.T) *rack {
	r := &rack{
		t:      t,
		clock:  clocktesting.NewFakeClock(noon),
		ours:   fake.NewSimpleClientset(),
		core:   kubefake.NewClientset(),
		events: record.NewFakeRecorder(1000),
	}
	r.store = fakes.RefuseStale(r.ours)
	fakes.CopyWatched(r.ours)
	fakes.CopyWatched(r.core)
	r.ours.PrependReactor("create", "macnodeleases", r.bindAndRelease)
	r.ours.PrependReactor("create", "macosinstances", r.stop)

	for _, object := range []runtime.Object{
		&rackv1alpha1.MacNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "base"}},
		&rackv1alpha1.MacNode{
			ObjectMeta: metav1.ObjectMeta{Name: "mac-1"},
			Spec:       rackv1alpha1.MacNodeSpec{ClassName: "base", SerialNumber: "S-1"},
			Status:     rackv1alpha1.MacNodeStatus{Phase: rackv1alpha1.MacNodeAvailable},
		},
	} {
		require.NoError(t, r.ours.Tracker().Add(object))
	}
	require.NoError(t, r.core.Tracker().Add(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "macrack-macs"}}))
	require.NoError(t, r.core.Tracker().Add(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "mac-1"},
		Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{rules.ResourceMacOSVM: resource.MustParse("2")}},
	}))
	return r
}

// change changes an object, with retries because the controllers may change it too.
func change[T runtime.Object](r *rack, resource string, get func() T, mutate func(T)) {
	r.t.Helper()
	require.NoError(r.t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		object := get()
		mutate(object)
		return r.store.Update(resourceOf(resource), object)
	}))
}

func (r *rack) changeMac(mutate func(*rackv1alpha1.MacNode)) {
	r.t.Helper()
	change(r, "macnodes", r.mac, mutate)
}

func (r *rack) changeLease(name string, mutate func(*rackv1alpha1.MacNodeLease)) {
	r.t.Helper()
	change(r, "macnodeleases", func() *rackv1alpha1.MacNodeLease { return r.lease(name) }, mutate)
}

func (r *rack) changeInstance(name string, mutate func(*instancev1alpha1.MacOSInstance)) {
	r.t.Helper()
	change(r, "macosinstances", func() *instancev1alpha1.MacOSInstance { return r.instance(name) }, mutate)
}

func (r *rack) mac() *rackv1alpha1.MacNode {
	object, err := r.ours.Tracker().Get(resourceOf("macnodes"), "", "mac-1")
	require.NoError(r.t, err)
	return object.DeepCopyObject().(*rackv1alpha1.MacNode)
}

func (r *rack) lease(name string) *rackv1alpha1.MacNodeLease {
	object, err := r.ours.Tracker().Get(resourceOf("macnodeleases"), "acme", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(r.t, err)
	return object.DeepCopyObject().(*rackv1alpha1.MacNodeLease)
}

func (r *rack) instance(name string) *instancev1alpha1.MacOSInstance {
	object, err := r.ours.Tracker().Get(resourceOf("macosinstances"), "acme", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(r.t, err)
	return object.DeepCopyObject().(*instancev1alpha1.MacOSInstance)
}

func (r *rack) taints() string {
	node, err := r.core.CoreV1().Nodes().Get(context.Background(), "mac-1", metav1.GetOptions{})
	require.NoError(r.t, err)
	var list []string
	for _, taint := range node.Spec.Taints {
		list = append(list, taint.ToString())
	}
	return strings.Join(list, " ")
}

// bindAndRelease binds leases to the Mac and releases it, as the registry does.
func (r *rack) bindAndRelease(action clienttesting.Action) (bool, runtime.Object, error) {
	name := ""
	if create, ok := action.(clienttesting.CreateActionImpl); ok {
		name = create.Name
	}
	switch action.GetSubresource() {
	case "binding":
		binding := action.(clienttesting.CreateAction).GetObject().(*rackv1alpha1.MacNodeLeaseBinding)
		if r.mac().Status.LeaseRef != nil || r.lease(name).Status.Phase != rackv1alpha1.MacNodeLeasePending {
			return true, nil, apierrors.NewConflict(rackv1alpha1.Resource("macnodeleases"), name, fmt.Errorf("not free"))
		}
		at, floor := metav1.NewTime(r.clock.Now()), metav1.NewTime(r.clock.Now().Add(24*time.Hour))
		r.changeLease(name, func(lease *rackv1alpha1.MacNodeLease) {
			lease.Status.Phase, lease.Status.NodeName, lease.Status.SerialNumber = rackv1alpha1.MacNodeLeaseBound, "mac-1", "S-1"
			lease.Status.BoundAt, lease.Status.EarliestReleaseAt = &at, &floor
			lease.Finalizers = []string{rules.FinalizerFloor}
		})
		r.changeMac(func(mac *rackv1alpha1.MacNode) {
			mac.Status.Phase, mac.Status.EarliestReleaseAt = rackv1alpha1.MacNodeLeased, &floor
			mac.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: "acme", Name: name, UID: r.lease(name).UID}
		})
		return true, binding, nil
	case "release":
		release := action.(clienttesting.CreateAction).GetObject().(*rackv1alpha1.MacNodeLeaseRelease)
		assert.Equal(r.t, []string{"macrack.io/unleased:NoSchedule"}, release.NodeTaints)
		if err := r.ours.Tracker().Delete(resourceOf("macnodeleases"), "acme", name); err != nil {
			return true, nil, err
		}
		r.changeMac(func(mac *rackv1alpha1.MacNode) {
			mac.Status = rackv1alpha1.MacNodeStatus{Phase: rackv1alpha1.MacNodeAvailable, Conditions: mac.Status.Conditions}
		})
		return true, release, nil
	}
	return false, nil, nil
}

// stop requests the stop of an instance, as the registry does.
func (r *rack) stop(action clienttesting.Action) (bool, runtime.Object, error) {
	if action.GetSubresource() != "stop" {
		return false, nil, nil
	}
	create := action.(clienttesting.CreateActionImpl)
	r.changeInstance(create.Name, func(instance *instancev1alpha1.MacOSInstance) {
		if instance.Status.StopRequest == nil && !rules.InstanceEnded(instance.Status.Phase) {
			instance.Status.StopRequest = &instancev1alpha1.StopRequest{Reason: create.GetObject().(*instancev1alpha1.MacOSInstanceStop).Reason}
			instance.Status.Phase = instancev1alpha1.MacOSInstanceStopping
		}
	})
	return true, create.GetObject(), nil
}

func (r *rack) eventually(what string, condition func() bool) {
	r.t.Helper()
	require.Eventually(r.t, condition, 2*time.Minute, 2*time.Millisecond, what)
}

// beat renews the Lease of the Mac's Node.
func (r *rack) beat(n int) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "mac-1", Namespace: corev1.NamespaceNodeLease}}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: noon.Add(time.Duration(n) * time.Second)}
	leases := r.core.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if _, err := leases.Update(context.Background(), lease, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		_, err = leases.Create(context.Background(), lease, metav1.CreateOptions{})
		require.NoError(r.t, err)
	} else {
		require.NoError(r.t, err)
	}
}

func (r *rack) isReady() string {
	if c := meta.FindStatusCondition(r.mac().Status.Conditions, rackv1alpha1.MacNodeReady); c != nil {
		return string(c.Status)
	}
	return ""
}

// assertEvents waits for Events with these reasons; they are recorded after the change they report.
func (r *rack) assertEvents(reasons ...string) {
	r.t.Helper()
	missing := sets.New(reasons...)
	r.eventually(fmt.Sprintf("Events tell of %v", reasons), func() bool {
		for {
			select {
			case event := <-r.events.Events:
				missing.Delete(strings.Fields(event)[1])
			default:
				return missing.Len() == 0
			}
		}
	})
}

func (r *rack) run() (stop func()) {
	m, err := New(Config{MacRack: r.ours, Core: r.core, Clock: r.clock, Recorder: r.events})
	require.NoError(r.t, err)
	r.manager = m
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	stop = func() {
		cancel()
		assert.NoError(r.t, <-done)
		assert.False(r.t, m.Synced())
	}
	r.eventually("the controllers start", m.Synced)
	return stop
}

// TestALeaseFromBeginningToEnd walks through a lease's life. The controllers are restarted on the
// way.
func TestALeaseFromBeginningToEnd(t *testing.T) {
	r := newRack(t)
	stop := r.run()
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

	// A lease is bound; the next one waits and reports the reason.
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

	// An instance gets its placeholder pod.
	_, err := r.ours.ImageV1alpha1().MacOSImages().Create(t.Context(), &imagev1alpha1.MacOSImage{ObjectMeta: metav1.ObjectMeta{Name: "tahoe"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	instance := &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "acme", Name: "vm", UID: "uid-vm", Finalizers: []string{rules.FinalizerVM}, CreationTimestamp: metav1.NewTime(noon),
			OwnerReferences: []metav1.OwnerReference{{Kind: "MacNodeLease", Name: "first", UID: "uid-first"}},
		},
		Spec:   instancev1alpha1.MacOSInstanceSpec{LeaseName: "first", ImageName: "tahoe"},
		Status: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstancePending, NodeName: "mac-1"},
	}
	require.NoError(t, r.ours.Tracker().Add(instance))
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

	// The controllers keep no state of their own.
	stop()
	stop = r.run()

	// The lease is deleted after an hour: its instances are stopped.
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

	// At the floor the Mac is emptied.
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

	// The Node is deleted by hand. An instance waits until the agent has registered the Node again
	// and it is tainted.
	require.NoError(t, r.core.CoreV1().Nodes().Delete(t.Context(), "mac-1", metav1.DeleteOptions{}))
	r.eventually("the controllers see the deletion of the Node", func() bool {
		_, err := r.manager.deps.Nodes.Lister().Get("mac-1")
		return apierrors.IsNotFound(err)
	})
	again := instance.DeepCopy()
	again.Name, again.UID, again.Spec.LeaseName = "again", "uid-again", "second"
	again.OwnerReferences = []metav1.OwnerReference{{Kind: "MacNodeLease", Name: "second", UID: "uid-second"}}
	require.NoError(t, r.ours.Tracker().Add(again))
	r.eventually("the instance reports the missing Node", func() bool {
		return strings.HasPrefix(r.instance("again").Status.Message, "Node mac-1 not found")
	})
	_, err = r.core.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "mac-1"},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: rules.TaintUnleased, Effect: corev1.TaintEffectNoSchedule}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r.eventually("the Node has the tenant's taint once more", func() bool { return r.taints() == "macrack.io/tenant=acme:NoSchedule" })
	r.eventually("the pod is created", func() bool {
		_, err := pods.Get(t.Context(), "again-vm", metav1.GetOptions{})
		return err == nil
	})
	stop()
}

func TestAMacThatFallsSilent(t *testing.T) {
	r := newRack(t)
	defer r.run()()
	r.beat(1)
	r.eventually("the Mac is online", func() bool { return r.isReady() == "True" })
	r.eventually("it is watched", r.clock.HasWaiters)
	r.clock.Step(59 * time.Second)
	require.Equal(t, "True", r.isReady())
	r.clock.Step(time.Second)
	r.eventually("the Mac is offline", func() bool { return r.isReady() == "False" })
	r.beat(2)
	r.eventually("the Mac is back", func() bool { return r.isReady() == "True" })
}

// A Mac verifies the image, because the controllers cannot reach its registry.
func TestAnImage(t *testing.T) {
	r := newRack(t)
	defer r.run()()
	images := r.ours.ImageV1alpha1().MacOSImages()
	digest := "sha256:" + strings.Repeat("a", 64)
	_, err := images.Create(t.Context(), &imagev1alpha1.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: "tahoe"},
		Spec:       imagev1alpha1.MacOSImageSpec{Source: imagev1alpha1.ImageSource{Reference: "127.0.0.1:1/macos/26", Digest: digest}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r.eventually("the controllers do not reach the registry", func() bool {
		image, err := images.Get(t.Context(), "tahoe", metav1.GetOptions{})
		if err != nil || image.Status.Phase != imagev1alpha1.MacOSImagePending {
			return false
		}
		ready := meta.FindStatusCondition(image.Status.Conditions, imagev1alpha1.MacOSImageReadyCondition)
		return ready != nil && ready.Reason == imagev1alpha1.ReasonUnreachable
	})
	r.changeMac(func(mac *rackv1alpha1.MacNode) {
		mac.Status.ImageChecks = []rackv1alpha1.ImageCheck{{Name: "tahoe", Reason: imagev1alpha1.ReasonVerified}}
	})
	r.eventually("the image is ready", func() bool {
		image, err := images.Get(t.Context(), "tahoe", metav1.GetOptions{})
		return err == nil && image.Status.Phase == imagev1alpha1.MacOSImageReady
	})
	r.changeMac(func(mac *rackv1alpha1.MacNode) {
		mac.Status.Images = []rackv1alpha1.CachedImage{{Name: "tahoe", Digest: digest, SizeBytes: 50}}
	})
	r.eventually("the image is on the Mac", func() bool {
		image, err := images.Get(t.Context(), "tahoe", metav1.GetOptions{})
		return err == nil && len(image.Status.ReplicatedOn) == 1 && image.Status.SizeBytes == 50
	})
}

// The tenant extends spec.expireAfter just after it has passed, and the cache of the controllers is
// stale.
func TestALeaseThatIsGivenMoreTimeIsNotDeleted(t *testing.T) {
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

func TestNew(t *testing.T) {
	_, err := New(Config{})
	assert.ErrorContains(t, err, "a client of the Kubernetes API")

	// Without a recorder, Events are written to the cluster.
	core := kubefake.NewClientset()
	m, err := New(Config{MacRack: fake.NewSimpleClientset(), Core: core})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	require.Eventually(t, m.Synced, 2*time.Minute, time.Millisecond)
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "a", UID: "u"}}
	m.deps.Recorder.Event(lease, corev1.EventTypeNormal, "Bound", "bound")
	require.Eventually(t, func() bool {
		events, err := core.CoreV1().Events("acme").List(ctx, metav1.ListOptions{})
		return err == nil && len(events.Items) == 1 && events.Items[0].InvolvedObject.Kind == "MacNodeLease"
	}, 2*time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	assert.ErrorContains(t, m.Run(t.Context()), "has already run")
}
