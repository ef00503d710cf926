package apiclient

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := Kubeconfig("", "")
	assert.ErrorContains(t, err, "--kubeconfig FILE")
	_, err = Kubeconfig(filepath.Join(t.TempDir(), "none"), "")
	assert.ErrorIs(t, err, os.ErrNotExist)

	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(`
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://a:6443"}}, {name: b, cluster: {server: "https://b:6443"}}]
contexts: [{name: a, context: {cluster: a}}, {name: b, context: {cluster: b}}]
current-context: a
`), 0o600))
	config, err := Kubeconfig(file, "b")
	require.NoError(t, err)
	assert.Equal(t, "https://b:6443", config.Host)
	t.Setenv("KUBECONFIG", file)
	config, err = Kubeconfig("", "")
	require.NoError(t, err)
	assert.Equal(t, "https://a:6443", config.Host)
}
