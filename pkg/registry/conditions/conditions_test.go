package conditions

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/registry/conditions/conditionstest"
)

var noon = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func TestSet(t *testing.T) {
	list := []metav1.Condition{{Type: "Other", Status: metav1.ConditionTrue, Reason: "Other"}}
	for i, step := range []struct {
		summary Summary
		want    []string
		turned  time.Time // when Ready did
	}{
		{Summary{metav1.ConditionFalse, Reconciling, "Waits", "a"}, []string{"Other=True Other: ", "Ready=False Waits: a", "Reconciling=True Waits: a"}, noon},
		{Summary{metav1.ConditionFalse, Reconciling, "Waits", "b"}, []string{"Other=True Other: ", "Ready=False Waits: b", "Reconciling=True Waits: b"}, noon},
		{Summary{metav1.ConditionFalse, Stalled, "Wrong", "c"}, []string{"Other=True Other: ", "Ready=False Wrong: c", "Stalled=True Wrong: c"}, noon},
		{Summary{metav1.ConditionTrue, "", "Runs", "d"}, []string{"Other=True Other: ", "Ready=True Runs: d"}, noon.Add(3 * time.Hour)},
		{Summary{metav1.ConditionTrue, "", "Runs", "d"}, []string{"Other=True Other: ", "Ready=True Runs: d"}, noon.Add(3 * time.Hour)},
	} {
		step.summary.Set(&list, noon.Add(time.Duration(i)*time.Hour))
		assert.Equal(t, step.want, conditionstest.Lines(list), "step %d", i)
		for _, c := range list {
			if c.Type == Ready {
				assert.Equal(t, step.turned, c.LastTransitionTime.Time, "step %d", i)
			}
		}
	}
}

func TestObserve(t *testing.T) {
	list := []metav1.Condition{{Type: "A", ObservedGeneration: 1}, {Type: "B"}}
	Observe(list, 7)
	assert.Equal(t, []metav1.Condition{{Type: "A", ObservedGeneration: 7}, {Type: "B", ObservedGeneration: 7}}, list)
}
