package macnodelease

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
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

func TestWaiting(t *testing.T) {
	at := func(h int) time.Time { return noon.Add(time.Duration(h) * time.Hour) }
	var (
		open    = aLease("open", -1000, boundAt(2*time.Hour))                            // its floor is 22 hours from now
		older   = aLease("older", -1000, boundAt(30*time.Hour))                          // its floor has passed
		held    = aLease("held", -1000, boundAt(20*time.Hour), heldAt(time.Hour))        // 4 hours from now
		expirer = aLease("expirer", -1000, boundAt(10*time.Hour), expires(48*time.Hour)) // 38 hours from now
	)
	others := []*rackv1alpha1.MacNodeLease{open, older, held, expirer}

	for _, tt := range []struct {
		name    string
		lease   *rackv1alpha1.MacNodeLease
		noClass bool
		macs    []*rackv1alpha1.MacNode
		reason  string
		message string
		due     time.Time
	}{
		{name: "bound meanwhile", lease: aLease("a", 0, boundAt(0))},
		{name: "a Mac is free", lease: aLease("a", 0), macs: []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(open)), aMac("mac-2")}},
		{name: "the requested Mac is free", lease: aLease("a", 0, serial("S-mac-2")), macs: []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(open)), aMac("mac-2")}},
		{
			name: "no such class", lease: aLease("a", 0), noClass: true,
			reason: rackv1alpha1.ReasonUnknownClass, message: `MacNodeClass "base" not found; list the classes with kubectl get macnodeclasses`,
		},
		{
			name: "no Mac at all", lease: aLease("a", 0),
			reason: rackv1alpha1.ReasonEmptyClass, message: `MacNodeClass "base" has no Macs; an administrator must add one, or create the lease with another class`,
		},
		{
			name: "counted by phase, with the earliest release", lease: aLease("a", 0),
			macs: []*rackv1alpha1.MacNode{
				aMac("mac-1", leasedBy(open)), aMac("mac-2", leasedBy(held)), aMac("mac-3", leasedBy(expirer)), aMac("mac-4", leasedBy(older)),
				aMac("mac-5", phase(rackv1alpha1.MacNodeOffline)), aMac("mac-6", phase(rackv1alpha1.MacNodeQuarantined)),
				aMac("mac-7", phase(rackv1alpha1.MacNodeMaintenance)), aMac("mac-8", phase("")), aMac("mac-9", phase(rackv1alpha1.MacNodePending)),
			},
			reason:  rackv1alpha1.ReasonNoMacAvailable,
			message: "waiting for a Mac of class base: 3 Leased, 1 Held, 1 Quarantined, 1 Offline, 1 Maintenance, 2 Pending, 0 Available; the earliest is released at 2026-08-01T16:00:00Z",
			due:     at(4),
		},
		{
			name: "the release depends on the tenant", lease: aLease("a", 0), macs: []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(expirer)), aMac("mac-2", leasedBy(open))},
			reason: rackv1alpha1.ReasonNoMacAvailable, message: "waiting for a Mac of class base: 2 Leased, 0 Available; the earliest can be released at 2026-08-02T10:00:00Z", due: at(22),
		},
		{
			name: "one that expires", lease: aLease("a", 0), macs: []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(expirer)), aMac("mac-2", leasedBy(older))},
			reason: rackv1alpha1.ReasonNoMacAvailable, message: "waiting for a Mac of class base: 2 Leased, 0 Available; the earliest is released at 2026-08-03T02:00:00Z", due: at(38),
		},
		{
			name: "all past their floor", lease: aLease("a", 0), macs: []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(older))},
			reason: rackv1alpha1.ReasonNoMacAvailable, message: "waiting for a Mac of class base: 1 Leased, 0 Available; the floor has passed, and the Mac is released when its tenant deletes the lease",
		},
		{
			name: "one is being released", lease: aLease("a", 0), macs: []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(older), isReleasing), aMac("mac-2", leasedBy(held))},
			reason: rackv1alpha1.ReasonNoMacAvailable, message: "waiting for a Mac of class base: 1 Held, 1 Releasing, 0 Available; the earliest is being released now",
		},
		{
			name: "a lease that is not in the cache", lease: aLease("a", 0), macs: []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(aLease("unknown", 0, boundAt(time.Hour))))},
			reason: rackv1alpha1.ReasonNoMacAvailable, message: "waiting for a Mac of class base: 1 Leased, 0 Available; the earliest can be released at 2026-08-02T11:00:00Z", due: at(23),
		},
		{
			name: "the requested Mac is leased", lease: aLease("a", 0, serial("S-mac-1")), macs: []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(held)), aMac("mac-2")},
			reason: rackv1alpha1.ReasonMacNotAvailable, message: "no Mac of class base with serial number S-mac-1 is free; to get any free Mac of the class, create a lease without spec.serialNumber",
		},
		{
			name: "the requested Mac is in maintenance", lease: aLease("a", 0, serial("S-mac-1")), macs: []*rackv1alpha1.MacNode{aMac("mac-1", phase(rackv1alpha1.MacNodeMaintenance)), aMac("mac-2")},
			reason: rackv1alpha1.ReasonMacNotAvailable, message: "no Mac of class base with serial number S-mac-1 is free; to get any free Mac of the class, create a lease without spec.serialNumber",
		},
		{
			name: "the requested Mac is unknown", lease: aLease("a", 0, serial("S-mac-9")), macs: []*rackv1alpha1.MacNode{aMac("mac-1")},
			reason: rackv1alpha1.ReasonMacNotAvailable, message: "no Mac of class base with serial number S-mac-9 is free; to get any free Mac of the class, create a lease without spec.serialNumber",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stored := append(others, tt.lease)
			var written *rackv1alpha1.MacNodeLease
			w := &waiter{
				now: func() time.Time { return noon },
				getLease: func(_, name string) (*rackv1alpha1.MacNodeLease, error) {
					return find(stored, name, nil)
				},
				classExists: func(string) (bool, error) { return !tt.noClass, nil },
				macsOf:      func(string) ([]*rackv1alpha1.MacNode, error) { return tt.macs, nil },
				updateState: func(_ context.Context, _, lease *rackv1alpha1.MacNodeLease) error {
					written = lease
					return nil
				},
			}
			due, err := w.reconcile(t.Context(), "acme/a")
			require.NoError(t, err)
			assert.Equal(t, tt.due, due)
			if tt.reason == "" {
				assert.Nil(t, written)
				return
			}
			require.NotNil(t, written)
			assert.Empty(t, tt.lease.Status.Conditions, "the cache was changed")
			want := metav1.Condition{Type: "Bound", Status: "False", Reason: tt.reason, Message: tt.message, LastTransitionTime: metav1.NewTime(noon)}
			assert.Equal(t, []metav1.Condition{want}, written.Status.Conditions)
		})
	}

	t.Run("an unchanged condition is not written again", func(t *testing.T) {
		lease := aLease("a", 0)
		writes := 0
		w := &waiter{
			now: func() time.Time { return noon },
			getLease: func(_, name string) (*rackv1alpha1.MacNodeLease, error) {
				return find(append(others, lease), name, nil)
			},
			classExists: func(string) (bool, error) { return true, nil },
			macsOf: func(string) ([]*rackv1alpha1.MacNode, error) {
				return []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(open))}, nil
			},
			updateState: func(_ context.Context, _, written *rackv1alpha1.MacNodeLease) error {
				lease = written
				writes++
				return nil
			},
		}
		for range 2 {
			due, err := w.reconcile(t.Context(), "acme/a")
			require.NoError(t, err)
			assert.Equal(t, at(22), due)
		}
		assert.Equal(t, 1, writes)
	})

	t.Run("the summary of a class is computed once, until the class changes or the summary expires", func(t *testing.T) {
		now, looks := noon, 0
		w := &waiter{
			now: func() time.Time { return now },
			getLease: func(_, name string) (*rackv1alpha1.MacNodeLease, error) {
				return find(append(others, aLease("a", 0), aLease("b", 1)), name, nil)
			},
			classExists: func(string) (bool, error) { return true, nil },
			macsOf: func(string) ([]*rackv1alpha1.MacNode, error) {
				looks++
				return []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(open))}, nil
			},
			updateState: func(_ context.Context, _, _ *rackv1alpha1.MacNodeLease) error { return nil },
		}
		for _, step := range []struct {
			at    time.Time
			looks int
		}{{noon, 1}, {at(21), 1}, {at(22), 2}} {
			now = step.at
			for _, name := range []string{"acme/a", "acme/b"} {
				_, err := w.reconcile(t.Context(), name)
				require.NoError(t, err)
			}
			assert.Equal(t, step.looks, looks)
		}
		w.classChanged("base")
		_, err := w.reconcile(t.Context(), "acme/a")
		require.NoError(t, err)
		assert.Equal(t, 3, looks)
	})

	t.Run("gone", func(t *testing.T) {
		w := &waiter{getLease: func(string, string) (*rackv1alpha1.MacNodeLease, error) { return nil, errNotFound }}
		_, err := w.reconcile(t.Context(), "acme/a")
		assert.NoError(t, err)
	})
}
