package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/test/cluster/build"
)

const (
	image = "macos-26-xcode-26"
	class = "small"
)

// leaseMac leases a Mac for acme, once for all tests.
func leaseMac(t *testing.T) {
	t.Helper()
	manifest := `
apiVersion: rack.macrack.io/v1alpha1
kind: MacNodeLease
metadata: {name: build}
spec: {className: base}
`
	_, _, err := tb.KubectlInput(t.Context(), manifest, acme, "apply", "-f", "-")
	require.NoError(t, err)
	_, _, err = tb.Kubectl(t.Context(), acme, "wait", "--for=condition=Ready", "mnl/build", "--timeout="+patience.String())
	require.NoError(t, err)
}

// instances returns the instances of acme.
func instances(t require.TestingT) []string {
	client, err := tb.Clientset(admin)
	require.NoError(t, err)
	list, err := client.InstanceV1alpha1().MacOSInstances(acme).List(context.Background(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, i := range list.Items {
		names = append(names, i.Name)
	}
	return names
}

// noInstances waits until the slots are free.
func noInstances(t *testing.T) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Empty(c, instances(c)) }, patience, 200*time.Millisecond)
}

func TestRack(t *testing.T) {
	leaseMac(t)
	operator := succeeds(t, admin, "rack")
	assert.Contains(t, operator, "site lab, rack r1\n")
	assert.Contains(t, operator, "acme/build")
	assert.Contains(t, operator, "○ Available")

	tenant := succeeds(t, acme, "rack")
	assert.Contains(t, tenant, "1 Mac: 1 Bound\n")
	assert.Contains(t, tenant, "Macs are not shown: you may not list macnodes in rack.macrack.io\n")
	assert.NotContains(t, tenant, "mac-3")

	var data struct {
		Macs []struct{ Name, Phase string }
	}
	require.NoError(t, json.Unmarshal([]byte(piped(t, admin, "rack", "-o", "json").stdout), &data))
	assert.Len(t, data.Macs, 3)

	s := start(t, admin, "rack")
	assert.Zero(t, s.wait())
	assert.Contains(t, s.output(), "\x1b[36m", "colours in a terminal")
	cmd := plugin(t.Context(), admin, "rack")
	cmd.Env = append(cmd.Env, "NO_COLOR=1")
	plain, err := cmd.Output()
	require.NoError(t, err)
	assert.NotContains(t, string(plain), "\x1b")
}

// rack -w follows changes in place, and ends with Ctrl-C.
func TestWatch(t *testing.T) {
	leaseMac(t)
	t.Cleanup(func() {
		_, _, err := tb.Kubectl(context.Background(), acme, "delete", "mi", "--all")
		assert.NoError(t, err)
	})
	for _, user := range []string{admin, acme} {
		s := start(t, user, "rack", "-w")
		s.waitFor("\x1b[?1049h")
		s.waitFor("acme/build")
		_, _, err := tb.KubectlInput(t.Context(), fmt.Sprintf(`
apiVersion: instance.macrack.io/v1alpha1
kind: MacOSInstance
metadata: {name: by-%s}
spec: {leaseName: build, className: %s, imageName: %s}
`, user, class, image), acme, "create", "-f", "-")
		require.NoError(t, err)
		s.waitFor("[by-" + user)
		assert.NotContains(t, s.output(), "\x1b[2J", "the screen is never empty")
		s.send(ctrlC)
		assert.Zero(t, s.wait())
		assert.Contains(t, s.output(), "\x1b[?1049l", "the terminal is restored")
		_, _, err = tb.Kubectl(t.Context(), acme, "delete", "mi", "--all")
		require.NoError(t, err)
	}
	noInstances(t)
}

func TestLeases(t *testing.T) {
	leaseMac(t)
	assert.Contains(t, succeeds(t, acme, "leases"), "build ")
	assert.Contains(t, succeeds(t, admin, "leases", "-A"), "acme/build ")
	assert.Contains(t, succeeds(t, acme, "leases", "-A"), "Leases of other namespaces are not shown")
	other := succeeds(t, acme, "leases", "-n", "globex")
	assert.Equal(t, "Leases are not shown: you may not list macnodeleases in rack.macrack.io in\nnamespace globex\n", other)
	s := start(t, acme, "leases", "-w")
	s.waitFor("build ")
	s.send(ctrlC)
	assert.Zero(t, s.wait())
}

