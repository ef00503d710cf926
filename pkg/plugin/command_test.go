package plugin

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/plugintest"
	"macrack.io/macrack/pkg/version"
)

// Every command has a description and examples that begin with kubectl macrack.
func TestHelp(t *testing.T) {
	root := NewCommand(plugintest.New().Env)
	names := []string{}
	for _, cmd := range root.Commands() {
		names = append(names, cmd.Name())
		assert.NotEmpty(t, cmd.Short, cmd.Name())
		assert.Contains(t, cmd.Example, "  kubectl macrack "+cmd.Name(), cmd.Name())
		assert.False(t, strings.HasSuffix(cmd.Short, "."), cmd.Name())
	}
	assert.Equal(t, []string{"compliance", "cp", "leases", "rack", "run", "ssh", "ui", "usage", "version", "vnc", "why"}, names)
	out := plugintest.New().Run(t, NewCommand, "rack", "--help")
	for _, want := range []string{"kubectl macrack rack [flags]", "--namespace", "--context", "--kubeconfig", "--watch"} {
		assert.Contains(t, out, want)
	}
}

func TestVersion(t *testing.T) {
	want := "kubectl-macrack version " + version.String() + "\n"
	assert.Equal(t, want, plugintest.New().Run(t, NewCommand, "version"))
	assert.Equal(t, want, plugintest.New().Run(t, NewCommand, "--version"))
}

func TestUnknownCommand(t *testing.T) {
	assert.ErrorContains(t, plugintest.New().Try(t, NewCommand, "racks"), `unknown command "racks"`)
}

// complete returns the completions of the last argument.
func complete(t *testing.T, f *plugintest.Fixture, args ...string) []string {
	t.Helper()
	out := f.Run(t, NewCommand, append([]string{cobra.ShellCompRequestCmd}, args...)...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var found []string
	for _, line := range lines[:len(lines)-1] { // the last one is the directive
		name, _, _ := strings.Cut(line, "\t")
		found = append(found, name)
	}
	return found
}

func TestCompletion(t *testing.T) {
	objects := func() *plugintest.Fixture {
		f := plugintest.New(
			&rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "build"}},
			&rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "globex", Name: "other"}},
			&rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}},
		)
		_, err := f.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "acme"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		return f
	}
	assert.Equal(t, []string{"rack", "run"}, complete(t, objects(), "r"))
	assert.Equal(t, []string{"mnl/", "mi/", "mn/"}, complete(t, objects(), "why", ""))
	assert.Equal(t, []string{"mnl/build"}, complete(t, objects(), "why", "mnl/"))
	assert.Equal(t, []string{"mn/mac-1"}, complete(t, objects(), "why", "mn/"))
	assert.Equal(t, []string{"build"}, complete(t, objects(), "run", "--lease", ""))
	assert.Equal(t, []string{"acme"}, complete(t, objects(), "rack", "--namespace", ""))
	assert.Equal(t, []string{"24h", "7d", "30d", "90d"}, complete(t, objects(), "compliance", ""))
	assert.Equal(t, []string{"today", "7d", "30d", "month"}, complete(t, objects(), "usage", ""))
	assert.Empty(t, complete(t, objects(), "usage", "7d", ""))

	f := objects()
	f.ForbidMacRack("list", "macnodes", "*")
	assert.Empty(t, complete(t, f, "why", "mn/"), "a missing right is no error in a completion")
}

// kubectl completes the arguments of a plugin with this program.
func TestCompletionProgram(t *testing.T) {
	const file = "../../artifacts/plugin/kubectl_complete-macrack"
	script, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(script), "exec kubectl-macrack "+cobra.ShellCompRequestCmd+` "$@"`)
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&0o111, "it is executable")
}
