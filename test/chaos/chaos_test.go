package chaos

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestShort has a few faults of each family; `make chaos` has all.
func TestShort(t *testing.T) {
	var out strings.Builder
	err := Run(t.Context(), Options{Sizes: Short, Out: &out, Keep: t.ArtifactDir()})
	t.Log("\n" + out.String())
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	assert.Regexp(t, `^chaos: faults=(\d+) survived=(\d+)/(\d+) violations=0$`, lines[len(lines)-1])
}