func TestWhy(t *testing.T) {
	leaseMac(t)
	tenant := piped(t, acme, "why", "mnl/build")
	assert.Zero(t, tenant.code, tenant.stderr)
	assert.Contains(t, tenant.stdout, "Lease acme/build is Bound.\nNo condition blocks it.\n")
	assert.Contains(t, tenant.stdout, "LeaseBound by\n")
	assert.Contains(t, tenant.stdout, "Last Events:\n")
	operator := piped(t, admin, "why", "mn/mac-1")
	assert.Zero(t, operator.code, operator.stderr)
	assert.Contains(t, operator.stdout, "Mac mac-1 is ")
	refused := piped(t, acme, "why", "mn/mac-1")
	assert.Equal(t, 1, refused.code)
	assert.Equal(t, "Error: Macs are not shown: you may not get macnodes in rack.macrack.io; ask an administrator for the right\n", refused.stderr)
}

func TestCompliance(t *testing.T) {
	leaseMac(t)
	assert.Contains(t, succeeds(t, admin, "compliance"), "Compliant")
	assert.Contains(t, succeeds(t, admin, "compliance", "7d"), "rule 3 (at least 24 hours)   0 releases before the floor\n")
	refused := piped(t, acme, "compliance")
	assert.Equal(t, 1, refused.code)
	assert.Contains(t, refused.stderr, "Compliance reports are not shown: you may not list compliancereports")
}

func TestUsage(t *testing.T) {
	leaseMac(t)
	// A report can be based on records that were read before the lease.
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Regexp(c, `(?m)^base .* 1 +1 +1 +0h`, piped(t, acme, "usage", "month").stdout)
	}, patience, time.Second)
	assert.Regexp(t, `(?m)^month +1 +1 +1 +0h`, succeeds(t, acme, "usage"))
	assert.Regexp(t, `(?m)^build +SIM\d+ .* running +1 +0h00m$`, succeeds(t, acme, "usage", "month", "--leases"))
	assert.Regexp(t, `(?m)^acme +base `, succeeds(t, admin, "usage", "month", "-A"))
	assert.Contains(t, piped(t, acme, "usage", "month", "-o", "yaml").stdout, "kind: UsageReport\n")
	refused := piped(t, acme, "usage", "-A")
	assert.Equal(t, 1, refused.code)
	assert.Contains(t, refused.stderr, "you may not list usagereports in rack.macrack.io in all namespaces")
	for _, args := range [][]string{{"usage", "7x"}, {"usage", "7x", "-A"}} {
		assert.Contains(t, piped(t, admin, args...).stderr, `"7x" not found`)
	}
	s := start(t, admin, "usage", "today", "-A")
	assert.Zero(t, s.wait())
	assert.Contains(t, s.output(), "\x1b[1mtotal", "colours in a terminal")
}

func runArgs(args ...string) []string {
	return append([]string{"run", "--image", image, "--class", class}, args...)
}

// run has the output and the exit code of its command, and deletes its instance.
func TestRun(t *testing.T) {
	leaseMac(t)
	out := piped(t, acme, runArgs("--", "sh", "-c", "echo from the guest; echo problem >&2; exit 42")...)
	assert.Equal(t, 42, out.code, out.stderr)
	assert.Equal(t, "from the guest\n", out.stdout)
	assert.Contains(t, out.stderr, "problem\n")
	assert.Contains(t, out.stderr, "Using lease build\n")
	noInstances(t)
}

func TestRunInATerminal(t *testing.T) {
	leaseMac(t)
	s := start(t, acme, runArgs("--lease", "build", "-it", "--", "sh")...)
	s.waitFor("is ready after")
	s.send("stty size; echo $((6*7)); exit 3\n")
	assert.Equal(t, 3, s.wait(), s.output())
	assert.Contains(t, s.output(), "40 80", "the size of the terminal")
	assert.Contains(t, s.output(), "42")
	noInstances(t)
}

// Ctrl-C ends the command, and the instance does not stay.
func TestInterruptedRun(t *testing.T) {
	leaseMac(t)
	s := start(t, acme, runArgs("--", "sh", "-c", "echo started; sleep 1000")...)
	s.waitFor("started")
	s.send(ctrlC)
	assert.Equal(t, 130, s.wait(), s.output())
	assert.Contains(t, s.output(), " deleted")
	noInstances(t)
}

// The instance of a killed plugin ends at its deadline.
func TestKilledRun(t *testing.T) {
	leaseMac(t)
	s := start(t, acme, runArgs("--deadline", "5s", "--", "sh", "-c", "echo started; sleep 1000")...)
	s.waitFor("started")
	require.NoError(t, s.cmd.Process.Kill())
	s.wait()
	client, err := tb.Clientset(admin)
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		list, err := client.InstanceV1alpha1().MacOSInstances(acme).List(t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		require.Len(c, list.Items, 1)
		assert.Equal(c, instancev1alpha1.MacOSInstanceFailed, list.Items[0].Status.Phase)
	}, patience, 200*time.Millisecond)
	tb.Advance(10 * time.Minute)
	noInstances(t)
}

