package auditrecord

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/install"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/registry/genericstrategy/strategytest"
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return scheme
}

func TestStrategy(t *testing.T) {
	strategy := NewStrategy(newScheme())
	record := &rack.AuditRecord{
		ObjectMeta:   metav1.ObjectMeta{Namespace: "acme", Name: "mine", GenerateName: "rejection-", Labels: map[string]string{"a": "b"}},
		Time:         metav1.NewMicroTime(time.Unix(1, 0)),
		Type:         rack.InstanceRejected,
		Actor:        rack.AuditActor{Username: "another-user"},
		RequestID:    "r",
		Chassis:      rack.AuditChassis{NodeName: "mac-a1"},
		Tenant:       "globex",
		Instance:     &rack.AuditReference{Namespace: "acme", Name: "Not_a.name\xff", UID: types.UID(strings.Repeat("u", 1<<18))},
		Sequence:     9,
		PreviousHash: "h",
		Hash:         "h",
		Details:      rack.AuditDetails{Layer: rack.LayerAgent, Reason: "ThirdVM", Message: strings.Repeat("ü", 1<<12), Count: 1000},
	}
	strategy.PrepareForCreate(t.Context(), record)
	assert.Equal(t, &rack.AuditRecord{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme"},
		Type:       rack.InstanceRejected,
		Chassis:    rack.AuditChassis{NodeName: "mac-a1"},
		Tenant:     "acme",
		Instance:   &rack.AuditReference{Namespace: "acme", Name: "Not_a.name\uFFFD", UID: types.UID(strings.Repeat("u", 250) + "...")},
		Details:    rack.AuditDetails{Layer: rack.LayerAgent, Reason: "ThirdVM", Message: strings.Repeat("ü", 1<<11-2) + "..."},
	}, record)
	assert.Empty(t, strategy.Validate(t.Context(), record), "whatever was refused, its refusal is on record")

	record.Type = rack.LeaseReleased
	assert.NotEmpty(t, strategy.Validate(t.Context(), record))
	assert.True(t, strategy.NamespaceScoped())
}

func TestSelectableFields(t *testing.T) {
	record := &rack.AuditRecord{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "r1"}, Type: rack.LeaseBound, Tenant: "acme", Chassis: rack.AuditChassis{SerialNumber: "C07DR00AQ6NV"},
	}
	set := SelectableFields(record)
	strategytest.Selectors(t, newScheme(), v1alpha1.SchemeGroupVersion.WithKind("AuditRecord"), set)
	assert.Len(t, set, 5)
	predicate := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.OneTermEqualSelector("chassis.serialNumber", "C07DR00AQ6NV"), GetAttrs: GetAttrs}
	match, err := predicate.Matches(record)
	require.NoError(t, err)
	assert.True(t, match)
}
