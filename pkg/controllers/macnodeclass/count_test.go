package macnodeclass

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/testutil"
)

var noon = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func TestReconcile(t *testing.T) {
	mac := func(name string, phase rackv1alpha1.MacNodePhase) *rackv1alpha1.MacNode {
		return &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: rackv1alpha1.MacNodeStatus{Phase: phase}}
	}
	leased := func(name string, uid types.UID) *rackv1alpha1.MacNode {
		m := mac("", rackv1alpha1.MacNodeLeased)
		m.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: "acme", Name: name, UID: uid}
		return m
	}
	lease := func(name string, phase rackv1alpha1.MacNodeLeasePhase) *rackv1alpha1.MacNodeLease {
		return &rackv1alpha1.MacNodeLease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: name, UID: types.UID("uid-" + name)},
			Status:     rackv1alpha1.MacNodeLeaseStatus{Phase: phase},
		}
	}

	offline := leased("bound", "uid-bound")
	offline.Status.Phase = rackv1alpha1.MacNodeOffline
	for _, tt := range []struct {
		name   string
		stored *rackv1alpha1.MacNodeClassStatus
		macs   []*rackv1alpha1.MacNode
		want   *rackv1alpha1.MacNodeClassStatus
	}{
		{name: "gone"},
		{name: "none", stored: &rackv1alpha1.MacNodeClassStatus{}},
		{name: "none any more", stored: &rackv1alpha1.MacNodeClassStatus{Total: 1}, want: &rackv1alpha1.MacNodeClassStatus{}},
		{
			name: "each in one count", stored: &rackv1alpha1.MacNodeClassStatus{},
			macs: []*rackv1alpha1.MacNode{
				mac("", rackv1alpha1.MacNodeAvailable), mac("", rackv1alpha1.MacNodeAvailable),
				leased("bound", "uid-bound"), leased("held", "uid-held"), leased("held", "uid-earlier"), leased("unknown", ""), mac("", rackv1alpha1.MacNodeReleasing),
				mac("", rackv1alpha1.MacNodeQuarantined),
				mac("", rackv1alpha1.MacNodeOffline), mac("", rackv1alpha1.MacNodePending), mac("", rackv1alpha1.MacNodeMaintenance), mac("", ""),
			},
			want: &rackv1alpha1.MacNodeClassStatus{Total: 12, Available: 2, Leased: 3, Held: 2, Quarantined: 1, Offline: 4, Occupied: 4},
		},
		{
			name: "an offline Mac with a lease", stored: &rackv1alpha1.MacNodeClassStatus{},
			macs: []*rackv1alpha1.MacNode{offline},
			want: &rackv1alpha1.MacNodeClassStatus{Total: 1, Offline: 1, Occupied: 1},
		},
		{
			name: "unchanged", stored: &rackv1alpha1.MacNodeClassStatus{Total: 1, Available: 1},
			macs: []*rackv1alpha1.MacNode{mac("", rackv1alpha1.MacNodeAvailable)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := testutil.NewCluster(t, noon)
			if tt.stored != nil {
				c.Add(&rackv1alpha1.MacNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "base"}, Status: *tt.stored})
			}
			for i, mac := range tt.macs {
				mac.Name, mac.Spec.ClassName = fmt.Sprintf("mac-%d", i), "base"
				c.Cache(mac)
			}
			c.Cache(mac("of-another-class", rackv1alpha1.MacNodeAvailable), lease("bound", rackv1alpha1.MacNodeLeaseBound), lease("held", rackv1alpha1.MacNodeLeaseHeld))
			var written *rackv1alpha1.MacNodeClassStatus
			c.Record(func(action clienttesting.Action, object runtime.Object) (string, error) {
				assert.Equal(t, "status", action.GetSubresource())
				written = &object.(*rackv1alpha1.MacNodeClass).Status
				return "", nil
			})
			r := newReconciler(c.Dependencies)
			due, err := r.reconcile(t.Context(), "base")
			require.NoError(t, err)
			assert.Zero(t, due)
			assert.Equal(t, tt.want, written)
		})
	}
}
