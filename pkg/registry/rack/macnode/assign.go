package macnode

import (
	"k8s.io/apimachinery/pkg/api/meta"

	"macrack.io/macrack/pkg/apis/rack"
)

// Assign gives a Mac to a bound lease, which ref refers to.
func Assign(node *rack.MacNode, lease *rack.MacNodeLease, ref rack.LeaseReference) {
	s := &node.Status
	s.LeaseRef, s.EarliestReleaseAt = &ref, lease.Status.EarliestReleaseAt
	s.PrefetchImages, s.Caches = lease.Spec.PrefetchImages, lease.Spec.Caches
	s.ReleasingSince, s.Scrub = nil, nil
	meta.RemoveStatusCondition(&s.Conditions, rack.MacNodeScrubbed)
}

// Unassign takes a Mac from its lease.
func Unassign(node *rack.MacNode) {
	s := &node.Status
	s.LeaseRef, s.EarliestReleaseAt = nil, nil
	s.PrefetchImages, s.Caches = nil, nil
	s.ReleasingSince = nil
}
