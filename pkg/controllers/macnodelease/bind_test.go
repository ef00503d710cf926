package macnodelease

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
)

func TestBind(t *testing.T) {
	now := metav1.NewTime(noon)
	deleted := func(lease *rackv1alpha1.MacNodeLease) { lease.DeletionTimestamp = &now }
	bound := func(lease *rackv1alpha1.MacNodeLease) { lease.Status.Phase = rackv1alpha1.MacNodeLeaseBound }
	another := aLease("another", -100, bound)

	for _, tt := range []struct {
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
	}{
		{
			name:   "nothing waits",
			leases: []*rackv1alpha1.MacNodeLease{aLease("a", 0, bound), aLease("b", 0, deleted)},
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
				aMac("mac-3", phase(rackv1alpha1.MacNodeQuarantined)), aMac("mac-4", leasedBy(another)), aMac("mac-5", phase(rackv1alpha1.MacNodePending)),
				aMac("mac-6", phase(rackv1alpha1.MacNodeReleasing)),
				aMac("mac-7", func(mac *rackv1alpha1.MacNode) { mac.DeletionTimestamp = &now }),
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
		{
			name:     "the cache is stale: the Mac is already leased, so the next one is taken",
			leases:   []*rackv1alpha1.MacNodeLease{aLease("a", 0), aLease("b", 1)},
			macs:     []*rackv1alpha1.MacNode{aMac("mac-1"), aMac("mac-2")},
			refuse:   map[string]error{"a>mac-1": errForbidden},
			nowMacs:  []*rackv1alpha1.MacNode{aMac("mac-1", leasedBy(another))},
			attempts: []string{"a>mac-1", "a>mac-2"},
			waits:    []string{"b"},
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
			nowLeases: []*rackv1alpha1.MacNodeLease{aLease("a", 0, bound)},
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
		t.Run(tt.name, func(t *testing.T) {
			var attempts, refused, waits []string
			b := &binder{
				leasesOf: func(class string) ([]*rackv1alpha1.MacNodeLease, error) {
					assert.Equal(t, "base", class)
					return tt.leases, nil
				},
				macsOf: func(class string) ([]*rackv1alpha1.MacNode, error) {
					assert.Equal(t, "base", class)
					return tt.macs, nil
				},
				readLease: func(_ context.Context, namespace, name string) (*rackv1alpha1.MacNodeLease, error) {
					assert.Equal(t, "acme", namespace)
					return find(append(tt.nowLeases, tt.leases...), name, tt.gone)
				},
				readMac: func(_ context.Context, name string) (*rackv1alpha1.MacNode, error) {
					return find(append(tt.nowMacs, tt.macs...), name, tt.gone)
				},
				bind: func(_ context.Context, lease *rackv1alpha1.MacNodeLease, nodeName string) error {
					call := lease.Name + ">" + nodeName
					attempts = append(attempts, call)
					return tt.refuse[call]
				},
				refused: func(lease *rackv1alpha1.MacNodeLease, nodeName string, _ error) {
					refused = append(refused, lease.Name+">"+nodeName)
				},
				waits: func(lease *rackv1alpha1.MacNodeLease) { waits = append(waits, lease.Name) },
			}
			due, err := b.reconcile(t.Context(), "base")
			if tt.err == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, tt.err)
			}
			assert.Zero(t, due)
			assert.Equal(t, tt.attempts, attempts, "attempts")
			assert.Equal(t, tt.refused, refused, "refused")
			assert.Equal(t, tt.waits, waits, "waits")
		})
	}
}

// find returns the first of objects with the name, unless it is gone.
func find[T metav1.Object](objects []T, name string, gone []string) (T, error) {
	var none T
	for _, g := range gone {
		if g == name {
			return none, errNotFound
		}
	}
	for _, object := range objects {
		if object.GetName() == name {
			return object, nil
		}
	}
	return none, errNotFound
}
