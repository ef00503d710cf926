package macnodelease

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/install"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/registry/genericstrategy/strategytest"
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return scheme
}

func stored() *rack.MacNodeLease {
	boundAt := metav1.NewTime(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	floor := metav1.NewTime(boundAt.Add(24 * time.Hour))
	return &rack.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Name: "ci", Namespace: "acme", UID: "u1", ResourceVersion: "1", Generation: 1, Finalizers: []string{"macrack.io/floor"}},
		Spec:       rack.MacNodeLeaseSpec{ClassName: "m4"},
		Status: rack.MacNodeLeaseStatus{
			Phase: rack.MacNodeLeaseHeld, BoundAt: &boundAt, EarliestReleaseAt: &floor, HeldAt: &boundAt, NamespaceUID: "ns-1", NodeName: "mac-a1", SerialNumber: "C07DR00AQ6NV",
			Instances: []rack.LeaseSlot{{Name: "vm1", UID: "u2"}},
		},
	}
}

func TestStrategy(t *testing.T) {
	strategy := NewStrategy(newScheme(), func(context.Context) string { return "base" })
	lease := stored()
	lease.ResourceVersion, lease.Generation, lease.Finalizers = "", 7, nil
	require.NoError(t, strategytest.Create(t, strategy, lease))
	assert.Equal(t, rack.MacNodeLeaseStatus{Phase: rack.MacNodeLeasePending}, lease.Status)
	assert.EqualValues(t, 1, lease.Generation)
	assert.Equal(t, rest.DeleteDependents, strategy.DefaultGarbageCollectionPolicy(t.Context()))

	lease = stored() // as it was exported
	require.NoError(t, strategytest.Create(t, strategy, lease))
	assert.Empty(t, lease.Finalizers)
	assert.Empty(t, lease.ResourceVersion)
	lease = stored()
	lease.Finalizers = []string{"rack.macrack.io/floor"}
	assert.ErrorContains(t, strategytest.Create(t, strategy, lease), "only the server adds finalizers of macrack.io")

	lease = stored()
	lease.Spec.MinimumDuration = scalar.NewDuration(48 * time.Hour)
	lease.Status = rack.MacNodeLeaseStatus{}
	require.NoError(t, strategytest.Update(t, strategy, lease, stored()))
	assert.Equal(t, stored().Status, lease.Status, "a floor cannot be written here")
	assert.EqualValues(t, 2, lease.Generation)

	lease.Spec.ClassName = "m4-pro"
	assert.ErrorContains(t, strategytest.Update(t, strategy, lease, stored()), "field is immutable")
}

func TestStatusStrategy(t *testing.T) {
	strategy := NewStatusStrategy(NewStrategy(newScheme(), func(context.Context) string { return "base" }))
	lease := stored()
	lease.Spec.ClassName = "forged"
	lease.Status.Phase = rack.MacNodeLeaseReleasing
	lease.Status.HeldAt = nil
	lease.Status.ReleasedAt = lease.Status.BoundAt
	lease.Status.NodeName, lease.Status.SerialNumber, lease.Status.Instances = "forged", "forged", nil
	lease.Status.Conditions = []metav1.Condition{{Type: "Bound", Status: "True", Reason: "Bound", LastTransitionTime: *lease.Status.BoundAt}}
	want := stored().Status
	want.Phase, want.Conditions = lease.Status.Phase, lease.Status.Conditions
	require.NoError(t, strategytest.Update(t, strategy, lease, stored()))
	assert.Equal(t, want, lease.Status)
	assert.Equal(t, stored().Spec, lease.Spec)
	strategytest.KeepsMetadata(t, strategy, stored())

	for field, change := range map[string]func(*rack.MacNodeLeaseStatus){
		"status.boundAt":           func(s *rack.MacNodeLeaseStatus) { s.BoundAt = nil },
		"status.earliestReleaseAt": func(s *rack.MacNodeLeaseStatus) { s.EarliestReleaseAt = s.BoundAt },
	} {
		lease = stored()
		change(&lease.Status)
		assert.ErrorContains(t, strategytest.Update(t, strategy, lease, stored()), field, "a refusal, so that it is on record")
	}
}

func TestResetFields(t *testing.T) {
	strategy := NewStrategy(newScheme(), func(context.Context) string { return "base" })
	version := fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String())
	assert.True(t, strategy.GetResetFields()[version].Has(fieldpath.MakePathOrDie("status")))
	reset := NewStatusStrategy(strategy).GetResetFields()[version]
	assert.True(t, reset.Has(fieldpath.MakePathOrDie("status", "instances")))
	assert.False(t, reset.Has(fieldpath.MakePathOrDie("status", "earliestReleaseAt")))
}

func TestSelectableFields(t *testing.T) {
	_, set, err := GetAttrs(stored())
	require.NoError(t, err)
	strategytest.Selectors(t, newScheme(), v1alpha1.SchemeGroupVersion.WithKind("MacNodeLease"), set)
	assert.Len(t, set, 7)
	predicate := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.OneTermEqualSelector("status.phase", "Held"), GetAttrs: GetAttrs}
	match, err := predicate.Matches(stored())
	require.NoError(t, err)
	assert.True(t, match)
	_, _, err = GetAttrs(&rack.MacNode{})
	assert.ErrorContains(t, err, "is not a *rack.MacNodeLease")
}
