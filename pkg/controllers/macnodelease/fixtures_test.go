package macnodelease

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

var noon = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// aLease returns a pending lease acme/<name> of class base, created so many seconds after noon.
func aLease(name string, seconds int, changes ...func(*rackv1alpha1.MacNodeLease)) *rackv1alpha1.MacNodeLease {
	lease := &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "acme", Name: name, UID: types.UID("uid-" + name),
			CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(seconds) * time.Second)),
		},
		Spec:   rackv1alpha1.MacNodeLeaseSpec{ClassName: "base", MinimumDuration: scalar.NewDuration(24 * time.Hour)},
		Status: rackv1alpha1.MacNodeLeaseStatus{Phase: rackv1alpha1.MacNodeLeasePending},
	}
	for _, change := range changes {
		change(lease)
	}
	return lease
}

func serial(s string) func(*rackv1alpha1.MacNodeLease) {
	return func(lease *rackv1alpha1.MacNodeLease) { lease.Spec.SerialNumber = s }
}

func prefetch(images ...string) func(*rackv1alpha1.MacNodeLease) {
	return func(lease *rackv1alpha1.MacNodeLease) { lease.Spec.PrefetchImages = images }
}

// aMac returns an available Mac of class base, whose serial number is "S-" and its name.
func aMac(name string, changes ...func(*rackv1alpha1.MacNode)) *rackv1alpha1.MacNode {
	mac := &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       rackv1alpha1.MacNodeSpec{SerialNumber: "S-" + name, ClassName: "base"},
		Status:     rackv1alpha1.MacNodeStatus{Phase: rackv1alpha1.MacNodeAvailable},
	}
	for _, change := range changes {
		change(mac)
	}
	return mac
}

func phase(p rackv1alpha1.MacNodePhase) func(*rackv1alpha1.MacNode) {
	return func(mac *rackv1alpha1.MacNode) { mac.Status.Phase = p }
}

func images(names ...string) func(*rackv1alpha1.MacNode) {
	return func(mac *rackv1alpha1.MacNode) {
		for _, name := range names {
			mac.Status.Images = append(mac.Status.Images, rackv1alpha1.CachedImage{Name: name})
		}
	}
}

// leasedBy marks a Mac as bound to lease.
func leasedBy(lease *rackv1alpha1.MacNodeLease) func(*rackv1alpha1.MacNode) {
	return func(mac *rackv1alpha1.MacNode) {
		mac.Status.Phase = rackv1alpha1.MacNodeLeased
		mac.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID}
		mac.Status.EarliestReleaseAt = lease.Status.EarliestReleaseAt
	}
}

var (
	leaseResource = rackv1alpha1.Resource("macnodeleases")
	errConflict   = apierrors.NewConflict(leaseResource, "x", errors.New("the Mac is leased"))
	errForbidden  = apierrors.NewForbidden(leaseResource, "x", errors.New("the Mac is leased"))
	errNotFound   = apierrors.NewNotFound(leaseResource, "x")
	errTimeout    = apierrors.NewTimeoutError("try later", 1)
	errRefused    = errors.New("refused")
)

// boundAt makes a lease Bound since some time before noon.
func boundAt(before time.Duration) func(*rackv1alpha1.MacNodeLease) {
	return func(lease *rackv1alpha1.MacNodeLease) {
		at := metav1.NewTime(noon.Add(-before))
		floor := metav1.NewTime(at.Add(24 * time.Hour))
		lease.Status.Phase = rackv1alpha1.MacNodeLeaseBound
		lease.Status.BoundAt, lease.Status.EarliestReleaseAt = &at, &floor
		lease.Status.NodeName, lease.Status.SerialNumber = "mac-1", "S-mac-1"
	}
}

func heldAt(before time.Duration) func(*rackv1alpha1.MacNodeLease) {
	return func(lease *rackv1alpha1.MacNodeLease) {
		at := metav1.NewTime(noon.Add(-before))
		lease.Status.Phase = rackv1alpha1.MacNodeLeaseHeld
		lease.Status.HeldAt, lease.DeletionTimestamp = &at, &at
		for n := range lease.Status.Instances {
			lease.Status.Instances[n].Stop = true
		}
	}
}

func expires(after time.Duration) func(*rackv1alpha1.MacNodeLease) {
	return func(lease *rackv1alpha1.MacNodeLease) {
		lease.Spec.ExpireAfter = scalar.NewDuration(after)
	}
}

