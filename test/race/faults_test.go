//go:build faults

package race

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Without the comparison of the other inputs only the main object is safe, and the checker must
// detect that.
func TestWithoutCompare(t *testing.T) {
	rules := []string{"TwoVMsPerChassis", "Slots", "OneTenantPerChassis", "Ledger", "Index"}
	missing := func(found map[string]int) bool {
		return slices.ContainsFunc(rules, func(rule string) bool { return found[rule] == 0 })
	}
	found := map[string]int{}
	for run := 0; run < 8 && missing(found); run++ { // which faults a run has is a matter of chance
		result := runRace(t, func(o *Options) { o.Attempts, o.KillEvery = 4000, 0 })
		assert.NotZero(t, result.Violations)
		for _, violation := range result.First {
			found[violation.Rule]++
		}
		t.Log(found)
	}
	for _, rule := range rules {
		assert.NotZero(t, found[rule], rule)
	}
}
