package runner_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	guestv1 "macrack.io/macrack/pkg/vm/guest/v1"
	"macrack.io/macrack/pkg/vm/runner"
	"macrack.io/macrack/test/files"
)

func variables(entries ...string) []contract.EnvironmentVariable {
	var all []contract.EnvironmentVariable
	for _, entry := range entries {
		name, value, _ := strings.Cut(entry, "=")
		all = append(all, contract.EnvironmentVariable{Name: name, Value: []byte(value)})
	}
	return all
}

func TestEnvironment(t *testing.T) {
	const secret = "s3cr3t value of the tenant"
	v := start(t, func(s *contract.Spec) {
		s.Environment = true
		s.StartupScript = `[ "$TOKEN" = "` + strings.Replace(secret, "3", `"3"`, 1) + `" ] && echo "$A|$B|$HOME" | sed "s|$PWD|home|"`
	}).ready()
	state, err := v.runner.State(v.ctx())
	require.NoError(t, err)
	assert.True(t, state.EnvironmentMissing)
	assert.Nil(t, state.StartupScript, "the script waits for its environment")

	require.NoError(t, v.runner.SetEnvironment(v.ctx(), variables("A=first", "TOKEN="+secret, "A=last", "B=two\nlines")))
	state = ptr(v.wait(func(s contract.State) bool { return s.StartupScript != nil }))
	assert.False(t, state.EnvironmentMissing)
	assert.Zero(t, state.StartupScript.ExitCode)
	assert.Equal(t, "last|two\nlines|home\n", state.StartupScript.OutputTail)

	out, _ := v.sh("echo $TOKEN$A")
	assert.Equal(t, "\n", out, "other commands do not get it")
	assert.Empty(t, files.With(t, filepath.Dir(string(v.dir)), secret), "the value is on the disk")

	// Another environment changes nothing.
	require.NoError(t, v.runner.SetEnvironment(v.ctx(), variables("A=again")))
}

func ptr[T any](v T) *T { return &v }

func TestEnvironmentIsBounded(t *testing.T) {
	v := start(t, func(s *contract.Spec) {
		s.Environment = true
		s.StartupScript = "echo ${#A}"
	})
	v.wait(func(s contract.State) bool { return s.VM == contract.VMRunning })
	for _, size := range []int{contract.MaxEnvironment, 8 * contract.MaxEnvironment} {
		err := v.runner.SetEnvironment(v.ctx(), variables("A="+strings.Repeat("s", size)))
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "ssss")
	}
	state, err := v.runner.State(v.ctx())
	require.NoError(t, err)
	assert.True(t, state.EnvironmentMissing, "a refused environment is not set")

	// Linux, which runs simulated guests, bounds one variable to 128 KiB.
	var all []contract.EnvironmentVariable
	for contract.EnvironmentSize(all)+100<<10+20 < contract.MaxEnvironment {
		all = append(all, variables(string(rune('A'+len(all)))+"="+strings.Repeat("s", 100<<10))...)
	}
	require.NoError(t, v.runner.SetEnvironment(v.ctx(), all))
	state = ptr(v.wait(func(s contract.State) bool { return s.StartupScript != nil }))
	assert.Equal(t, "102400\n", state.StartupScript.OutputTail)
}

