package cluster_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"macrack.io/macrack/test/cluster/build"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/test/cluster"
)

// The whole product: a tenant leases a Mac and runs a virtual machine on it, undisturbed by a crash
// of a replica of the API server.
func TestProduct(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute) // the first run on a machine builds Kubernetes
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Options{Apiservers: 2, Controllers: 1, Macs: 1, Example: true, Progress: testWriter{t}})
	require.NoError(t, err)
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			assert.NoError(t, c.Stop())
		}
	})
	root, err := build.Root()
	require.NoError(t, err)
	programs, err := filepath.Glob(filepath.Join(root, ".dev/bin/macrack-*"))
	require.NoError(t, err)
	require.Len(t, programs, 6)
	for _, program := range programs {
		out, err := exec.CommandContext(ctx, program, "--version").CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Regexp(t, "^"+filepath.Base(program)+` version v\S+ \(commit [0-9a-f]{40}(-dirty)?\)\n$`, string(out))
	}

	get := func(user string, args ...string) string {
		t.Helper()
		stdout, _, err := c.Kubectl(ctx, user, append([]string{"get", "-n", "acme"}, args...)...)
		require.NoError(t, err)
		return stdout
	}
	apply := func(user, manifest string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "manifest.yaml")
		require.NoError(t, os.WriteFile(file, []byte(manifest), 0o600))
		_, _, err := c.Kubectl(ctx, user, "apply", "-n", "acme", "-f", file)
		require.NoError(t, err)
	}
	wait := func(resource, condition string) {
		t.Helper()
		_, _, err := c.Kubectl(ctx, cluster.Admin, "wait", "-n", "acme", resource, "--for="+condition, "--timeout=2m")
		require.NoError(t, err)
	}

	apply("acme", `
apiVersion: rack.macrack.io/v1alpha1
kind: MacNodeLease
metadata: {name: build}
spec: {className: base}
`)
	wait("macnodelease.rack.macrack.io/build", "jsonpath={.status.phase}=Bound")
	wait("macosimage.image.macrack.io/macos-26-xcode-26", "jsonpath={.status.phase}=Ready")
	apply("acme", `
apiVersion: instance.macrack.io/v1alpha1
kind: MacOSInstance
metadata: {name: vm}
spec: {leaseName: build, className: small, imageName: macos-26-xcode-26}
`)
	wait("macosinstance.instance.macrack.io/vm", "jsonpath={.status.phase}=Running")

	for _, replica := range []string{"macrack-apiserver-1", "macrack-apiserver-2"} {
		require.NoError(t, c.Kill(ctx, replica))
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			stdout, _, err := c.Kubectl(ctx, "acme", "get", "-n", "acme", "leases.rack.macrack.io", "-o", "name")
			assert.NoError(t, err)
			assert.Equal(t, "macnodelease.rack.macrack.io/build\n", stdout)
		}, 2*time.Minute, 500*time.Millisecond, "the other replica serves")
		require.NoError(t, c.Restart(ctx, replica))
	}

	// In the user's kubeconfig, `leases` are Kubernetes' own through kube-apiserver, and MacRack's
	// directly at macrack-apiserver.
	kubeconfig := filepath.Join(c.Dir(), "kubeconfig")
	kubectl := func(context string) string {
		t.Helper()
		out, err := exec.CommandContext(ctx, filepath.Join(c.Bin(), "kubectl"), "--kubeconfig", kubeconfig, "--cache-dir", t.TempDir(),
			"--context", context, "get", "leases", "-o", "name").CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	assert.Equal(t, "macnodelease.rack.macrack.io/build\n", kubectl("direct-acme"))
	assert.Empty(t, kubectl("direct-globex"))

	// A restart of the agent leaves the virtual machine running.
	started := get("acme", "macosinstance.instance.macrack.io/vm", "-o", "jsonpath={.status.startedAt}")
	require.NotEmpty(t, started)
	require.NoError(t, c.Kill(ctx, "mac-1"))
	require.NoError(t, c.Restart(ctx, "mac-1"))
	assert.Equal(t, started+" Running", get("acme", "macosinstance.instance.macrack.io/vm", "-o", "jsonpath={.status.startedAt} {.status.phase}"))

	dir := c.Dir()
	require.NoError(t, c.Stop())
	stopped = true
	processes, err := exec.CommandContext(ctx, "ps", "-axww", "-o", "args=").Output()
	require.NoError(t, err)
	assert.NotContains(t, strings.ReplaceAll(string(processes), "\n", " "), dir, "a process was left behind")
}
