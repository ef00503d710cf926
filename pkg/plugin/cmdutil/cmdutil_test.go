package cmdutil

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/plugin/terminal"
)

func TestExitCode(t *testing.T) {
	for _, tt := range []struct {
		err     error
		code    int
		message string
	}{
		{nil, 0, ""},
		{errors.New("wrong"), 1, "wrong"},
		{&ExitError{Code: 42}, 42, ""},
		{&ExitError{Code: 3, Err: errors.New("wrong")}, 3, "wrong"},
		{ErrInterrupted, 130, "interrupted"},
		{fmt.Errorf("failed to read: %w", context.Canceled), 130, "interrupted"},
	} {
		code, message := ExitCode(tt.err)
		assert.Equal(t, tt.code, code, tt.err)
		assert.Equal(t, tt.message, message, tt.err)
	}
}

func TestRight(t *testing.T) {
	r := Resource{Name: "Leases", Resource: "macnodeleases", Group: "rack.macrack.io", Namespaced: true}
	assert.Equal(t, "list macnodeleases in rack.macrack.io in all namespaces", r.Right("list"))
	r.Namespace = "acme"
	assert.Equal(t, "list macnodeleases in rack.macrack.io in namespace acme", r.Right("list"))
	assert.Equal(t, "get events in namespace acme", Resource{Resource: "events", Namespace: "acme", Namespaced: true}.Right("get"))
	assert.Equal(t, "get macnodes in rack.macrack.io", Resource{Resource: "macnodes", Group: "rack.macrack.io"}.Right("get"))
}

func TestOutput(t *testing.T) {
	var o Output
	require.NoError(t, o.Set("yaml"))
	var out bytes.Buffer
	require.NoError(t, o.Print(&out, map[string]int{"a": 1}))
	assert.Equal(t, "a: 1\n", out.String())
	assert.EqualError(t, o.Set("wide"), `unknown format "wide"; use json or yaml`)
}

func TestNoticeLines(t *testing.T) {
	style := terminal.Style{Width: 40}
	assert.Empty(t, NoticeLines(nil, nil, style))
	lines := NoticeLines([]string{"Macs are not shown"}, errors.New("connection\x1b[2J refused"), style)
	assert.Equal(t, []string{"", "Macs are not shown", "No answer from the server, trying again…"}, lines)
}

const kubeconfig = `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: https://127.0.0.1:1}}]
users: [{name: u, user: {token: t}}]
contexts:
- {name: acme, context: {cluster: c, user: u, namespace: acme}}
- {name: admin, context: {cluster: c, user: u}}
current-context: acme
`

// The namespace is that of kubectl: of the flag, of the context, or default.
func TestConnect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(kubeconfig), 0o600))
	t.Setenv("KUBECONFIG", file)
	for _, tt := range []struct {
		context, flag, want string
		explicit            bool
	}{
		{"", "", "acme", false},
		{"admin", "", "default", false},
		{"", "globex", "globex", true},
	} {
		env := NewEnv(genericiooptions.NewTestIOStreamsDiscard(), clocktesting.NewFakeClock(time.Time{}), os.Getenv)
		*env.Flags.Context, *env.Flags.Namespace = tt.context, tt.flag
		clients, err := env.Connect()
		require.NoError(t, err)
		assert.Equal(t, tt.want, clients.Namespace)
		assert.Equal(t, tt.explicit, clients.Explicit)
	}
}

func TestNoKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	env := NewEnv(genericiooptions.NewTestIOStreamsDiscard(), clocktesting.NewFakeClock(time.Time{}), os.Getenv)
	_, err := env.Connect()
	assert.EqualError(t, err, "no kubeconfig found; use --kubeconfig FILE, or set KUBECONFIG")
}
