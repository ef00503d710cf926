// Package runners is the module of macrack-runners, a client of MacRack that runs CI jobs on leased
// Macs.
package runners

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// allowed are the packages of MacRack that a client may import.
var allowed = regexp.MustCompile(`^macrack\.io/macrack/(pkg/apis/[a-z]+/v1alpha1|pkg/generated/.+)$`)

// TestImports checks that the module is a client of MacRack and nothing else: it could move to
// another repository.
func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{range .Imports}}{{$.ImportPath}} {{.}}
{{end}}{{range .TestImports}}{{$.ImportPath}} {{.}}
{{end}}{{range .XTestImports}}{{$.ImportPath}} {{.}}
{{end}}`, "./...").Output()
	require.NoError(t, err)
	own := 0
	for line := range strings.Lines(string(out)) {
		importer, imported, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case strings.HasPrefix(imported, "macrack.io/macrack/runners/"):
			own++
		case strings.HasPrefix(imported, "macrack.io/macrack"):
			assert.Regexp(t, allowed, imported, "imported by %s", importer)
		}
	}
	assert.NotZero(t, own, "the list of imports is complete")
}

func TestModule(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	assert.Contains(t, string(mod), "\nreplace macrack.io/macrack => ../\n")
	assert.Equal(t, 1, strings.Count(string(mod), "=>"), "no other module is replaced")
}
