package macnodelease

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/testutil"
)

// A bindScenario binds the pending leases of one class.
type bindScenario struct {
	name   string
	leases []*rackv1alpha1.MacNodeLease
	macs   []*rackv1alpha1.MacNode
	// refuse is the server's answer to lease>mac.
	refuse map[string]error
	// now has the objects that differ between server and cache; gone has the deleted ones.
	nowLeases []*rackv1alpha1.MacNodeLease
	nowMacs   []*rackv1alpha1.MacNode
	gone      []string
	// attempts, refused and waits are the calls expected, as lease>mac and lease.
	attempts, refused, waits []string
	err                      error
}

var (
	anotherBound = aLease("another", -100, isBound)
	deletedAt    = metav1.NewTime(noon)
)

func isDeleted(lease *rackv1alpha1.MacNodeLease) { lease.DeletionTimestamp = &deletedAt }

func isBound(lease *rackv1alpha1.MacNodeLease) { lease.Status.Phase = rackv1alpha1.MacNodeLeaseBound }

func (s bindScenario) run(t *testing.T) {
	c := testutil.NewCluster(t, noon)
	for _, lease := range s.leases {
		c.Cache(lease)
		if current := atServer(lease, s.nowLeases, s.gone); current != nil {
			c.Serve(current)
		}
	}
	for _, mac := range s.macs {
		c.Cache(mac)
		if current := atServer(mac, s.nowMacs, s.gone); current != nil {
			c.Serve(current)
		}
	}
	var attempts, refused []string
	c.Record(func(action clienttesting.Action, object runtime.Object) (string, error) {
		binding, ok := object.(*rackv1alpha1.MacNodeLeaseBinding)
		if !ok {
			return action.GetVerb(), nil
		}
		call := testutil.Name(action) + ">" + binding.NodeName
		assert.Equal(t, "acme", action.GetNamespace())
		assert.EqualValues(t, "uid-"+testutil.Name(action), binding.UID)
		attempts = append(attempts, call)
		return call, s.refuse[call]
	})
	var waiting fakeQueue
	b := newBinder(c.Dependencies, &waiting)
	b.parallel = 1 // so that the order of the attempts is known
	due, err := b.reconcile(t.Context(), "base")
	if s.err == nil {
		require.NoError(t, err)
	} else {
		require.ErrorIs(t, err, s.err)
	}
	assert.Zero(t, due)
	for _, event := range c.Events.Drain() {
		event = strings.TrimPrefix(event, "Warning BindRefused ")
		lease, mac, _ := strings.Cut(event, ": binding to MacNode ")
		mac, _, _ = strings.Cut(mac, " refused: ")
		refused = append(refused, lease+">"+mac)
	}
	assert.Equal(t, s.attempts, attempts, "attempts")
	assert.Equal(t, s.refused, refused, "refused")
	assert.Equal(t, s.waits, waiting.names, "waits")
}

