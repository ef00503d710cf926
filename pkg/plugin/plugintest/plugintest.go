// Package plugintest runs commands of kubectl macrack against fake clients, and compares their
// output with files.
package plugintest

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	macrackfake "macrack.io/macrack/pkg/generated/clientset/versioned/fake"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/terminal"
)

var update = flag.Bool("update", false, "write the expected output")

// Now is the time of the fake clock.
var Now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// At returns the time some hours from [Now].
func At(hours float64) *metav1.Time {
	t := metav1.NewTime(Now.Add(time.Duration(hours * float64(time.Hour))))
	return &t
}

// A Fixture is the environment of commands under test. The current namespace is acme.
type Fixture struct {
	*cmdutil.Env
	MacRack *macrackfake.Clientset
	Kube    *kubefake.Clientset
	Clock   *clocktesting.FakeClock
	// Clients are what Connect returns.
	Clients     *cmdutil.Clients
	Input       *bytes.Buffer
	Out, ErrOut *Buffer
	// Vars are the environment variables.
	Vars map[string]string
}

// New returns a fixture with objects of MacRack.
func New(objects ...runtime.Object) *Fixture {
	f := &Fixture{
		MacRack: macrackfake.NewSimpleClientset(objects...), Kube: kubefake.NewClientset(),
		Clock: clocktesting.NewFakeClock(Now), Input: &bytes.Buffer{}, Out: &Buffer{}, ErrOut: &Buffer{}, Vars: map[string]string{},
	}
	streams := genericiooptions.IOStreams{In: f.Input, Out: f.Out, ErrOut: f.ErrOut}
	f.Env = cmdutil.NewEnv(streams, f.Clock, func(name string) string { return f.Vars[name] })
	f.Clients = &cmdutil.Clients{MacRack: f.MacRack, Kube: f.Kube, Namespace: "acme"}
	f.Connect = func() (*cmdutil.Clients, error) { return f.Clients, nil }
	return f
}

// Run runs a command, which must succeed, and returns its standard output.
func (f *Fixture) Run(t *testing.T, command func(*cmdutil.Env) *cobra.Command, args ...string) string {
	t.Helper()
	require.NoError(t, f.Try(t, command, args...), f.ErrOut)
	return f.Out.String()
}

// Try runs a command.
func (f *Fixture) Try(t *testing.T, command func(*cmdutil.Env) *cobra.Command, args ...string) error {
	t.Helper()
	cmd := command(f.Env)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{}, args...)) // cobra uses the arguments of the test instead of nil
	return cmd.ExecuteContext(t.Context())
}

// ForbidMacRack makes MacRack refuse a verb on a resource in a namespace; "*" means any.
func (f *Fixture) ForbidMacRack(verb, resource, namespace string) {
	f.MacRack.PrependReactor(verb, resource, forbid(namespace))
}

// ForbidKube is ForbidMacRack for the resources of Kubernetes.
func (f *Fixture) ForbidKube(verb, resource, namespace string) {
	f.Kube.PrependReactor(verb, resource, forbid(namespace))
}

func forbid(namespace string) clienttesting.ReactionFunc {
	return func(action clienttesting.Action) (bool, runtime.Object, error) {
		if namespace != "*" && action.GetNamespace() != namespace {
			return false, nil, nil
		}
		r := action.GetResource()
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: r.Group, Resource: r.Resource}, "", nil)
	}
}

// Golden compares output with the file testdata/name.txt. All lines must fit in width columns.
func Golden(t *testing.T, name, got string, width int) {
	t.Helper()
	for _, line := range strings.Split(got, "\n") {
		assert.LessOrEqual(t, terminal.Width(line), width, line)
		assert.Equal(t, terminal.Clean(line), line, "a control character")
	}
	file := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run go test with -update")
	assert.Equal(t, string(want), got)
}
