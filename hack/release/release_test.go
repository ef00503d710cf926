package release

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// notReleased has the programs without a binary in a release: only a Mac can link macrack-vm.
var notReleased = []string{"vm"}

func TestEveryProgramIsInAnArchive(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, ".goreleaser.yaml"))
	require.NoError(t, err)
	var config struct {
		Builds []struct {
			ID, Main, Binary string
			LDFlags          []string `json:"ldflags"`
		}
		Archives []struct{ IDs []string }
	}
	require.NoError(t, yaml.Unmarshal(data, &config))

	var archived []string
	for _, archive := range config.Archives {
		archived = append(archived, archive.IDs...)
	}
	built := map[string]bool{}
	for _, build := range config.Builds {
		folder := filepath.Base(build.Main)
		built[folder] = true
		assert.Equal(t, "macrack-"+folder, build.Binary)
		assert.Contains(t, archived, build.ID)
		for _, name := range []string{"Version=", "Commit="} {
			assert.Contains(t, strings.Join(build.LDFlags, "\n"), "-X macrack.io/macrack/pkg/version."+name, build.ID)
		}
	}
	programs, err := os.ReadDir(filepath.Join(root, "cmd"))
	require.NoError(t, err)
	for _, program := range programs {
		assert.Equal(t, !slices.Contains(notReleased, program.Name()), built[program.Name()], program.Name())
	}
}