// A user who answers no leases no Mac. The answer yes leases one, and the lease deletes itself.
func TestRunWithANewLease(t *testing.T) {
	leases := func() int {
		client, err := tb.Clientset(admin)
		require.NoError(t, err)
		list, err := client.RackV1alpha1().MacNodeLeases("globex").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return len(list.Items)
	}
	impossible := piped(t, "globex", runArgs("--", "true")...)
	assert.Equal(t, 1, impossible.code)
	assert.Contains(t, impossible.stderr, "the RackConfig has no defaultClassName")
	assert.NotContains(t, impossible.stderr, "confirm", "a lease that would be refused needs no confirmation")
	refused := piped(t, "globex", runArgs("--node-class", "base", "--", "true")...)
	assert.Equal(t, 1, refused.code)
	assert.Contains(t, refused.stderr, "confirm the new lease with --yes")
	s := start(t, "globex", runArgs("--node-class", "base", "--", "true")...)
	s.waitFor("is billed for all of them")
	s.waitFor("Lease a Mac? [y/N] ")
	s.send("n\n")
	assert.Equal(t, 1, s.wait(), s.output())
	assert.Zero(t, leases())

	s = start(t, "globex", runArgs("--node-class", "base", "--", "echo", "it runs")...)
	s.waitFor("[y/N] ")
	s.send("y\n")
	assert.Zero(t, s.wait(), s.output())
	assert.Contains(t, s.output(), "it runs")
	assert.Contains(t, s.output(), "keeps its Mac until")
	assert.Equal(t, 1, leases())
}

// Simulated guests have no host keys, so ssh is refused before it is run.
func TestSSH(t *testing.T) {
	leaseMac(t)
	_, _, err := tb.KubectlInput(t.Context(), fmt.Sprintf(`
apiVersion: instance.macrack.io/v1alpha1
kind: MacOSInstance
metadata: {name: one}
spec: {leaseName: build, className: %s, imageName: %s}
`, class, image), acme, "create", "-f", "-")
	require.NoError(t, err)
	early := piped(t, acme, "ssh", "mi/one")
	assert.Equal(t, 1, early.code)
	_, _, err = tb.Kubectl(t.Context(), acme, "wait", "--for=condition=Ready", "mi/one", "--timeout="+patience.String())
	require.NoError(t, err)
	for _, args := range [][]string{{"ssh", "mi/one"}, {"cp", "mi/one:x", "x"}} {
		out := piped(t, acme, args...)
		assert.Equal(t, 1, out.code)
		assert.Contains(t, out.stderr, "the guest agent reports no SSH host keys")
	}
	_, _, err = tb.Kubectl(t.Context(), acme, "delete", "mi/one")
	require.NoError(t, err)
	noInstances(t)
}

// kubectl finds the plugin and its completions.
func TestKubectl(t *testing.T) {
	leaseMac(t)
	root, err := build.Root()
	require.NoError(t, err)
	path := "PATH=" + filepath.Dir(binary) + ":" + filepath.Join(root, "artifacts", "plugin") + ":/usr/bin:/bin"
	kubectl := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(binary), "kubectl"), args...)
		cmd.Env = []string{path, "KUBECONFIG=" + tb.Kubeconfig, "HOME=" + t.TempDir()}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	assert.True(t, strings.HasPrefix(kubectl("macrack", "version"), "kubectl-macrack version v"))
	assert.Contains(t, kubectl("macrack", "leases", "--context", acme), "build ")
	assert.Contains(t, kubectl("__complete", "macrack", "why", "--context", acme, "mnl/"), "mnl/build\n")
}

// A picture names the problem while the server does not answer. Then the command ends with an
// error. This test is the last one, because it stops kube-apiserver.
func TestServerGone(t *testing.T) {
	s := start(t, admin, "rack", "-w")
	s.waitFor("mac-1")
	require.NoError(t, tb.Cluster.Kill(t.Context(), "kube-apiserver"))
	t.Cleanup(func() { assert.NoError(t, tb.Cluster.Restart(context.Background(), "kube-apiserver")) })
	s.waitFor("No answer from the server, trying again")
	assert.Equal(t, 1, s.wait())
	assert.Contains(t, s.output(), "\x1b[?1049l")
	assert.Contains(t, s.output(), "Error: the server has not answered for 30s")
}
