package build

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Existing programs are used if all of them exist in the right release.
func TestFindPrograms(t *testing.T) {
	dir := t.TempDir()
	program := func(name, says string) {
		script := fmt.Sprintf("#!/bin/sh\necho '%s'\n", says)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	t.Setenv("KUBEBUILDER_ASSETS", dir)
	t.Setenv("PATH", "/bin:/usr/bin")
	program("etcd", "etcd Version: 3.6.4")
	program("kube-apiserver", "Kubernetes v1.37.0")
	program("kube-scheduler", "Kubernetes v1.37.2")
	program("kubectl", "Client Version: v1.37.1")
	assert.Nil(t, findPrograms(t.Context(), "/elsewhere"), "kube-controller-manager is missing")

	program("kube-controller-manager", "Kubernetes v1.37.2")
	found := findPrograms(t.Context(), "/elsewhere")
	require.Len(t, found, 5)
	assert.Equal(t, filepath.Join(dir, "kubectl"), found["kubectl"])

	program("kube-scheduler", "Kubernetes v1.36.2")
	assert.Nil(t, findPrograms(t.Context(), "/elsewhere"), "kube-scheduler is of another release")
}

func TestGoBuildFailure(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/broken\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() { undefinedName() }\n"), 0o644))
	err := goBuild(t.Context(), dir, os.Stderr, "broken", "-o", filepath.Join(dir, "out"), ".")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "undefined: undefinedName")

	t.Setenv("PATH", dir)
	err = goBuild(t.Context(), dir, os.Stderr, "anything", ".")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "install Go")
}
