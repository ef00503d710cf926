package chart

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/build"
)

// A control plane without Nodes: what the chart makes exists, but no pod runs.
type controlPlane struct {
	*testing.T
	*cluster.Cluster
	root, kubeconfig string
}

func start(t *testing.T) *controlPlane {
	t.Helper()
	root, err := build.Root()
	require.NoError(t, err)
	require.NoError(t, build.Program(t.Context(), filepath.Join(root, ".dev/bin/helm"), "test/conformance", "helm.sh/helm/v4/cmd/helm"))
	require.NoError(t, build.Program(t.Context(), filepath.Join(root, ".dev/bin/macrack-controllers"), ".", "./cmd/controllers"))
	c, err := cluster.Start(t.Context(), cluster.Options{Progress: io.Discard})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Stop()) })
	kubeconfig, err := c.Kubeconfig(cluster.Admin)
	require.NoError(t, err)
	return &controlPlane{t, c, root, kubeconfig}
}

// helm runs helm, and returns its output.
func (c *controlPlane) helm(args ...string) (string, error) {
	c.Helper()
	cmd := exec.CommandContext(c.Context(), filepath.Join(c.root, ".dev/bin/helm"), append(args, "--namespace="+system, "--kubeconfig="+c.kubeconfig)...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+c.TempDir(), "HELM_CONFIG_HOME="+c.TempDir(), "HELM_DATA_HOME="+c.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *controlPlane) must(args ...string) string {
	c.Helper()
	out, err := c.helm(args...)
	require.NoError(c, err, "helm %s: %s", strings.Join(args, " "), out)
	return out
}

func (c *controlPlane) kubectl(args ...string) string {
	c.Helper()
	stdout, _, err := c.Kubectl(c.Context(), cluster.Admin, args...)
	require.NoError(c, err)
	return strings.TrimSpace(stdout)
}

const rack = "v1alpha1.rack.macrack.io"

func (c *controlPlane) caBundle() string {
	c.Helper()
	return c.kubectl("get", "apiservice", rack, "-o", "jsonpath={.spec.caBundle}")
}

// issueCertificates runs the pod of macrack-certificates as a process, with its ServiceAccount and
// arguments, until the APIServices have a caBundle.
func (c *controlPlane) issueCertificates() {
	c.Helper()
	token := c.kubectl("create", "token", "macrack-certificates", "--namespace="+system)
	arguments := c.kubectl("get", "deployment", "macrack-certificates", "--namespace="+system, "-o", "jsonpath={.spec.template.spec.containers[0].args[*]}")
	kubeconfig := filepath.Join(c.TempDir(), "kubeconfig")
	ca, err := os.ReadFile(filepath.Join(c.Dir(), "pki", "cluster-ca.crt"))
	require.NoError(c, err)
	require.NoError(c, os.WriteFile(kubeconfig+".ca", ca, 0o600))
	require.NoError(c, os.WriteFile(kubeconfig, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%d", certificate-authority: %s.ca}}]
users: [{name: u, user: {token: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, c.Port("kube-apiserver"), kubeconfig, token), 0o600))
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.root, ".dev/bin/macrack-controllers"), append(strings.Fields(arguments), "--kubeconfig="+kubeconfig, "--interval=1s")...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(c, cmd.Start())
	assert.Eventually(c, func() bool { return c.caBundle() != "" }, 40*time.Second, 200*time.Millisecond)
	cancel()
	_ = cmd.Wait()
	if c.Failed() {
		c.Log(log.String())
	}
}

func TestInstall(t *testing.T) {
	c := start(t)
	const name = "macrack"
	_, err := c.helm("install", name, chartDir, "--create-namespace", "--set=etcd.replicas=2")
	require.Error(t, err)

	out := c.must("install", name, chartDir, "--create-namespace")
	assert.Contains(t, out, "artifacts/catalogue")
	pods := c.kubectl("get", "deployments,statefulsets", "--namespace="+system, "-o", "name")
	for _, workload := range []string{"deployment.apps/macrack-apiserver", "deployment.apps/macrack-controllers", "deployment.apps/macrack-certificates", "statefulset.apps/macrack-etcd"} {
		assert.Contains(t, pods, workload)
	}

	c.issueCertificates()
	bundle := c.caBundle()
	secrets := c.kubectl("get", "secrets", "--namespace="+system, "-o", "name")
	for _, secret := range []string{"macrack-apiserver-tls", "macrack-serving-ca", "macrack-etcd-tls", "macrack-etcd-client-tls", "macrack-etcd-ca"} {
		assert.Contains(t, secrets, "secret/"+secret+"\n")
	}
	for account, answers := range map[string]map[string]string{
		"macrack-certificates": {"list secrets": "no", "get secrets/other": "no", "delete secrets/macrack-etcd-ca": "no", "get secrets/macrack-etcd-ca": "yes"},
		"macrack-controllers":  {"get secrets/macrack-etcd-ca": "no"},
		"macrack-apiserver":    {"get secrets/macrack-serving-ca": "no"},
	} {
		for action, want := range answers {
			args := append([]string{"auth", "can-i"}, strings.Fields(action)...)
			answer, _, _ := c.Kubectl(t.Context(), cluster.Admin, append(args, "--namespace="+system, "--as=system:serviceaccount:"+system+":"+account)...)
			assert.Equal(t, want, strings.TrimSpace(answer), "%s: %s", account, action)
		}
	}

	// The fields that the controllers and macrack-certificates write stay.
	c.kubectl("patch", "clusterrolebinding", "macrack-macs", "--type=merge", "-p", `{"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"system:node:mac-1"}]}`)
	subjects := func() string {
		return c.kubectl("get", "clusterrolebinding", "macrack-macs", "-o", "jsonpath={.subjects[*].name}")
	}
	replicas := func() string {
		return c.kubectl("get", "deployment", "macrack-controllers", "--namespace="+system, "-o", "jsonpath={.spec.replicas}")
	}
	for _, step := range []struct {
		args     []string
		replicas string
	}{
		{[]string{"upgrade", name, chartDir, "--set=controllers.replicas=3"}, "3"},
		{[]string{"upgrade", name, chartDir, "--set=controllers.replicas=4", "--server-side=false"}, "4"},
		{[]string{"rollback", name, "1"}, "2"},
	} {
		c.must(step.args...)
		assert.Equal(t, step.replicas, replicas(), step.args)
		assert.Equal(t, bundle, c.caBundle(), step.args)
		assert.Equal(t, "system:node:mac-1", subjects(), step.args)
	}
	for _, values := range []string{"etcd.replicas=1", "etcd.external.servers={https://etcd:2379}"} {
		out, err := c.helm("upgrade", name, chartDir, "--set="+values)
		assert.Error(t, err, values)
		assert.Contains(t, out, "etcd", values)
	}

	c.must("uninstall", name)
	assert.Empty(t, c.kubectl("get", "deployments,statefulsets,services,networkpolicies,serviceaccounts", "--namespace="+system, "-l", "app.kubernetes.io/part-of=macrack", "-o", "name"))
	assert.Empty(t, c.kubectl("get", "apiservice", rack, "--ignore-not-found", "-o", "name"))
	assert.NotContains(t, c.kubectl("get", "validatingadmissionpolicies,clusterroles", "-o", "name"), "macrack.io")
	c.kubectl("get", "secret", "macrack-etcd-ca", "--namespace="+system)
	assert.Equal(t, "system:node:mac-1", subjects())

	c.must("install", name, chartDir)
	c.issueCertificates()
	assert.Equal(t, bundle, c.caBundle(), "the authorities are those of before")
}

// The package has the files that the links of the folder name.
func TestPackage(t *testing.T) {
	root, err := build.Root()
	require.NoError(t, err)
	helm := filepath.Join(root, ".dev/bin/helm")
	require.NoError(t, build.Program(t.Context(), helm, "test/conformance", "helm.sh/helm/v4/cmd/helm"))
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), helm, "package", chartDir, "--destination="+dir).CombinedOutput()
	require.NoError(t, err, string(out))
	packages, err := filepath.Glob(filepath.Join(dir, "macrack-*.tgz"))
	require.NoError(t, err)
	require.Len(t, packages, 1)
	template := func(chart string) string {
		out, err := exec.CommandContext(t.Context(), helm, "template", "macrack", chart, "--namespace="+system).Output()
		require.NoError(t, err)
		return string(out)
	}
	assert.Equal(t, template(chartDir), template(packages[0]))
}
