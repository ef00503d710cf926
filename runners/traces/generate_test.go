package traces

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
