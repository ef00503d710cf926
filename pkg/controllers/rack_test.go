package controllers

import (
	"context"
	"fmt"
	"strings"
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

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
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
		ObjectMeta: metav1.ObjectMeta{Name: "mac-1", UID: "node"},
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
	go func() { done <- m.Run(ctx, Alone) }()
	stop = func() {
		cancel()
		assert.NoError(r.t, <-done)
		assert.False(r.t, m.Synced())
	}
	r.eventually("the controllers start", m.Synced)
	return stop
}
