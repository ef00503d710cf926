package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
)

// After a Node was deleted and registered again, its Lease belongs to the new Node. Otherwise the
// garbage collector would delete it.
func TestLeaseIsOfTheNodeAsItIsNow(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	client := fake.NewClientset()
	leases := &stampedLeases{
		LeaseInterface: client.CoordinationV1().Leases(corev1.NamespaceNodeLease), clock: clocktesting.NewFakePassiveClock(now), seconds: 40, nodes: client.CoreV1().Nodes(),
	}
	ofOld := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: "mac-1", Namespace: corev1.NamespaceNodeLease, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "mac-1", UID: "old"}},
	}}
	_, err := leases.Create(t.Context(), ofOld, metav1.CreateOptions{})
	assert.True(t, apierrors.IsNotFound(err), "while there is no Node: %v", err)

	_, err = client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mac-1", UID: "new"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	lease, err := leases.Create(t.Context(), ofOld, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "mac-1", UID: "new"}}, lease.OwnerReferences)
	assert.True(t, lease.Spec.RenewTime.Equal(&metav1.MicroTime{Time: now}))
	assert.EqualValues(t, "old", ofOld.OwnerReferences[0].UID, "the library's own copy stays")
}
