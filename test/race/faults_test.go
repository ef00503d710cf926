//go:build faults

package race

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Without the comparison of the other inputs only the main object is safe, and the checker must
// detect that.
func TestWithoutCompare(t *testing.T) {
	result := runRace(t, func(o *Options) { o.Attempts, o.KillEvery = 4000, 0 })
	assert.NotZero(t, result.Violations)
	found := map[string]int{}
	for _, violation := range result.First {
		found[violation.Rule]++
	}
	t.Log(found)
	for _, rule := range []string{"TwoVMsPerChassis", "Slots", "OneTenantPerChassis", "Ledger", "Index"} {
		assert.NotZero(t, found[rule], rule)
	}
}
