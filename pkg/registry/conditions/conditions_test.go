package conditions

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/registry/conditions/conditionstest"

	"macrack.io/macrack/pkg/apis/rack/validation"
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

func TestFit(t *testing.T) {
	condition := func(i, message int) metav1.Condition {
		return metav1.Condition{Type: fmt.Sprintf("Type%d", i), Status: metav1.ConditionTrue, Reason: strings.Repeat("R", 1024), Message: strings.Repeat("m", message)}
	}
	list := []metav1.Condition{condition(0, 100<<10), condition(1, 100<<10), condition(2, 100), condition(3, 100<<10)}
	list[3].Message = strings.Repeat("\u202e", 32<<10)
	Fit(list)
	size := 0
	for i := range list {
		size += list[i].Size()
	}
	assert.LessOrEqual(t, size, validation.MaxConditionsSize)
	assert.Greater(t, size, validation.MaxConditionsSize-64, "no more is cut than must be")
	assert.Len(t, list[2].Message, 100, "short messages stay")
	assert.InDelta(t, len(list[0].Message), len(list[3].Message), 8)
	again := slices.Clone(list)
	Fit(again)
	assert.Equal(t, list, again)

	var many []metav1.Condition
	for i := range 40 {
		many = append(many, condition(i, 32<<10))
	}
	Fit(many)
	for _, c := range many {
		assert.Less(t, len(c.Message), 2<<10)
	}
	Fit(nil)
}
