// Package rack is the command that draws the racks: each Mac in its place, with its phase, tenant
// and slots.
package rack

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/fleet"
	"macrack.io/macrack/pkg/rules"
)

// A Picture is the data of the racks, as -o json prints it.
type Picture struct {
	metav1.TypeMeta `json:",inline"`
	// Time is the time of the picture.
	Time string `json:"time"`
	// Macs are sorted by site, rack, shelf and name.
	Macs []Mac `json:"macs"`
	// Pending are the leases that have no Mac.
	Pending []Pending `json:"pending,omitempty"`
	// Notices state which objects are not shown.
	Notices []string `json:"notices,omitempty"`
}

// A Mac is a Mac in the picture.
type Mac struct {
	Name         string `json:"name"`
	SerialNumber string `json:"serialNumber"`
	ClassName    string `json:"className"`
	// Site, Rack and Shelf are empty if they are not known to the user.
	Site  string `json:"site,omitempty"`
	Rack  string `json:"rack,omitempty"`
	Shelf string `json:"shelf,omitempty"`
	// Phase is that of the MacNode, or that of its lease if the lease is Held. Users who may not
	// list Macs see the phase of the lease.
	Phase string `json:"phase"`
	// Tenant is the namespace of the lease.
	Tenant string `json:"tenant,omitempty"`
	Lease  string `json:"lease,omitempty"`
	// Slots has one entry for each slot of the Mac. An entry is empty if the slot is free, and "?"
	// if the user may not see which instance runs in it.
	Slots []string `json:"slots"`
	// EarliestReleaseAt is the floor of the lease.
	EarliestReleaseAt string `json:"earliestReleaseAt,omitempty"`

	floor time.Time
}

// Pending is a lease that waits for a Mac.
type Pending struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	ClassName string `json:"className"`
	Since     string `json:"since"`
	Reason    string `json:"reason,omitempty"`
}

const hiddenSlot = "?"

// newPicture returns the picture of a snapshot. With a tenant, it has only the Macs of the tenant.
func newPicture(s *fleet.Snapshot, tenant string) *Picture {
	p := &Picture{
		TypeMeta: metav1.TypeMeta{APIVersion: cmdutil.APIVersion, Kind: "RackPicture"},
		Time:     cmdutil.Time(s.Now), Macs: []Mac{}, Notices: s.Notices,
	}
	leases := map[types.UID]*rackv1alpha1.MacNodeLease{}
	for _, lease := range s.Leases {
		leases[lease.UID] = lease
		switch {
		case lease.Status.Phase == rackv1alpha1.MacNodeLeasePending || lease.Status.Phase == "":
			p.Pending = append(p.Pending, pendingLease(lease))
		case !s.MacsShown && lease.Status.Phase != rackv1alpha1.MacNodeLeaseReleased:
			p.Macs = append(p.Macs, macOfLease(lease))
		}
	}
	for _, mac := range s.Macs {
		if ref := mac.Status.LeaseRef; tenant == "" || ref != nil && ref.Namespace == tenant {
			p.Macs = append(p.Macs, macOfNode(mac, leases))
		}
	}
	slices.SortStableFunc(p.Macs, func(a, b Mac) int {
		return cmp.Or(cmp.Compare(a.Site, b.Site), naturally(a.Rack, b.Rack), naturally(a.Shelf, b.Shelf), naturally(a.Name, b.Name))
	})
	return p
}

// naturally compares texts; numbers are compared by value.
func naturally(a, b string) int {
	x, errX := strconv.Atoi(a)
	y, errY := strconv.Atoi(b)
	if errX == nil && errY == nil {
		return cmp.Compare(x, y)
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// macOfLease returns what the tenant of a lease knows about its Mac.
func macOfLease(lease *rackv1alpha1.MacNodeLease) Mac {
	mac := Mac{
		Name: lease.Status.NodeName, SerialNumber: lease.Status.SerialNumber, ClassName: lease.Spec.ClassName,
		Phase: string(lease.Status.Phase), Tenant: lease.Namespace, Lease: lease.Name, Slots: slotsOf(lease),
	}
	if c := meta.FindStatusCondition(lease.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionMacReady); c != nil && c.Status == metav1.ConditionFalse {
		mac.Phase = c.Reason
		if c.Reason != rackv1alpha1.ReasonMacOffline {
			mac.Phase = string(rackv1alpha1.MacNodeQuarantined)
		}
	}
	mac.setFloor(rules.LeaseFloor(lease.Status.BoundAt, lease.Spec.MinimumDuration.Value(), lease.Status.EarliestReleaseAt))
	return mac
}

func macOfNode(node *rackv1alpha1.MacNode, leases map[types.UID]*rackv1alpha1.MacNodeLease) Mac {
	mac := Mac{
		Name: node.Name, SerialNumber: node.Spec.SerialNumber, ClassName: node.Spec.ClassName,
		Site: node.Spec.Location.Site, Rack: node.Spec.Location.Rack, Shelf: node.Spec.Location.Shelf,
		Phase: cmp.Or(string(node.Status.Phase), string(rackv1alpha1.MacNodePending)), Slots: make([]string, rules.MaxVMsPerMac),
	}
	for i := range min(int(node.Status.RunningVMs), len(mac.Slots)) {
		mac.Slots[i] = hiddenSlot
	}
	ref := node.Status.LeaseRef
	if ref == nil {
		return mac
	}
	mac.Tenant, mac.Lease = ref.Namespace, ref.Name
	if node.Status.EarliestReleaseAt != nil {
		mac.setFloor(node.Status.EarliestReleaseAt.Time)
	}
	if lease := leases[ref.UID]; lease != nil {
		mac.Slots = slotsOf(lease)
		if lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld && node.Status.Phase == rackv1alpha1.MacNodeLeased {
			mac.Phase = string(rackv1alpha1.MacNodeLeaseHeld)
		}
	}
	return mac
}

func (m *Mac) setFloor(floor time.Time) {
	if !floor.IsZero() {
		m.floor, m.EarliestReleaseAt = floor, cmdutil.Time(floor)
	}
}

func slotsOf(lease *rackv1alpha1.MacNodeLease) []string {
	slots := make([]string, rules.MaxVMsPerMac)
	for i, slot := range lease.Status.Instances {
		if i < len(slots) {
			slots[i] = slot.Name
		}
	}
	return slots
}

func pendingLease(lease *rackv1alpha1.MacNodeLease) Pending {
	p := Pending{Namespace: lease.Namespace, Name: lease.Name, ClassName: lease.Spec.ClassName, Since: cmdutil.Time(lease.CreationTimestamp.Time)}
	if c := meta.FindStatusCondition(lease.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionBound); c != nil {
		p.Reason = c.Reason
	}
	return p
}
