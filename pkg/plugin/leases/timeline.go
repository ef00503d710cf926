// Package leases is the command that draws the leases of a tenant as a timeline.
package leases

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/fleet"
	"macrack.io/macrack/pkg/rules"
)

// A Timeline is the data of the leases, as -o json prints it.
type Timeline struct {
	metav1.TypeMeta `json:",inline"`
	// Time is the time of the timeline.
	Time   string  `json:"time"`
	Leases []Lease `json:"leases"`
	// Notices state which objects are not shown.
	Notices []string `json:"notices,omitempty"`
}

// A Lease is a lease in the timeline. Times that are not known are absent.
type Lease struct {
	Namespace    string `json:"namespace"`
	Name         string `json:"name"`
	ClassName    string `json:"className"`
	NodeName     string `json:"nodeName,omitempty"`
	SerialNumber string `json:"serialNumber,omitempty"`
	Phase        string `json:"phase"`
	// CreatedAt is the time at which the lease was requested.
	CreatedAt string `json:"createdAt"`
	BoundAt   string `json:"boundAt,omitempty"`
	// EarliestReleaseAt is the floor.
	EarliestReleaseAt string `json:"earliestReleaseAt,omitempty"`
	HeldAt            string `json:"heldAt,omitempty"`
	// ExpiresAt is the time at which the lease deletes itself.
	ExpiresAt  string `json:"expiresAt,omitempty"`
	ReleasedAt string `json:"releasedAt,omitempty"`
	// Instances are the instances that have a slot.
	Instances []string `json:"instances"`
	// Reason and Message state what the lease waits for.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`

	created, bound, floor, held, expires, released time.Time
}

func newTimeline(s *fleet.Snapshot) *Timeline {
	t := &Timeline{
		TypeMeta: metav1.TypeMeta{APIVersion: cmdutil.APIVersion, Kind: "LeaseTimeline"},
		Time:     cmdutil.Time(s.Now), Leases: []Lease{}, Notices: s.Notices,
	}
	for _, lease := range s.Leases {
		t.Leases = append(t.Leases, newLease(lease))
	}
	return t
}

func newLease(lease *rackv1alpha1.MacNodeLease) Lease {
	l := Lease{
		Namespace: lease.Namespace, Name: lease.Name, ClassName: lease.Spec.ClassName,
		NodeName: lease.Status.NodeName, SerialNumber: lease.Status.SerialNumber, Phase: string(lease.Status.Phase), Instances: []string{},
		created: lease.CreationTimestamp.Time,
		floor:   rules.LeaseFloor(lease.Status.BoundAt, lease.Spec.MinimumDuration.Value(), lease.Status.EarliestReleaseAt),
	}
	if l.Phase == "" {
		l.Phase = string(rackv1alpha1.MacNodeLeasePending)
	}
	if bound := lease.Status.BoundAt; bound != nil {
		l.bound, l.expires = bound.Time, rules.LeaseExpiry(bound, lease.Spec.ExpireAfter.Value(), l.floor)
	}
	if lease.Status.HeldAt != nil {
		l.held = lease.Status.HeldAt.Time
	}
	if lease.Status.ReleasedAt != nil {
		l.released = lease.Status.ReleasedAt.Time
	}
	for _, slot := range lease.Status.Instances {
		l.Instances = append(l.Instances, slot.Name)
	}
	if c := waitsFor(lease); c != nil {
		l.Reason, l.Message = c.Reason, c.Message
	}
	for text, at := range map[*string]time.Time{
		&l.CreatedAt: l.created, &l.BoundAt: l.bound, &l.EarliestReleaseAt: l.floor, &l.HeldAt: l.held, &l.ExpiresAt: l.expires, &l.ReleasedAt: l.released,
	} {
		if !at.IsZero() {
			*text = cmdutil.Time(at)
		}
	}
	return l
}

// waitsFor returns the condition that keeps the lease from being Ready, or nil.
func waitsFor(lease *rackv1alpha1.MacNodeLease) *metav1.Condition {
	for _, name := range []string{rackv1alpha1.MacNodeLeaseConditionStalled, rackv1alpha1.MacNodeLeaseConditionReconciling} {
		if c := meta.FindStatusCondition(lease.Status.Conditions, name); c != nil && c.Status == metav1.ConditionTrue {
			return c
		}
	}
	return nil
}
