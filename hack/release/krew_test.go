package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"macrack.io/macrack/test/cluster/build"
)

// The manifest has what krew requires: a semantic version, and for each platform a URL, a checksum
// and the name of the binary.
func TestKrew(t *testing.T) {
	r := &release{dir: t.TempDir(), version: "v1.2.3", url: "https://example.com/releases"}
	sum := strings.Repeat("ab", 32)
	require.NoError(t, r.writeKrew(map[string]string{
		"kubectl-macrack_1.2.3_linux_amd64.tar.gz":  sum,
		"kubectl-macrack_1.2.3_darwin_arm64.tar.gz": sum,
		"macrack-tools_1.2.3_linux_amd64.tar.gz":    sum,
	}))
	data, err := os.ReadFile(filepath.Join(r.dir, krewFile))
	require.NoError(t, err)
	var m krewManifest
	require.NoError(t, yaml.UnmarshalStrict(data, &m))
	assert.Equal(t, "krew.googlecontainertools.github.com/v1alpha2", m.APIVersion)
	assert.Equal(t, "Plugin", m.Kind)
	assert.Regexp(t, `^v\d+\.\d+\.\d+`, m.Spec.Version)
	assert.NotEmpty(t, m.Spec.ShortDescription)
	assert.Less(t, len(m.Spec.ShortDescription), 50)
	assert.Equal(t, []krewPlatform{
		{krewSelector{map[string]string{"os": "darwin", "arch": "arm64"}}, "https://example.com/releases/v1.2.3/kubectl-macrack_1.2.3_darwin_arm64.tar.gz", sum, "kubectl-macrack"},
		{krewSelector{map[string]string{"os": "linux", "arch": "amd64"}}, "https://example.com/releases/v1.2.3/kubectl-macrack_1.2.3_linux_amd64.tar.gz", sum, "kubectl-macrack"},
	}, m.Spec.Platforms)

	assert.ErrorContains(t, r.writeKrew(map[string]string{"macrack-tools_1.2.3_linux_amd64.tar.gz": sum}), "no archive of kubectl-macrack")
}

// The names of the archives have the form that the manifest is made from, and krew finds a plugin
// by the name of its binary.
func TestKrewConfig(t *testing.T) {
	root, err := build.Root()
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(root, ".goreleaser.yaml"))
	require.NoError(t, err)
	assert.Regexp(t, regexp.QuoteMeta(`name_template: "`+pluginName+`_{{ .Version }}_{{ .Os }}_{{ .Arch }}"`), string(data))
	assert.Equal(t, pluginName, build.Programs[pluginName])
	assert.Equal(t, "macrack", strings.TrimPrefix(pluginName, "kubectl-"))
}
