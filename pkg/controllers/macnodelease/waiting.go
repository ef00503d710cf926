package macnodelease

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/facts"
)

// Reasons of the condition Bound=False.
const (
	// ReasonUnknownClass means that there is no MacNodeClass of that name.
	ReasonUnknownClass = "UnknownClass"
	// ReasonUnknownSerialNumber means that no Mac of the class has that serial number.
	ReasonUnknownSerialNumber = "UnknownSerialNumber"
	// ReasonNoMacAvailable means that no Mac of the class is free.
	ReasonNoMacAvailable = "NoMacAvailable"
	// ReasonMacNotAvailable means that the Mac with the serial number is not free.
	ReasonMacNotAvailable = "MacNotAvailable"
)

// waiter says on a pending lease why it is pending. Its keys are leases that the binder found no Mac for.
type waiter struct {
	now         func() time.Time
	getLease    func(namespace, name string) (*rackv1alpha1.MacNodeLease, error)
	classExists func(class string) (bool, error)
	macsOf      func(class string) ([]*rackv1alpha1.MacNode, error)
	updateState func(ctx context.Context, lease *rackv1alpha1.MacNodeLease) error
}

func (w *waiter) reconcile(ctx context.Context, key string) (time.Time, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return time.Time{}, err
	}
	lease, err := w.getLease(namespace, name)
	if apierrors.IsNotFound(err) || err == nil && !waits(lease) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	exists, err := w.classExists(lease.Spec.ClassName)
	if err != nil {
		return time.Time{}, err
	}
	macs, err := w.macsOf(lease.Spec.ClassName)
	if err != nil {
		return time.Time{}, err
	}
	reason, message, due := w.explain(lease, exists, macs)
	if reason == "" {
		return time.Time{}, nil
	}
	lease = lease.DeepCopy()
	if !meta.SetStatusCondition(&lease.Status.Conditions, metav1.Condition{
		Type:               rackv1alpha1.MacNodeLeaseConditionBound,
		Status:             metav1.ConditionFalse,
		Reason:             reason,
		Message:            message,
		ObservedGeneration: lease.Generation,
		LastTransitionTime: metav1.NewTime(w.now()),
	}) {
		return due, nil
	}
	return due, w.updateState(ctx, lease)
}

// explain returns why lease has no Mac, and when that will read differently. The reason is empty if a Mac is
// free, as the lease is about to be bound then.
func (w *waiter) explain(lease *rackv1alpha1.MacNodeLease, classExists bool, macs []*rackv1alpha1.MacNode) (reason, message string, due time.Time) {
	class, serial := lease.Spec.ClassName, lease.Spec.SerialNumber
	if !classExists && len(macs) == 0 {
		return ReasonUnknownClass, fmt.Sprintf("there is no MacNodeClass %q; see kubectl get macnodeclasses", class), time.Time{}
	}
	if serial == "" {
		for _, mac := range macs {
			if facts.IsAvailable(mac) {
				return "", "", time.Time{}
			}
		}
		when, due := w.earliest("the earliest", macs)
		return ReasonNoMacAvailable, fmt.Sprintf("waiting for a Mac of class %s: %s%s", class, w.count(macs), when), due
	}
	for _, mac := range macs {
		if mac.Spec.SerialNumber != serial {
			continue
		}
		if facts.IsAvailable(mac) {
			return "", "", time.Time{}
		}
		when, due := w.earliest("it", []*rackv1alpha1.MacNode{mac})
		return ReasonMacNotAvailable, fmt.Sprintf("waiting for the Mac %s of class %s, which is %s%s", serial, class, w.state(mac), when), due
	}
	return ReasonUnknownSerialNumber, fmt.Sprintf("class %s has no Mac with the serial number %s (any more)", class, serial), time.Time{}
}

const stateHeld = string(rackv1alpha1.MacNodeLeaseHeld)

// states are the states of Macs in the order in which they are listed.
var states = []string{
	string(rackv1alpha1.MacNodeLeased),
	stateHeld,
	string(rackv1alpha1.MacNodeReleasing),
	string(rackv1alpha1.MacNodeQuarantined),
	string(rackv1alpha1.MacNodeOffline),
	string(rackv1alpha1.MacNodeMaintenance),
	string(rackv1alpha1.MacNodePending),
	string(rackv1alpha1.MacNodeAvailable),
}

// state returns the phase of mac, or Held if its lease is.
func (w *waiter) state(mac *rackv1alpha1.MacNode) string {
	if mac.Status.Phase == rackv1alpha1.MacNodeLeased {
		if lease := w.leaseOn(mac); lease != nil && lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld {
			return stateHeld
		}
	}
	if mac.Status.Phase == "" {
		return string(rackv1alpha1.MacNodePending)
	}
	return string(mac.Status.Phase)
}

// leaseOn returns the lease that mac belongs to, or nil if there is none in the cache.
func (w *waiter) leaseOn(mac *rackv1alpha1.MacNode) *rackv1alpha1.MacNodeLease {
	ref := mac.Status.LeaseRef
	if ref == nil {
		return nil
	}
	lease, err := w.getLease(ref.Namespace, ref.Name)
	if err != nil || lease.UID != ref.UID {
		return nil
	}
	return lease
}

// count returns the number of macs in each state, as "3 Leased, 1 Held, 0 Available".
func (w *waiter) count(macs []*rackv1alpha1.MacNode) string {
	counts := map[string]int{}
	for _, mac := range macs {
		counts[w.state(mac)]++
	}
	var list []string
	for _, state := range states {
		if counts[state] > 0 || state == string(rackv1alpha1.MacNodeAvailable) {
			list = append(list, fmt.Sprintf("%d %s", counts[state], state))
		}
	}
	return strings.Join(list, ", ")
}

// earliest says when the first of macs, called subject, is released, and when that sentence is no longer true.
func (w *waiter) earliest(subject string, macs []*rackv1alpha1.MacNode) (sentence string, due time.Time) {
	now := w.now()
	var earliest time.Time
	var certain, leased bool
	for _, mac := range macs {
		if mac.Status.LeaseRef == nil {
			continue
		}
		leased = true
		if mac.Status.ReleasingSince != nil {
			return "; " + subject + " is being released now", time.Time{}
		}
		at, sure := w.releaseTime(mac)
		// A time that has passed says nothing: the tenant may delete the lease now, or in a year.
		if at.After(now) && (earliest.IsZero() || at.Before(earliest)) {
			earliest, certain = at, sure
		}
	}
	switch {
	case !leased:
		return "", time.Time{}
	case earliest.IsZero():
		return "; the floor has passed, and the Mac is released when its tenant deletes the lease", time.Time{}
	case certain:
		return "; " + subject + " is released at " + earliest.UTC().Format(time.RFC3339), earliest
	default:
		return "; " + subject + " can be released at " + earliest.UTC().Format(time.RFC3339), earliest
	}
}

// releaseTime returns when mac is released, and whether that is certain: unless the lease is held or expires,
// its tenant may keep the Mac for longer.
func (w *waiter) releaseTime(mac *rackv1alpha1.MacNode) (at time.Time, certain bool) {
	lease := w.leaseOn(mac)
	if lease == nil || lease.Status.BoundAt == nil {
		if mac.Status.EarliestReleaseAt == nil {
			return time.Time{}, false
		}
		return mac.Status.EarliestReleaseAt.Time, false
	}
	if lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld {
		return facts.Floor(lease), true
	}
	if expiry := facts.Expiry(lease); !expiry.IsZero() {
		return expiry, true
	}
	return facts.Floor(lease), false
}
