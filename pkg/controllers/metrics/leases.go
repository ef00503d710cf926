package metrics

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

var leasePhases = []string{
	string(rackv1alpha1.MacNodeLeasePending),
	string(rackv1alpha1.MacNodeLeaseBound),
	string(rackv1alpha1.MacNodeLeaseHeld),
	string(rackv1alpha1.MacNodeLeaseReleasing),
	string(rackv1alpha1.MacNodeLeaseReleased),
}

// notReported is the reason of a pending lease before the controllers have explained it.
const notReported = "NotReported"

var pendingReasons = []string{
	rackv1alpha1.ReasonNoMacAvailable,
	rackv1alpha1.ReasonMacNotAvailable,
	rackv1alpha1.ReasonEmptyClass,
	rackv1alpha1.ReasonUnknownClass,
	notReported,
	other,
}

// collectLeases counts the leases, and the reasons for which they have no Mac.
func (f *fleet) collectLeases(send sender) {
	byPhase, byReason, since := count{}, count{}, oldest[[2]string]{}
	for _, lease := range f.leases {
		class, phase := f.class(lease), lease.Status.Phase
		if phase == "" {
			phase = rackv1alpha1.MacNodeLeasePending
		}
		byPhase[[2]string{class, string(phase)}]++
		if phase == rackv1alpha1.MacNodeLeasePending {
			pair := [2]string{class, pendingReason(lease)}
			byReason[pair]++
			since.add(pair, lease.CreationTimestamp.Time)
		}
	}
	classes := append(slices.Clone(f.classes), "")
	byPhase.send(send, leases, classes, leasePhases)
	byReason.send(send, leasesPending, classes, pendingReasons)
	for pair, t := range since {
		send.time(leasePendingOldest, t, pair[0], pair[1])
	}
}

// class returns the class of a lease, or an empty string if it does not exist: tenants can name any
// class.
func (f *fleet) class(lease *rackv1alpha1.MacNodeLease) string {
	if _, found := slices.BinarySearch(f.classes, lease.Spec.ClassName); found {
		return lease.Spec.ClassName
	}
	return ""
}

func pendingReason(lease *rackv1alpha1.MacNodeLease) string {
	bound := meta.FindStatusCondition(lease.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionBound)
	if bound == nil || bound.Reason == "" {
		return notReported
	}
	return known(pendingReasons, bound.Reason)
}