func isReleasing(mac *rackv1alpha1.MacNode) {
	mac.Status.Phase = rackv1alpha1.MacNodeReleasing
	mac.Status.ReleasingSince = &metav1.Time{Time: noon}
}

// anInstance returns a running instance of lease acme/a, created so long before noon.
func anInstance(name string, before time.Duration, changes ...func(*instancev1alpha1.MacOSInstance)) *instancev1alpha1.MacOSInstance {
	instance := &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "acme", Name: name, UID: types.UID("uid-" + name),
			CreationTimestamp: metav1.NewTime(noon.Add(-before)),
			OwnerReferences:   []metav1.OwnerReference{{Kind: "MacNodeLease", Name: "a", UID: "uid-a"}},
		},
		Spec:   instancev1alpha1.MacOSInstanceSpec{LeaseName: "a"},
		Status: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceRunning},
	}
	for _, change := range changes {
		change(instance)
	}
	return instance
}

func instancePhase(p instancev1alpha1.MacOSInstancePhase) func(*instancev1alpha1.MacOSInstance) {
	return func(instance *instancev1alpha1.MacOSInstance) { instance.Status.Phase = p }
}

// slots gives the lease slots for these instances.
func slots(names ...string) func(*rackv1alpha1.MacNodeLease) {
	return func(lease *rackv1alpha1.MacNodeLease) {
		for _, name := range names {
			lease.Status.Instances = append(lease.Status.Instances, rackv1alpha1.LeaseSlot{Name: name, UID: types.UID("uid-" + name)})
		}
	}
}

const day = 24 * time.Hour

// olderLease returns the lease acme/a, created before those of aLease.
func olderLease(changes ...func(*rackv1alpha1.MacNodeLease)) *rackv1alpha1.MacNodeLease {
	return aLease("a", -1000, changes...)
}

// releasingLease returns a lease that was bound 30 hours ago and is being released.
func releasingLease(changes ...func(*rackv1alpha1.MacNodeLease)) *rackv1alpha1.MacNodeLease {
	return olderLease(append([]func(*rackv1alpha1.MacNodeLease){boundAt(30 * time.Hour), leasePhase(rackv1alpha1.MacNodeLeaseReleasing)}, changes...)...)
}

func leasePhase(p rackv1alpha1.MacNodeLeasePhase) func(*rackv1alpha1.MacNodeLease) {
	return func(lease *rackv1alpha1.MacNodeLease) { lease.Status.Phase = p }
}

func floorAt(at time.Time) func(*rackv1alpha1.MacNodeLease) {
	return func(lease *rackv1alpha1.MacNodeLease) { lease.Status.EarliestReleaseAt = &metav1.Time{Time: at} }
}

func minimumDuration(d time.Duration) func(*rackv1alpha1.MacNodeLease) {
	return func(lease *rackv1alpha1.MacNodeLease) { lease.Spec.MinimumDuration = scalar.NewDuration(d) }
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) func(*rackv1alpha1.MacNodeLease) {
	return func(lease *rackv1alpha1.MacNodeLease) {
		lease.Status.Conditions = []metav1.Condition{{Type: kind, Status: status, Reason: reason, Message: message}}
	}
}

// scrubbedMac returns the Mac of releasingLease after its scrub.
func scrubbedMac(changes ...func(*rackv1alpha1.MacNode)) *rackv1alpha1.MacNode {
	return aMac("mac-1", append([]func(*rackv1alpha1.MacNode){leasedBy(releasingLease()), isReleasing, func(mac *rackv1alpha1.MacNode) {
		mac.Status.Scrub = &rackv1alpha1.ScrubReport{LeaseUID: "uid-a"}
		mac.Status.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeScrubbed, Status: metav1.ConditionTrue}}
	}}, changes...)...)
}

func offline(mac *rackv1alpha1.MacNode) {
	mac.Status.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeReady, Status: metav1.ConditionFalse, Message: "silent"}}
}

func aNode(taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}, Spec: corev1.NodeSpec{Taints: taints}}
}

func stopAsked(instance *instancev1alpha1.MacOSInstance) {
	instance.Status.StopRequest = &instancev1alpha1.StopRequest{}
}

func ofEarlierLease(instance *instancev1alpha1.MacOSInstance) {
	instance.OwnerReferences[0].UID = "earlier"
}
