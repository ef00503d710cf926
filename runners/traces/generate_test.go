package traces

import (
	"bytes"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/simulate"
)

var update = flag.Bool("update", false, "write the traces")

func TestTracesAreThoseOfTheGenerator(t *testing.T) {
	for _, name := range Names {
		t.Run(name, func(t *testing.T) {
			var want bytes.Buffer
			require.NoError(t, simulate.WriteTrace(&want, Generate(name)))
			file := name + ".csv"
			if *update {
				require.NoError(t, os.WriteFile(file, want.Bytes(), 0o644))
			}
			got, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Equal(t, want.String(), string(got), "run go test ./traces -update")
			assert.Less(t, len(got), 300_000)
			jobs, err := simulate.ReadTrace(bytes.NewReader(got))
			require.NoError(t, err)
			assert.Equal(t, Generate(name), jobs)
		})
	}
}

// The constants of the forecast fit more than the trace that they were chosen with.
func TestOtherSeeds(t *testing.T) {
	limits := floor.Limits{Max: 8, PerLease: 2, Warm: 1, GrowAfter: time.Minute, KeepIdle: 30 * time.Minute, DecideBefore: 15 * time.Minute}
	for seed := range uint64(6) {
		results := simulate.Compare(generate("office-hours", seed+1), limits, simulate.Timing{Bind: 2 * time.Minute, Boot: time.Minute})
		rule, oracle := results[0], results[len(results)-1]
		t.Logf("seed %d: %.0f %% of the oracle, p95 wait %s", seed+1, 100*rule.ChassisDays/oracle.ChassisDays, rule.P95)
		assert.LessOrEqual(t, rule.ChassisDays, 1.17*oracle.ChassisDays, "seed %d", seed+1)
		assert.LessOrEqual(t, rule.P95, 40*time.Second, "seed %d", seed+1)
	}
}
