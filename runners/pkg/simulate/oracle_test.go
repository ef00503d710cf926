package simulate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"macrack.io/macrack/runners/pkg/floor"
)

var monday = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

// step is the length of a step in these tests; a lease has four steps at least.
const step = minimumDuration / 4

// needing returns a replay in which jobs need the given numbers of Macs, one after another.
func needing(macs []int) *replay {
	r := &replay{limits: floor.Limits{PerLease: 1}, begin: monday, end: monday.Add(time.Duration(len(macs)) * step)}
	for i, n := range macs {
		start := monday.Add(time.Duration(i) * step)
		for range n {
			r.runs = append(r.runs, run{start, start, start.Add(step)})
		}
	}
	return r
}

func TestOracle(t *testing.T) {
	for _, test := range []struct {
		name string
		macs []int
		want int // steps paid
	}{
		{"nothing", []int{0, 0, 0}, 0},
		{"a lease costs a day", []int{1, 0, 0, 0, 0}, 4},
		{"a lease costs a day at the end too", []int{0, 0, 1}, 4},
		{"a lease past its floor costs its length", []int{1, 1, 1, 1, 1, 1}, 6},
		{"an idle Mac is kept for a short gap", []int{1, 0, 0, 0, 0, 1, 0}, 6},
		{"a second lease is cheaper after a long gap", []int{1, 0, 0, 0, 0, 0, 0, 0, 1, 0}, 8},
		{"two Macs", []int{1, 2, 1, 1, 1, 1, 0}, 9},
		{"a gap, and then two Macs", []int{2, 0, 0, 0, 1, 0, 0, 2, 1}, 16},
	} {
		t.Run(test.name, func(t *testing.T) {
			assert.Equal(t, time.Duration(test.want)*step, oracle(needing(test.macs)))
			assert.Equal(t, test.want, search(test.macs, [4]int{}, map[searched]int{}))
		})
	}
}

func TestOracleIsTheBestOfAllSchedules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		macs := rapid.SliceOfN(rapid.IntRange(0, 3), 1, 14).Draw(t, "macs")
		assert.Equal(t, time.Duration(search(macs, [4]int{}, map[searched]int{}))*step, oracle(needing(macs)))
	})
}

type searched struct {
	steps  int
	leases [4]int
}

// search returns the least number of steps to pay, by trying everything: leases[i] leases are paid
// for i more steps.
func search(macs []int, leases [4]int, known map[searched]int) int {
	if len(macs) == 0 {
		return 0
	}
	key := searched{len(macs), leases}
	if cost, ok := known[key]; ok {
		return cost
	}
	best := 1 << 30
	for kept := range leases[0] + 1 {
		for created := range 4 {
			if kept+created+leases[1]+leases[2]+leases[3] < macs[0] {
				continue
			}
			next := [4]int{kept + leases[1], leases[2], leases[3], created}
			best = min(best, kept+4*created+search(macs[1:], next, known))
		}
	}
	known[key] = best
	return best
}
