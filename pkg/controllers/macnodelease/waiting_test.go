package macnodelease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/testutil"
)

func TestWaiting(t *testing.T) {
	at := func(h int) time.Time { return noon.Add(time.Duration(h) * time.Hour) }
	var (
		open    = aLease("open", -1000, boundAt(2*time.Hour))                            // its floor is 22 hours from now
		older   = aLease("older", -1000, boundAt(30*time.Hour))                          // its floor has passed
		held    = aLease("held", -1000, boundAt(20*time.Hour), heldAt(time.Hour))        // 4 hours from now
		expirer = aLease("expirer", -1000, boundAt(10*time.Hour), expires(48*time.Hour)) // 38 hours from now
	)

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
			c := testutil.NewCluster(t, noon)
			if !tt.noClass {
				c.Cache(&rackv1alpha1.MacNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "base"}})
			}
			c.Cache(open, older, held, expirer)
			for _, mac := range tt.macs {
				c.Cache(mac)
			}
			c.Add(tt.lease)
			var written *rackv1alpha1.MacNodeLease
			c.Record(func(_ clienttesting.Action, object runtime.Object) (string, error) {
				written = object.(*rackv1alpha1.MacNodeLease)
				return "status", nil
			})
			w := newWaiter(c.Dependencies)
			due, err := w.reconcile(t.Context(), "acme/a")
			require.NoError(t, err)
			assert.Equal(t, tt.due, due)
			if tt.reason == "" {
				assert.Nil(t, written)
				return
			}
			require.NotNil(t, written)
			assert.Empty(t, tt.lease.Status.Conditions, "the cache was changed")
			require.Len(t, written.Status.Conditions, 1)
			bound := written.Status.Conditions[0]
			assert.True(t, bound.LastTransitionTime.Time.Equal(noon))
			bound.LastTransitionTime = metav1.Time{}
			assert.Equal(t, metav1.Condition{Type: "Bound", Status: "False", Reason: tt.reason, Message: tt.message}, bound)
		})
	}
}

func TestAnUnchangedReasonOfTheWaitIsNotWrittenAgain(t *testing.T) {
	c := testutil.NewCluster(t, noon)
	open := aLease("open", -1000, boundAt(2*time.Hour))
	c.Cache(open, aMac("mac-1", leasedBy(open)))
	c.Add(aLease("a", 0))
	c.Record(func(_ clienttesting.Action, object runtime.Object) (string, error) {
		c.Cache(object)
		return "status", nil
	})
	w := newWaiter(c.Dependencies)
	for range 2 {
		due, err := w.reconcile(t.Context(), "acme/a")
		require.NoError(t, err)
		assert.Equal(t, noon.Add(22*time.Hour), due)
	}
	assert.Len(t, c.Calls, 1)
}

// countingIndex counts the lookups of Macs.
type countingIndex struct {
	classIndex
	lookups int
}

func (i *countingIndex) MacsOf(class string) ([]*rackv1alpha1.MacNode, error) {
	i.lookups++
	return i.classIndex.MacsOf(class)
}

func TestTheSummaryOfAClassIsComputedOnce(t *testing.T) {
	c := testutil.NewCluster(t, noon)
	open := aLease("open", -1000, boundAt(2*time.Hour))
	c.Cache(open, aMac("mac-1", leasedBy(open)))
	c.Add(aLease("a", 0), aLease("b", 1))
	index := &countingIndex{classIndex: c.Dependencies}
	w := newWaiter(c.Dependencies)
	w.index = index
	reconcile := func() {
		for _, key := range []string{"acme/a", "acme/b"} {
			_, err := w.reconcile(t.Context(), key)
			require.NoError(t, err)
		}
	}
	reconcile()
	assert.Equal(t, 1, index.lookups)
	c.Clock.SetTime(noon.Add(21 * time.Hour))
	reconcile()
	assert.Equal(t, 1, index.lookups)
	c.Clock.SetTime(noon.Add(22 * time.Hour))
	reconcile()
	assert.Equal(t, 2, index.lookups, "the summary has expired")
	w.classChanged("base")
	reconcile()
	assert.Equal(t, 3, index.lookups, "the class has changed")
}

func TestWaitingOfADeletedLease(t *testing.T) {
	_, err := newWaiter(testutil.NewCluster(t, noon).Dependencies).reconcile(t.Context(), "acme/a")
	assert.NoError(t, err)
}
