package macnodeclass

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func TestReconcile(t *testing.T) {
	mac := func(phase rackv1alpha1.MacNodePhase) *rackv1alpha1.MacNode {
		return &rackv1alpha1.MacNode{Status: rackv1alpha1.MacNodeStatus{Phase: phase}}
	}
	leased := func(name string, uid types.UID) *rackv1alpha1.MacNode {
		m := mac(rackv1alpha1.MacNodeLeased)
		m.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: "acme", Name: name, UID: uid}
		return m
	}
	leases := map[string]*rackv1alpha1.MacNodeLease{}
	for name, phase := range map[string]rackv1alpha1.MacNodeLeasePhase{"bound": rackv1alpha1.MacNodeLeaseBound, "held": rackv1alpha1.MacNodeLeaseHeld} {
		leases["acme/"+name] = &rackv1alpha1.MacNodeLease{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID("uid-" + name)}, Status: rackv1alpha1.MacNodeLeaseStatus{Phase: phase},
		}
	}
	notFound := apierrors.NewNotFound(rackv1alpha1.Resource("macnodeclasses"), "base")

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
				mac(rackv1alpha1.MacNodeAvailable), mac(rackv1alpha1.MacNodeAvailable),
				leased("bound", "uid-bound"), leased("held", "uid-held"), leased("held", "uid-earlier"), leased("unknown", ""), mac(rackv1alpha1.MacNodeReleasing),
				mac(rackv1alpha1.MacNodeQuarantined),
				mac(rackv1alpha1.MacNodeOffline), mac(rackv1alpha1.MacNodePending), mac(rackv1alpha1.MacNodeMaintenance), mac(""),
			},
			want: &rackv1alpha1.MacNodeClassStatus{Total: 12, Available: 2, Leased: 3, Held: 2, Quarantined: 1, Offline: 4},
		},
		{
			name: "unchanged", stored: &rackv1alpha1.MacNodeClassStatus{Total: 1, Available: 1},
			macs: []*rackv1alpha1.MacNode{mac(rackv1alpha1.MacNodeAvailable)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var written *rackv1alpha1.MacNodeClassStatus
			r := &reconciler{
				getClass: func(string) (*rackv1alpha1.MacNodeClass, error) {
					if tt.stored == nil {
						return nil, notFound
					}
					return &rackv1alpha1.MacNodeClass{Status: *tt.stored}, nil
				},
				macsOf: func(class string) ([]*rackv1alpha1.MacNode, error) {
					assert.Equal(t, "base", class)
					return tt.macs, nil
				},
				getLease: func(namespace, name string) (*rackv1alpha1.MacNodeLease, error) {
					if lease := leases[namespace+"/"+name]; lease != nil {
						return lease, nil
					}
					return nil, notFound
				},
				updateState: func(_ context.Context, _, class *rackv1alpha1.MacNodeClass) error {
					written = &class.Status
					return nil
				},
			}
			due, err := r.reconcile(t.Context(), "base")
			require.NoError(t, err)
			assert.Zero(t, due)
			assert.Equal(t, tt.want, written)
		})
	}
}