// A guest agent from an older image ignores the environment, so it must not run the script.
func TestEnvironmentWithAnOlderGuestAgent(t *testing.T) {
	root, err := os.MkdirTemp("", "vm")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	dir := contract.SlotDir(root)
	require.NoError(t, contract.WriteJSON(dir.SpecPath(), &contract.Spec{
		InstanceUID: "uid-1", Namespace: "acme", Name: "one", MachineID: "id", MACAddress: "02:00:00:00:00:01", CPU: 1, MemoryBytes: 1,
		SSHAuthorizedKeys: []string{"ssh-rsa KEY"}, StartupScript: "true", Environment: true,
	}))
	old := &olderGuest{l: bufconn.Listen(1 << 20), end: make(chan struct{}), setups: make(chan *guestv1.SetupRequest, 1)}
	server := grpc.NewServer()
	guestv1.RegisterGuestServer(server, old)
	go func() { _ = server.Serve(old.l) }()
	defer server.Stop()
	done := make(chan error, 1)
	go func() {
		_, err := runner.Run(context.Background(), dir, old, clock.RealClock{})
		done <- err
	}()
	v := &vm{t: t, dir: dir, runner: contract.NewClient(dir)}
	v.wait(func(s contract.State) bool { return s.VM == contract.VMRunning })
	require.NoError(t, v.runner.SetEnvironment(v.ctx(), variables("TOKEN=secret")))
	state := v.wait(func(s contract.State) bool { return s.StartupScript != nil })
	assert.EqualValues(t, 255, state.StartupScript.ExitCode)
	assert.Contains(t, state.StartupScript.OutputTail, `guest agent "v0" cannot set environment variables; use an image with a newer one`)
	request := <-old.setups
	assert.Empty(t, request.GetStartupScript())
	assert.Empty(t, request.GetEnvironment())
	assert.Equal(t, []string{"ssh-rsa KEY"}, request.GetSshAuthorizedKeys())
	_, err = v.runner.Kill(v.ctx())
	require.NoError(t, err)
	require.NoError(t, <-done)
}

// olderGuest is a VM, and the guest agent in it.
type olderGuest struct {
	guestv1.UnimplementedGuestServer
	l      *bufconn.Listener
	end    chan struct{}
	setups chan *guestv1.SetupRequest
}

func (g *olderGuest) NewMachine(*contract.Spec, contract.SlotDir, *runner.Console, runner.Device) (runner.Machine, error) {
	return g, nil
}

func (g *olderGuest) Start(context.Context) error { return nil }

func (g *olderGuest) Wait() error {
	<-g.end
	return nil
}

func (g *olderGuest) Kill() error {
	close(g.end)
	return nil
}

func (g *olderGuest) Connect(ctx context.Context, _ uint32) (net.Conn, error) {
	return g.l.DialContext(ctx)
}

func (g *olderGuest) FindAddress(context.Context) *contract.Address { return nil }

func (g *olderGuest) Info(context.Context, *guestv1.InfoRequest) (*guestv1.InfoResponse, error) {
	return &guestv1.InfoResponse{Version: "v0"}, nil
}

func (g *olderGuest) Setup(request *guestv1.SetupRequest, stream guestv1.Guest_SetupServer) error {
	g.setups <- request
	return stream.Send(&guestv1.SetupResponse{Kind: &guestv1.SetupResponse_Result{Result: &guestv1.SetupResult{}}})
}

// A script may leave processes, and may fork for ever. It ends with its VM.
func TestScriptThatForksForEver(t *testing.T) {
	const forks = "while :; do sleep 1000 & sleep 0.02; done"
	for name, script := range map[string]string{
		"in the background": "(" + forks + ") & echo begun",
		"in the foreground": "echo begun; " + forks,
	} {
		t.Run(name, func(t *testing.T) {
			v := start(t, func(s *contract.Spec) { s.StartupScript = script })
			if name == "in the background" {
				state := v.wait(func(s contract.State) bool { return s.StartupScript != nil })
				assert.Zero(t, state.StartupScript.ExitCode, "its background does not keep the script from its end")
				assert.Equal(t, "begun\n", state.StartupScript.OutputTail)
			}
			home := "HOME=" + filepath.Join(string(v.dir), "guest", "home")
			require.Eventually(t, func() bool { return len(filesOfProcesses(home)) > 5 }, time.Minute, 20*time.Millisecond)
			_, code := v.sh("true")
			assert.Zero(t, code, "the guest agent still answers")
			_, err := v.runner.Stop(v.ctx(), 10*time.Second)
			require.NoError(t, err)
			assert.Equal(t, contract.ExitStopped, v.end().Reason)
			require.Eventually(t, func() bool { return len(filesOfProcesses(home)) == 0 }, 10*time.Second, 20*time.Millisecond)
		})
	}
}

// filesOfProcesses returns the environments, as files, of the processes with an entry.
func filesOfProcesses(entry string) []string {
	var found []string
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		if data, err := os.ReadFile(path); err == nil && strings.Contains("\x00"+string(data), "\x00"+entry+"\x00") {
			found = append(found, path)
		}
	}
	return found
}
