package registry

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// FuzzPlanners sends patches of a bound lease, of its Mac and of an instance on it. It looks for a
// patch that the planners must not accept: one that moves a floor, separates a lease from its Mac,
// loses a slot, or makes the server fail.
func FuzzPlanners(f *testing.F) {
	for _, seed := range []string{
		`{"status":{"earliestReleaseAt":"2026-03-01T12:00:00Z"}}`, `{"status":null}`, `{"metadata":{"finalizers":null}}`,
		`{"spec":{"minimumDuration":"1h"}}`, `{"status":{"phase":"Releasing"}}`, `{"status":{"leaseRef":null,"runningVMs":9}}`,
		`{"status":{"instances":[]}}`, `{"status":{"phase":"Running","machineID":"YQ==","macAddress":"02:00:00:00:00:01"}}`,
		`{"metadata":{"ownerReferences":[],"uid":"x"}}`,
	} {
		for target := range byte(6) {
			f.Add(target, seed)
		}
	}
	s := newFuzzed(f)
	f.Fuzz(func(t *testing.T, target byte, patch string) {
		if !json.Valid([]byte(patch)) {
			return
		}
		s.patch(t, target, patch)
		lease, err := s.admin.RackV1alpha1().MacNodeLeases("acme").Get(t.Context(), "build", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, s.lease.UID, lease.UID)
		require.True(t, lease.Status.BoundAt.Equal(s.lease.Status.BoundAt))
		require.False(t, lease.Status.EarliestReleaseAt.Before(s.lease.Status.EarliestReleaseAt))
		require.Equal(t, s.lease.Status.NodeName, lease.Status.NodeName)
		require.Contains(t, []rackv1alpha1.MacNodeLeasePhase{rackv1alpha1.MacNodeLeaseBound, rackv1alpha1.MacNodeLeaseHeld}, lease.Status.Phase)
		node, err := s.admin.RackV1alpha1().MacNodes().Get(t.Context(), "mac-1", metav1.GetOptions{})
		require.NoError(t, err)
		require.NotNil(t, node.Status.LeaseRef)
		require.Equal(t, lease.UID, node.Status.LeaseRef.UID)
		instance, err := s.admin.InstanceV1alpha1().MacOSInstances("acme").Get(t.Context(), "first", metav1.GetOptions{})
		require.NoError(t, err)
		ended := instance.Status.Phase == "Stopped" || instance.Status.Phase == "Failed"
		require.Equal(t, ended, len(lease.Status.Instances) == 0, "%s has %v", instance.Status.Phase, lease.Status.Instances)
	})
}

type fuzzed struct {
	*fleet
	lease *rackv1alpha1.MacNodeLease
}

func newFuzzed(f *testing.F) *fuzzed {
	fleet := newFleet(f, 1)
	fleet.mac("mac-1", "C07AAAAA0001")
	lease := fleet.lease("acme", "build", "mac-1")
	require.NoError(f, fleet.create(f.Context(), newInstance("acme", "first", "build")))
	return &fuzzed{fleet, lease}
}

// patch sends a patch to one of the objects or statuses.
func (s *fuzzed) patch(t *testing.T, target byte, patch string) {
	var err error
	var subresource []string
	if target%2 == 1 {
		subresource = []string{"status"}
	}
	switch target / 2 % 3 {
	case 0:
		_, err = s.admin.RackV1alpha1().MacNodeLeases("acme").Patch(t.Context(), "build", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
	case 1:
		_, err = s.admin.RackV1alpha1().MacNodes().Patch(t.Context(), "mac-1", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
	case 2:
		_, err = s.admin.InstanceV1alpha1().MacOSInstances("acme").Patch(t.Context(), "first", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		require.Less(t, status.Status().Code, int32(http.StatusInternalServerError), "%v", err)
	}
}
