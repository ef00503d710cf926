// Package runners is the module of macrack-runners, a client of MacRack that runs CI jobs on leased
// Macs.
package runners

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// allowed are the packages of MacRack that a client may import.
var allowed = regexp.MustCompile(`^macrack\.io/macrack/(runners/.+|pkg/apis/[a-z]+/v1alpha1|pkg/apis/scalar|pkg/generated/.+)$`)

// TestImports checks that the module is a client of MacRack and nothing else: it could move to
// another repository. It reads the files itself, so that go test notices their changes.
func TestImports(t *testing.T) {
	checked := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if strings.HasPrefix(imported, "macrack.io/") {
				checked++
				assert.Regexp(t, allowed, imported, "imported by %s", path)
			}
		}
		return nil
	}))
	assert.NotZero(t, checked)
}

func TestModule(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	assert.Contains(t, string(mod), "\nreplace macrack.io/macrack => ../\n")
	assert.Equal(t, 1, strings.Count(string(mod), "=>"), "no other module is replaced")
}