func TestBind(t *testing.T) {
	for _, tt := range []bindScenario{
		{
			name:   "nothing waits",
			leases: []*rackv1alpha1.MacNodeLease{aLease("a", 0, isBound), aLease("b", 0, isDeleted)},
			macs:   []*rackv1alpha1.MacNode{aMac("mac-1")},
		},
		{
			name:     "the oldest first, then by UID",
			leases:   []*rackv1alpha1.MacNodeLease{aLease("d", 2), aLease("c", 1), aLease("b", 1), aLease("a", 3)},
			macs:     []*rackv1alpha1.MacNode{aMac("mac-2"), aMac("mac-1"), aMac("mac-3")},
			attempts: []string{"b>mac-1", "c>mac-2", "d>mac-3"},
			waits:    []string{"a"},
		},
		{
			name:   "only available Macs",
			leases: []*rackv1alpha1.MacNodeLease{aLease("a", 0)},
			macs: []*rackv1alpha1.MacNode{
				aMac("mac-1", phase(rackv1alpha1.MacNodeOffline)), aMac("mac-2", phase(rackv1alpha1.MacNodeMaintenance)),
				aMac("mac-3", phase(rackv1alpha1.MacNodeQuarantined)), aMac("mac-4", leasedBy(anotherBound)), aMac("mac-5", phase(rackv1alpha1.MacNodePending)),
				aMac("mac-6", phase(rackv1alpha1.MacNodeReleasing)),
				aMac("mac-7", func(mac *rackv1alpha1.MacNode) { mac.DeletionTimestamp = &deletedAt }),
			},
			waits: []string{"a"},
		},
		{
			name:     "the requested Mac",
			leases:   []*rackv1alpha1.MacNodeLease{aLease("a", 0, serial("S-mac-2"))},
			macs:     []*rackv1alpha1.MacNode{aMac("mac-1"), aMac("mac-2")},
			attempts: []string{"a>mac-2"},
		},
		{
			name:     "a lease that waits for one Mac does not delay other leases",
			leases:   []*rackv1alpha1.MacNodeLease{aLease("a", 0, serial("S-mac-9")), aLease("b", 1)},
			macs:     []*rackv1alpha1.MacNode{aMac("mac-1")},
			attempts: []string{"b>mac-1"},
			waits:    []string{"a"},
		},
		{
			name:     "a Mac that no lease requests is preferred",
			leases:   []*rackv1alpha1.MacNodeLease{aLease("a", 0), aLease("b", 1, serial("S-mac-1"))},
			macs:     []*rackv1alpha1.MacNode{aMac("mac-1"), aMac("mac-2")},
			attempts: []string{"a>mac-2", "b>mac-1"},
		},
		{
			name:     "the Mac that holds most of the images is preferred",
			leases:   []*rackv1alpha1.MacNodeLease{aLease("a", 0, prefetch("sonoma", "tahoe"))},
			macs:     []*rackv1alpha1.MacNode{aMac("mac-1"), aMac("mac-2", images("sonoma", "ventura")), aMac("mac-3", images("sonoma", "tahoe"))},
			attempts: []string{"a>mac-3"},
		},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestBindWithAStaleCache(t *testing.T) {
	for _, tt := range []bindScenario{
		{
			name:     "the cache is stale: the Mac is already leased, so another one is taken, before leases that wait",
			leases:   []*rackv1alpha1.MacNodeLease{aLease("c", 0, serial("S-mac-9")), aLease("a", 1), aLease("b", 2)},
			macs:     []*rackv1alpha1.MacNode{aMac("mac-1"), aMac("mac-2"), aMac("mac-3")},
			refuse:   map[string]error{"a>mac-1": errForbidden},
			nowMacs:  []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(anotherBound))},
			attempts: []string{"a>mac-1", "b>mac-2", "a>mac-3"},
			waits:    []string{"c"},
		},
		{
			name:     "the cache is stale: the only Mac is already leased",
			leases:   []*rackv1alpha1.MacNodeLease{aLease("a", 0), aLease("b", 1)},
			macs:     []*rackv1alpha1.MacNode{aMac("mac-1")},
			refuse:   map[string]error{"a>mac-1": errForbidden},
			nowMacs:  []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(anotherBound))},
			attempts: []string{"a>mac-1"},
			waits:    []string{"a", "b"},
		},
		{
			name:     "the cache is stale: the Mac is gone",
			leases:   []*rackv1alpha1.MacNodeLease{aLease("a", 0)},
			macs:     []*rackv1alpha1.MacNode{aMac("mac-1")},
			refuse:   map[string]error{"a>mac-1": errNotFound},
			gone:     []string{"mac-1"},
			attempts: []string{"a>mac-1"},
			waits:    []string{"a"},
		},
		{
			name:      "the cache is stale: the lease is already bound, so the next lease gets the Mac",
			leases:    []*rackv1alpha1.MacNodeLease{aLease("a", 0), aLease("b", 1)},
			macs:      []*rackv1alpha1.MacNode{aMac("mac-1")},
			refuse:    map[string]error{"a>mac-1": errConflict},
			nowLeases: []*rackv1alpha1.MacNodeLease{aLease("a", 0, isBound)},
			attempts:  []string{"a>mac-1", "b>mac-1"},
		},
		{
			name:     "the cache is stale: the lease is gone",
			leases:   []*rackv1alpha1.MacNodeLease{aLease("a", 0), aLease("b", 1)},
			macs:     []*rackv1alpha1.MacNode{aMac("mac-1")},
			refuse:   map[string]error{"a>mac-1": errNotFound},
			gone:     []string{"a"},
			attempts: []string{"a>mac-1", "b>mac-1"},
		},
		{
			name:      "the cache is stale: a new lease has the same name",
			leases:    []*rackv1alpha1.MacNodeLease{aLease("a", 0)},
			macs:      []*rackv1alpha1.MacNode{aMac("mac-1")},
			refuse:    map[string]error{"a>mac-1": errConflict},
			nowLeases: []*rackv1alpha1.MacNodeLease{aLease("a", 0, func(lease *rackv1alpha1.MacNodeLease) { lease.UID = "new" })},
			attempts:  []string{"a>mac-1"},
		},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestBindThatIsRefused(t *testing.T) {
	for _, tt := range []bindScenario{
		{
			name:     "refused for a reason of its own: reported and retried, without a delay for other leases",
			leases:   []*rackv1alpha1.MacNodeLease{aLease("a", 0), aLease("b", 1)},
			macs:     []*rackv1alpha1.MacNode{aMac("mac-1")},
			refuse:   map[string]error{"a>mac-1": errForbidden},
			attempts: []string{"a>mac-1", "b>mac-1"},
			refused:  []string{"a>mac-1"},
			err:      errForbidden,
		},
		{
			name:     "the server fails: the binding may have happened, so no other lease gets the Mac",
			leases:   []*rackv1alpha1.MacNodeLease{aLease("a", 0), aLease("b", 1)},
			macs:     []*rackv1alpha1.MacNode{aMac("mac-1")},
			refuse:   map[string]error{"a>mac-1": errTimeout},
			attempts: []string{"a>mac-1"},
			waits:    []string{"b"},
			err:      errTimeout,
		},
	} {
		t.Run(tt.name, tt.run)
	}
}

