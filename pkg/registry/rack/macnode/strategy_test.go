package macnode

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/install"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/registry/genericstrategy/strategytest"
	"macrack.io/macrack/pkg/registry/values"
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return scheme
}

func stored() *rack.MacNode {
	at := metav1.NewTime(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	return &rack.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: "mac-a1", UID: "u1", ResourceVersion: "1", Generation: 1, Labels: map[string]string{"a": "b"}},
		Spec:       rack.MacNodeSpec{SerialNumber: "C07DR00AQ6NV", ClassName: "m4"},
		Status: rack.MacNodeStatus{
			Phase: rack.MacNodeReleasing, LeaseRef: &rack.LeaseReference{Namespace: "acme", Name: "ci", UID: "u2"},
			EarliestReleaseAt: &at, ReleasingSince: &at, RunningVMs: 1,
		},
	}
}

func TestStrategy(t *testing.T) {
	strategy := NewStrategy(newScheme())
	node := stored()
	node.ResourceVersion, node.Generation = "", 7
	require.NoError(t, strategytest.Create(t, strategy, node))
	assert.Equal(t, rack.MacNodeStatus{Phase: rack.MacNodePending}, node.Status, "a new Mac has no lease")
	assert.EqualValues(t, 1, node.Generation)

	node = stored()
	node.Spec.Maintenance = true
	node.Status = rack.MacNodeStatus{}
	require.NoError(t, strategytest.Update(t, strategy, node, stored()))
	assert.Equal(t, stored().Status, node.Status)
	assert.EqualValues(t, 2, node.Generation)

	node.Spec.SerialNumber = "C07DR00AQ6NW"
	assert.ErrorContains(t, strategytest.Update(t, strategy, node, stored()), "field is immutable")
}

func TestStatusStrategy(t *testing.T) {
	strategy := NewStatusStrategy(NewStrategy(newScheme()))
	node := stored()
	node.Spec.Maintenance = true
	node.Status = rack.MacNodeStatus{
		Phase: rack.MacNodeAvailable, RunningVMs: 2, BootID: "b1",
		Quarantine: &rack.Quarantine{Reason: "KernelQuotaStuck", Since: metav1.NewTime(time.Unix(1, 0))},
		Hardware:   &rack.MacNodeHardware{CPU: scalar.MustParse("10")},
	}
	want := stored().Status
	want.BootID, want.Quarantine, want.Hardware = node.Status.BootID, node.Status.Quarantine, node.Status.Hardware
	require.NoError(t, strategytest.Update(t, strategy, node, stored()))
	assert.Equal(t, want, node.Status, "what the server keeps stays, what the agent reports is taken")
	assert.False(t, node.Spec.Maintenance)
	assert.EqualValues(t, 1, node.Generation)
	strategytest.KeepsMetadata(t, strategy, stored())
}

// TestReportFits checks that oversized messages of a registry or a guest do not prevent an agent
// from reporting.
func TestReportFits(t *testing.T) {
	strategy := NewStatusStrategy(NewStrategy(newScheme()))
	node := stored()
	text := "\x00\u202e" + strings.Repeat("m", 1<<20)
	node.Status.ImageChecks = []rack.ImageCheck{{Name: "macos-26", ObservedGeneration: 1, Reason: "Malformed", Message: text}}
	node.Status.Quarantine = &rack.Quarantine{Reason: "KernelQuotaStuck", Message: text, Since: metav1.NewTime(time.Unix(1, 0))}
	node.Status.Conditions = []metav1.Condition{{Type: "Scrubbed", Status: metav1.ConditionFalse, Reason: "ScrubFailed", Message: text, LastTransitionTime: metav1.NewTime(time.Unix(1, 0))}}
	node.Status.Scrub = &rack.ScrubReport{LeaseUID: "u2", FinishedAt: metav1.NewTime(time.Unix(1, 0)), Remaining: []string{text}}
	require.NoError(t, strategytest.Update(t, strategy, node, stored()))
	assert.Empty(t, values.Check(node), "it can be stored")
}

func TestResetFields(t *testing.T) {
	strategy := NewStrategy(newScheme())
	version := fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String())
	assert.True(t, strategy.GetResetFields()[version].Has(fieldpath.MakePathOrDie("status")))
	reset := NewStatusStrategy(strategy).GetResetFields()[version]
	assert.True(t, reset.Has(fieldpath.MakePathOrDie("spec")))
	assert.True(t, reset.Has(fieldpath.MakePathOrDie("status", "leaseRef")))
	assert.False(t, reset.Has(fieldpath.MakePathOrDie("status", "hardware")))
}

func TestSelectableFields(t *testing.T) {
	labels, set, err := GetAttrs(stored())
	require.NoError(t, err)
	assert.Equal(t, "b", labels["a"])
	strategytest.Selectors(t, newScheme(), v1alpha1.SchemeGroupVersion.WithKind("MacNode"), set)
	assert.Len(t, set, 4)
	predicate := storage.SelectionPredicate{Label: labels.AsSelector(), Field: set.AsSelector(), GetAttrs: GetAttrs}
	match, err := predicate.Matches(stored())
	require.NoError(t, err)
	assert.True(t, match)
	_, _, err = GetAttrs(&rack.MacNodeLease{})
	assert.ErrorContains(t, err, "is not a *rack.MacNode")
}
