package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (t *T) helm(user string, args ...string) output {
	return t.command(user, "", nil, "helm", args...)
}

func helmTenant(t *T) {
	namespace := namespaceFor(t, "helm")
	chart := filepath.Join(t.world.root, "test", "conformance", "testdata", "chart")
	helm := func(args ...string) output {
		return t.helm(tenant, append(args, "--namespace="+namespace, "--timeout=100s")...)
	}
	values := "--set=image=" + t.world.values["image"]
	step := func(what string, out output) {
		require.Zero(t, out.code, "helm %s: %s", what, out)
		assert.NotContains(t, strings.ToLower(out.stderr), "warning", what)
	}
	step("install --wait", helm("install", "builds", chart, values, "--wait"))
	step("upgrade --wait", helm("upgrade", "builds", chart, values, "--set=expireAfter=96h", "--set=team=macos", "--wait"))
	step("upgrade that changes nothing", helm("upgrade", "builds", chart, values, "--set=expireAfter=96h", "--set=team=macos", "--wait"))
	step("upgrade --force-replace", helm("upgrade", "builds", chart, values, "--set=expireAfter=97h", "--force-replace", "--server-side=false", "--wait"))
	step("rollback --wait", helm("rollback", "builds", "1", "--wait"))
	lease, err := t.dynamic(tenant).Resource(leaseResource).Namespace(namespace).Get(t, "builds", metav1Get)
	require.NoError(t, err)
	assert.Equal(t, "72h", field(lease, "spec.expireAfter"), "after the rollback")
	assert.Equal(t, "ios", lease.GetLabels()["team"])
	assert.Contains(t, lease.GetFinalizers(), "macrack.io/floor")
	out := helm("uninstall", "builds")
	assert.Zero(t, out.code, "uninstall: %s", out)
	assert.Contains(t, out.String(), "rule 3 (at least 24 hours)", "uninstall warns that the lease stays until its floor")
	assert.NoError(t, t.eventually(func() error {
		lease, err := t.dynamic(tenant).Resource(leaseResource).Namespace(namespace).Get(t, "builds", metav1Get)
		if err == nil && field(lease, "status.phase") != "Held" {
			err = fmt.Errorf("the lease is %s", field(lease, "status.phase"))
		}
		return err
	}), "after uninstall the lease is Held")
}

func helmOperator(t *T) {
	chart := filepath.Join(t.world.root, "test", "conformance", "testdata", "catalogue")
	name := t.world.name()
	t.cleanup(func() { t.helm(admin, "uninstall", name, "--namespace="+t.world.namespace, "--ignore-not-found") })
	for _, args := range [][]string{
		{"install", name, chart, "--wait"},
		{"upgrade", name, chart, "--set=sku=two", "--wait"},
		{"upgrade", name, chart, "--set=sku=three", "--force-replace", "--server-side=false", "--wait"},
		{"rollback", name, "1", "--wait"},
		{"uninstall", name, "--wait", "--cascade=foreground"},
	} {
		out := t.helm(admin, append(args, "--namespace="+t.world.namespace, "--timeout=60s")...)
		require.Zero(t, out.code, "helm %s: %s", strings.Join(args, " "), out)
	}
}

// kustomizations builds the shipped kustomizations, and applies the example with the cluster's
// images.
func kustomizations(t *T) {
	for _, dir := range []string{"artifacts/example", "artifacts/example/macs", "artifacts/deploy", "artifacts/policies"} {
		out := t.command(admin, "", nil, "kustomize", "build", filepath.Join(t.world.root, dir))
		require.Zero(t, out.code, "kustomize build %s: %s", dir, out)
		assert.Empty(t, out.stderr, "kustomize build %s", dir)
		if dir == "artifacts/example" {
			continue // the cluster has its own images
		}
		applied := t.command(admin, out.stdout, nil, "kubectl", "apply", "--server-side", "--force-conflicts", "--field-manager=macrack-dev", "--dry-run=server", "-f", "-")
		assert.Zero(t, applied.code, "apply of %s: %s", dir, applied)
		assert.Empty(t, applied.stderr, "apply of %s", dir)
	}
	example := filepath.Join(t.world.cluster.Dir(), "example")
	before := t.versions()
	out := t.try(admin, "apply", "--server-side", "--force-conflicts", "--field-manager=macrack-dev", "-k", example)
	require.Zero(t, out.code, out)
	assert.Empty(t, out.stderr, "apply -k of the example")
	assert.Equal(t, before, t.versions(), "resourceVersions after the example was applied again")

	// Apply the example as a user of kubectl apply -k.
	first := t.try(admin, "apply", "-k", example)
	assert.Zero(t, first.code, first)
	second := t.try(admin, "apply", "-k", example)
	assert.Zero(t, second.code, second)
	assert.Empty(t, second.stderr, "apply -k for the second time")
	for line := range strings.Lines(second.stdout) {
		assert.Contains(t, line, "unchanged")
	}
}
