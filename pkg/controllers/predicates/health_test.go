package predicates

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/registry/conditions"
)

// The API server stores the condition as it is, whatever the agent says of the Mac: a controller
// that compares them has nothing to write.
func TestMacReadyIsStoredAsItIs(t *testing.T) {
	text := "\x00\u202e" + strings.Repeat("m", 32<<10)
	for name, status := range map[string]rackv1alpha1.MacNodeStatus{
		"quarantine":                       {Quarantine: &rackv1alpha1.Quarantine{Reason: "KernelQuotaStuck", Message: text}},
		"quarantine for a reason in words": {Quarantine: &rackv1alpha1.Quarantine{Reason: "seen by an operator", Message: text}},
		"offline":                          {Conditions: []metav1.Condition{{Type: rackv1alpha1.MacNodeReady, Status: metav1.ConditionFalse, Message: text}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := MacReady(&rackv1alpha1.MacNode{Spec: rackv1alpha1.MacNodeSpec{SerialNumber: "S1"}, Status: status})
			c.LastTransitionTime = metav1.NewTime(time.Unix(1, 0))
			stored := []metav1.Condition{c}
			conditions.Fit(stored)
			assert.Equal(t, c, stored[0])
			assert.Empty(t, metav1validation.ValidateConditions(stored, field.NewPath("conditions")))
		})
	}
}