// fakeQueue has the names of the enqueued leases.
type fakeQueue struct{ names []string }

func (q *fakeQueue) Enqueue(key string) { q.names = append(q.names, strings.TrimPrefix(key, "acme/")) }

// atServer returns the version of a cached object at the server; nil if it is gone.
func atServer[T metav1.Object](cached T, current []T, gone []string) T {
	var none T
	if slices.Contains(gone, cached.GetName()) {
		return none
	}
	for _, object := range current {
		if object.GetName() == cached.GetName() {
			return object
		}
	}
	return cached
}

func TestBindManyAtOnce(t *testing.T) {
	c := testutil.NewCluster(t, noon)
	for n := range 40 {
		c.Cache(aLease(fmt.Sprintf("lease-%02d", n), n), aMac(fmt.Sprintf("mac-%02d", n)))
		c.Serve(aLease(fmt.Sprintf("lease-%02d", n), n), aMac(fmt.Sprintf("mac-%02d", n)))
	}
	var waiting fakeQueue
	b := newBinder(c.Dependencies, &waiting)
	attempts := map[string]string{}
	c.Record(func(action clienttesting.Action, object runtime.Object) (string, error) {
		if binding, ok := object.(*rackv1alpha1.MacNodeLeaseBinding); ok {
			attempts[testutil.Name(action)] = binding.NodeName
		}
		return "", nil
	})
	_, err := b.reconcile(t.Context(), "base")
	require.NoError(t, err)
	assert.Empty(t, waiting.names)
	for n := range 40 {
		assert.Equal(t, fmt.Sprintf("mac-%02d", n), attempts[fmt.Sprintf("lease-%02d", n)], "the oldest lease gets the first Mac")
	}
}
