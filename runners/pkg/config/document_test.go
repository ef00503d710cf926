package config

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// example is an example with sets; the first group is its indentation.
var example = regexp.MustCompile("(?s)\n( *)```yaml\n *(sets:\n.*?)\n *```\n")

// The examples of the document are complete.
func TestTheExamplesOfTheDocumentAreValid(t *testing.T) {
	text, err := os.ReadFile("../../../docs/runners.md")
	require.NoError(t, err)
	sources := map[string]bool{}
	for _, match := range example.FindAllStringSubmatch(string(text), -1) {
		sets := strings.ReplaceAll(match[2], "\n"+match[1], "\n")
		config, err := Parse([]byte("apiVersion: " + APIVersion + "\nkind: " + Kind + "\n" + sets + "\n"))
		require.NoError(t, err, sets)
		for _, set := range config.Sets {
			sources[set.Name] = true
			if set.Script != nil {
				out, err := exec.CommandContext(t.Context(), "sh", "-n", "-c", set.Script.Script).CombinedOutput()
				require.NoError(t, err, "%s: %s", set.Name, out)
			}
		}
	}
	assert.Equal(t, map[string]bool{"ios": true, "gitlab": true, "buildkite": true, "jenkins": true, "xcode": true}, sources)
}
