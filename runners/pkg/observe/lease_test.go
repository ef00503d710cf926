package observe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/machines"
)

var (
	boundAt = time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	floorAt = boundAt.Add(24 * time.Hour)
	jobEnd  = boundAt.Add(time.Hour)
)

func lease(phase rackv1alpha1.MacNodeLeasePhase, conditions ...metav1.Condition) *rackv1alpha1.MacNodeLease {
	l := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	l.Status.Phase, l.Status.Conditions = phase, conditions
	if phase != rackv1alpha1.MacNodeLeasePending {
		l.Status.BoundAt, l.Status.EarliestReleaseAt = &metav1.Time{Time: boundAt}, &metav1.Time{Time: floorAt}
	}
	return l
}

func deleted(l *rackv1alpha1.MacNodeLease) *rackv1alpha1.MacNodeLease {
	l.DeletionTimestamp = &metav1.Time{Time: jobEnd}
	return l
}

func used(l *rackv1alpha1.MacNodeLease) *rackv1alpha1.MacNodeLease {
	l.Annotations = map[string]string{AnnotationJobEndedAt: jobEnd.Format(time.RFC3339)}
	return l
}

func isFalse(kind, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: "all Macs are leased"}
}

func TestLease(t *testing.T) {
	for _, test := range []struct {
		name     string
		lease    *rackv1alpha1.MacNodeLease
		machines []machines.Machine
		want     floor.Lease
		gone     bool
	}{
		{
			name:  "new",
			lease: lease(""),
			want:  floor.Lease{Phase: floor.Pending},
		},
		{
			name:  "pending without a refusal",
			lease: lease(rackv1alpha1.MacNodeLeasePending, isFalse("Bound", "Pending")),
			want:  floor.Lease{Phase: floor.Pending},
		},
		{
			name:  "pending because the pool is empty",
			lease: lease(rackv1alpha1.MacNodeLeasePending, isFalse("Bound", "NoMacAvailable")),
			want:  floor.Lease{Phase: floor.Pending, Refusal: "NoMacAvailable: all Macs are leased"},
		},
		{
			name:  "deleted while pending",
			lease: deleted(lease(rackv1alpha1.MacNodeLeasePending)),
			gone:  true,
		},
		{
			name:  "bound and never used",
			lease: lease(rackv1alpha1.MacNodeLeaseBound),
			want:  floor.Lease{Phase: floor.Bound, Floor: floorAt, IdleSince: boundAt},
		},
		{
			name:     "bound and in use",
			lease:    used(lease(rackv1alpha1.MacNodeLeaseBound)),
			machines: []machines.Machine{{Lease: "a", State: machines.Busy}, {Lease: "a", State: machines.Warm}, {Lease: "b", State: machines.Busy}},
			want:     floor.Lease{Phase: floor.Bound, Floor: floorAt, IdleSince: jobEnd, Busy: 1, Ready: 1},
		},
		{
			name:     "bound with machines that take no job",
			lease:    lease(rackv1alpha1.MacNodeLeaseBound),
			machines: []machines.Machine{{Lease: "a", State: machines.Booting}, {Lease: "a", State: machines.Done}},
			want:     floor.Lease{Phase: floor.Bound, Floor: floorAt, IdleSince: boundAt},
		},
		{
			name:  "bound to a Mac that is offline",
			lease: lease(rackv1alpha1.MacNodeLeaseBound, isFalse("MacReady", "Offline")),
			want:  floor.Lease{Phase: floor.Bound, Floor: floorAt, IdleSince: boundAt, Offline: true},
		},
		{
			name:  "deleted, and not Held yet",
			lease: deleted(lease(rackv1alpha1.MacNodeLeaseBound)),
			want:  floor.Lease{Phase: floor.Ending, Floor: floorAt, IdleSince: boundAt},
		},
		{
			name:  "held",
			lease: deleted(lease(rackv1alpha1.MacNodeLeaseHeld)),
			want:  floor.Lease{Phase: floor.Ending, Floor: floorAt, IdleSince: boundAt},
		},
		{
			name:  "releasing",
			lease: deleted(lease(rackv1alpha1.MacNodeLeaseReleasing)),
			want:  floor.Lease{Phase: floor.Ending, Floor: floorAt, IdleSince: boundAt},
		},
		{
			name:  "released",
			lease: deleted(lease(rackv1alpha1.MacNodeLeaseReleased)),
			gone:  true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, ok := Lease(test.lease, test.machines)
			assert.Equal(t, test.gone, !ok)
			if ok {
				test.want.Name = "a"
				assert.Equal(t, test.want, got)
			}
		})
	}
}
