package runner_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/guesttest"
	"macrack.io/macrack/pkg/vm/runner"
	"macrack.io/macrack/pkg/vm/sim"
)

// TestMain is also the guest agent: simulated guests run this program.
func TestMain(m *testing.M) { guesttest.Main(m) }

// vm is a running VM, with the real guest agent as a process.
type vm struct {
	t      *testing.T
	dir    contract.SlotDir
	runner *contract.Client
	result chan *contract.Result
}

func start(t *testing.T, change func(*contract.Spec)) *vm {
	t.Helper()
	root, err := os.MkdirTemp("", "vm")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	host := sim.HostDir(filepath.Join(root, "host"))
	require.NoError(t, host.Init("SIM1", "boot-1"))
	dir := contract.SlotDir(filepath.Join(root, "0"))
	require.NoError(t, os.MkdirAll(dir.DiskDir(), 0o700))
	require.NoError(t, os.WriteFile(dir.DiskPath(), nil, 0o600))
	spec := &contract.Spec{
		InstanceUID: "uid-1", Namespace: "acme", Name: "one", MachineID: "id", MACAddress: "02:00:00:00:00:01", CPU: 1, MemoryBytes: 1,
		Simulation: &contract.Simulation{},
	}
	if change != nil {
		change(spec)
	}
	require.NoError(t, contract.WriteJSON(dir.SpecPath(), spec))
	backend := &sim.Backend{Host: host, Clock: clock.RealClock{}, GuestAgent: guesttest.Command(t), Network: spec.Network.Mode == contract.NetworkIsolated}
	v := &vm{t: t, dir: dir, runner: contract.NewClient(dir), result: make(chan *contract.Result, 1)}
	go func() {
		result, err := runner.Run(context.Background(), dir, backend, clock.RealClock{})
		assert.NoError(t, err)
		v.result <- result
	}()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, _ = v.runner.Kill(ctx)
		v.result <- <-v.result // it may have been taken already, and put back
	})
	return v
}

// end waits for the result.
func (v *vm) end() *contract.Result {
	v.t.Helper()
	select {
	case result := <-v.result:
		v.result <- result
		return result
	case <-time.After(time.Minute):
		require.FailNow(v.t, "the VM does not end")
		return nil
	}
}

func (v *vm) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	v.t.Cleanup(cancel)
	return ctx
}

// wait waits for a state.
func (v *vm) wait(is func(contract.State) bool) contract.State {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var last contract.State
	for ctx.Err() == nil {
		found := errors.New("found")
		err := func() (err error) {
			watching, stop := context.WithCancelCause(ctx)
			defer stop(nil)
			_ = v.runner.Watch(watching, func(s contract.State) {
				if last = s; is(s) {
					stop(found)
				}
			})
			return context.Cause(watching)
		}()
		if errors.Is(err, found) {
			return last
		}
		time.Sleep(10 * time.Millisecond)
	}
	require.FailNow(v.t, "timed out", "%+v", last)
	return last
}

func (v *vm) ready() *vm {
	v.t.Helper()
	v.wait(func(s contract.State) bool { return s.GuestReady })
	return v
}

// post injects a fault into the simulator.
func (v *vm) post(path string) {
	v.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return v.dir.Dial(ctx)
	}}}
	resp, err := client.Post("http://vm"+path, "", nil)
	require.NoError(v.t, err)
	_ = resp.Body.Close()
}

func (v *vm) guest() *guest.Client {
	v.t.Helper()
	c, err := guest.NewClient(func(ctx context.Context) (net.Conn, error) { return v.runner.Connect(ctx, guest.Port) })
	require.NoError(v.t, err)
	v.t.Cleanup(c.Close)
	return c
}

// sh runs a script in the guest and returns its output and exit code.
func (v *vm) sh(script string) (string, int) {
	v.t.Helper()
	var out bytes.Buffer
	c := v.guest()
	defer c.Close()
	code, err := c.Exec(v.ctx(), guest.Command{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	require.NoError(v.t, err)
	return out.String(), code
}

func TestExec(t *testing.T) {
	t.Setenv("MACRACK_SECRET", "of the runner")
	v := start(t, nil).ready()
	c := v.guest()
	for _, test := range []struct {
		name           string
		command        []string
		stdin          string
		stdout, stderr string
		code           int
	}{
		{name: "streams", command: []string{"sh", "-c", "echo out; echo err >&2"}, stdout: "out\n", stderr: "err\n"},
		{name: "exit code", command: []string{"sh", "-c", "exit 7"}, code: 7},
		{name: "signal", command: []string{"sh", "-c", "kill -9 $$"}, code: 137},
		{name: "stdin", command: []string{"cat"}, stdin: "to and fro", stdout: "to and fro"},
		{name: "no stdin", command: []string{"cat"}},
		{name: "stdin that is not read", command: []string{"true"}, stdin: strings.Repeat("x", 1<<20)},
		{name: "no shell in between", command: []string{"echo", "$HOME", "a b"}, stdout: "$HOME a b\n"},
		{name: "environment", command: []string{"sh", "-c", `echo "$HOME" "$(pwd)" "${MACRACK_SECRET-none}"`}, stdout: fmt.Sprintf("%s/guest/home %s/guest/home none\n", v.dir, v.dir)},
		{name: "processes left behind", command: []string{"sh", "-c", "sleep 60 & echo done"}, stdout: "done\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			command := guest.Command{Args: test.command, Stdout: &stdout, Stderr: &stderr}
			if test.stdin != "" {
				command.Stdin = strings.NewReader(test.stdin)
			}
			code, err := c.Exec(v.ctx(), command)
			require.NoError(t, err)
			assert.Equal(t, test.code, code)
			assert.Equal(t, test.stdout, stdout.String())
			assert.Equal(t, test.stderr, stderr.String())
		})
	}
	t.Run("no such command", func(t *testing.T) {
		_, err := c.Exec(v.ctx(), guest.Command{Args: []string{"no-such-command"}})
		require.ErrorContains(t, err, "executable file not found")
	})
	t.Run("no command", func(t *testing.T) {
		_, err := c.Exec(v.ctx(), guest.Command{})
		require.ErrorContains(t, err, "no command was given")
	})
	t.Run("a lot", func(t *testing.T) {
		data := make([]byte, 8<<20)
		_, _ = rand.New(rand.NewSource(1)).Read(data)
		got := sha256.New()
		code, err := c.Exec(v.ctx(), guest.Command{Args: []string{"cat"}, Stdin: bytes.NewReader(data), Stdout: got})
		require.NoError(t, err)
		assert.Equal(t, 0, code)
		want := sha256.Sum256(data)
		assert.Equal(t, want[:], got.Sum(nil))
	})
}

func TestTerminal(t *testing.T) {
	v := start(t, nil).ready()
	stdin, typed := io.Pipe()
	shown := &buffer{}
	resize := make(chan guest.Size)
	done := make(chan int, 1)
	go func() {
		code, err := v.guest().Exec(v.ctx(), guest.Command{Args: []string{"sh"}, Stdin: stdin, Stdout: shown, TTY: true, Resize: resize})
		assert.NoError(t, err)
		done <- code
	}()
	resize <- guest.Size{Columns: 101, Rows: 37}
	_, err := io.WriteString(typed, "tty; stty size; exit 5\n")
	require.NoError(t, err)
	assert.Equal(t, 5, <-done)
	assert.Contains(t, shown.String(), "/dev/pts/")
	assert.Contains(t, shown.String(), "37 101")
}

type buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// Commands of a simulated guest run on the host and are confined.
func TestConfined(t *testing.T) {
	v := start(t, nil).ready()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	outside := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, []byte("secret"), 0o644))
	for name, script := range map[string]string{
		"read a file":          "cat " + outside,
		"write a file":         "echo x >> " + outside,
		"read the VM's spec":   "cat " + v.dir.SpecPath(),
		"read other processes": fmt.Sprintf("cat /proc/%d/environ", os.Getpid()),
		"reach the host":       fmt.Sprintf("bash -c 'echo > /dev/tcp/127.0.0.1/%d'", server.Addr().(*net.TCPAddr).Port),
	} {
		t.Run(name, func(t *testing.T) {
			out, code := v.sh(script)
			assert.NotEqual(t, 0, code)
			assert.Contains(t, out, "ermission denied")
		})
	}
	out, code := v.sh("echo mine > file && cat file")
	assert.Equal(t, "mine\n", out)
	assert.Equal(t, 0, code)
}

func TestSetup(t *testing.T) {
	v := start(t, func(s *contract.Spec) {
		s.SSHAuthorizedKeys = []string{"ssh-ed25519 AAAA one", "ssh-ed25519 BBBB two"}
		s.StartupScript = "echo ran >> ran; echo hello; echo oops >&2; exit 3"
	})
	state := v.wait(func(s contract.State) bool { return s.StartupScript != nil })
	assert.EqualValues(t, 3, state.StartupScript.ExitCode)
	assert.Equal(t, "hello\noops\n", state.StartupScript.OutputTail)
	keys, _ := v.sh("cat .ssh/authorized_keys; stat -c %a .ssh .ssh/authorized_keys; ls -A")
	assert.Equal(t, "ssh-ed25519 AAAA one\nssh-ed25519 BBBB two\n700\n600\n.ssh\nran\n", keys, "nothing is left of the script")
	console, err := os.ReadFile(v.dir.ConsolePath())
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^20\S+Z hello$`, string(console))
	assert.Contains(t, string(console), "exit code 3")
	assert.NotContains(t, string(console), "echo ran", "the script is not shown")

	// The script does not run again, whichever process restarts.
	for _, path := range []string{sim.PathReboot, sim.PathGuestKill} {
		v.post(path)
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, err := v.guest().Info(ctx)
			return err == nil
		}, time.Minute, 10*time.Millisecond, "the guest agent is back")
		result, err := v.guest().Setup(v.ctx(), guest.Setup{InstanceUID: "uid-1", StartupScript: "echo ran >> ran"}, 6, func(b []byte) {
			assert.Equal(t, "oops\n", string(b), "the output continues")
		})
		require.NoError(t, err)
		assert.EqualValues(t, 3, result.ExitCode)
		ran, _ := v.sh("cat ran; sort .ssh/authorized_keys | uniq -d")
		assert.Equal(t, "ran\n", ran)
	}
}

func TestSetupInterrupted(t *testing.T) {
	v := start(t, func(s *contract.Spec) { s.StartupScript = "#!/bin/bash\necho ran >> ran\necho begun\nsleep 600" })
	v.ready()
	for out := ""; out != "ran\n"; {
		out, _ = v.sh("cat ran 2>/dev/null")
	}
	v.post(sim.PathReboot)
	state := v.wait(func(s contract.State) bool { return s.StartupScript != nil })
	assert.EqualValues(t, 255, state.StartupScript.ExitCode)
	assert.Contains(t, state.StartupScript.OutputTail, "begun\n")
	assert.Contains(t, state.StartupScript.OutputTail, "the guest was restarted while the startup script ran; the script is not repeated")
	ran, _ := v.sh("cat ran")
	assert.Equal(t, "ran\n", ran)
}

func TestAddress(t *testing.T) {
	v := start(t, nil)
	state := v.wait(func(s contract.State) bool { return s.Address != nil })
	assert.Equal(t, "192.168.64.2", state.Address.Value)
	assert.Equal(t, contract.AddressFromGuestAgent, state.Address.Source)
	assert.False(t, state.Address.ObservedAt.IsZero())
	_, err := v.runner.Stop(v.ctx(), time.Minute)
	require.NoError(t, err)
	var last contract.State
	_ = v.runner.Watch(v.ctx(), func(s contract.State) { last = s })
	assert.Nil(t, last.Address, "a VM that has stopped has none")
}

func TestStop(t *testing.T) {
	for _, test := range []struct {
		name       string
		simulation contract.Simulation
		act        func(*vm)
		want       contract.ExitReason
	}{
		{name: "guest agent", want: contract.ExitStopped, act: func(v *vm) { v.ready() }},
		{name: "guest that ignores it", simulation: contract.Simulation{IgnoreShutdown: true}, want: contract.ExitStoppedByForce, act: func(v *vm) { v.ready() }},
		{name: "no guest agent", simulation: contract.Simulation{NeverReady: true}, want: contract.ExitStoppedByForce, act: func(v *vm) {
			v.wait(func(s contract.State) bool { return s.VM == contract.VMRunning })
		}},
		{name: "hung guest", want: contract.ExitStoppedByForce, act: func(v *vm) { v.ready().post(sim.PathGuestFreeze) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v := start(t, func(s *contract.Spec) { s.Simulation = &test.simulation })
			test.act(v)
			grace := time.Minute
			if test.want == contract.ExitStoppedByForce {
				grace = time.Second
			}
			_, err := v.runner.Stop(v.ctx(), grace)
			require.NoError(t, err)
			assert.Equal(t, test.want, v.end().Reason)
		})
	}
}

func TestKillDuringShutdown(t *testing.T) {
	v := start(t, nil).ready()
	v.post(sim.PathGuestFreeze)
	_, err := v.runner.Stop(v.ctx(), contract.MaxGrace)
	require.NoError(t, err)
	_, err = v.runner.Kill(v.ctx())
	require.NoError(t, err)
	assert.Equal(t, contract.ExitKilled, v.end().Reason, "a guest that hears nothing does not hold up who pulls the plug")
}

// long runs a command that signals its start, calls act, and returns the result of the command.
func (v *vm) long(act func()) error {
	v.t.Helper()
	script := fmt.Sprintf("echo; sleep 6000 & sleep 6000; echo %s", v.dir)
	stdout, write := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := v.guest().Exec(v.ctx(), guest.Command{Args: []string{"sh", "-c", script}, Stdout: write})
		_ = write.CloseWithError(err)
		ended <- err
	}()
	_, err := stdout.Read(make([]byte, 100))
	require.NoError(v.t, err)
	act()
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Minute):
		require.FailNow(v.t, "the command is not given up")
		return nil
	}
}

// nothingRuns checks that no process of long remains.
func (v *vm) nothingRuns() {
	v.t.Helper()
	require.Eventually(v.t, func() bool { return len(processes(v.t, fmt.Sprintf("sleep 6000; echo %s", v.dir))) == 0 }, 30*time.Second, 5*time.Millisecond)
}

func TestGuestGoesAwayDuringCommand(t *testing.T) {
	t.Run("agent killed", func(t *testing.T) {
		t.Parallel()
		v := start(t, nil).ready()
		require.ErrorIs(t, v.long(func() { v.post(sim.PathGuestKill) }), guest.ErrLost)
		v.nothingRuns()
		// The guest restarts its agent.
		require.Eventually(t, func() bool {
			_, err := v.guest().Exec(v.ctx(), guest.Command{Args: []string{"true"}})
			return err == nil
		}, 30*time.Second, 20*time.Millisecond)
	})
	t.Run("VM killed", func(t *testing.T) {
		t.Parallel()
		v := start(t, nil).ready()
		require.ErrorIs(t, v.long(func() {
			_, err := v.runner.Kill(v.ctx())
			require.NoError(t, err)
		}), guest.ErrLost)
		v.nothingRuns()
	})
	t.Run("guest hangs", func(t *testing.T) {
		t.Parallel()
		v := start(t, nil).ready()
		require.ErrorIs(t, v.long(func() { v.post(sim.PathGuestFreeze) }), guest.ErrLost)
		state := v.wait(func(s contract.State) bool { return !s.GuestReady })
		assert.True(t, state.GuestSeen)
		v.post(sim.PathGuestThaw)
		v.ready()
		v.nothingRuns()
	})
}

func TestCommandEndsWithItsCaller(t *testing.T) {
	v := start(t, nil).ready()
	for i := range 20 { // whichever threads of the guest agent have to do with it
		ctx, cancel := context.WithCancel(context.Background())
		stdout, write := io.Pipe()
		ended := make(chan error, 1)
		script := fmt.Sprintf("echo; sleep 6000.%d; echo %s", i, v.dir)
		go func() {
			_, err := v.guest().Exec(ctx, guest.Command{Args: []string{"sh", "-c", script}, Stdout: write})
			_ = write.CloseWithError(err)
			ended <- err
		}()
		_, err := stdout.Read(make([]byte, 1))
		require.NoError(t, err)
		require.NotEmpty(t, processes(t, script))
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		for _, part := range []string{script, fmt.Sprintf("sleep\x006000.%d", i)} {
			require.Eventually(t, func() bool { return len(processes(t, part)) == 0 }, 30*time.Second, 5*time.Millisecond,
				"the command and its children have ended")
		}
	}
}

func TestTooManyCommands(t *testing.T) {
	v := start(t, nil).ready()
	c := v.guest()
	ctx, cancel := context.WithCancel(v.ctx())
	var running sync.WaitGroup
	for range guest.MaxCommands {
		began := make(chan struct{})
		running.Go(func() {
			_, _ = c.Exec(ctx, guest.Command{Args: []string{"sh", "-c", "echo; exec sleep 600"}, Stdout: writerFunc(sync.OnceFunc(func() { close(began) }))})
		})
		<-began
	}
	_, err := c.Exec(ctx, guest.Command{Args: []string{"true"}})
	require.ErrorContains(t, err, "already runs 32 commands")
	cancel()
	running.Wait()
	require.Eventually(t, func() bool {
		_, err := c.Exec(v.ctx(), guest.Command{Args: []string{"true"}})
		return err == nil
	}, 30*time.Second, 20*time.Millisecond)
}

type writerFunc func()

func (w writerFunc) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

func TestConnectWithoutListener(t *testing.T) {
	v := start(t, nil).ready()
	_, err := v.runner.Connect(v.ctx(), 7)
	require.ErrorContains(t, err, "port 7 of the guest: connection refused")
}

// Neither process keeps resources of a closed session.
func TestNoLeaks(t *testing.T) {
	v := start(t, nil).ready()
	session := func() {
		c := v.guest()
		defer c.Close()
		code, err := c.Exec(v.ctx(), guest.Command{Args: []string{"true"}, Stdin: strings.NewReader("x"), Stdout: io.Discard})
		assert.NoError(t, err)
		assert.Equal(t, 0, code)
	}
	count := func() (int, int, int) {
		return runtime.NumGoroutine(), descriptors(t, os.Getpid()), descriptors(t, guestAgent(t, v))
	}
	for range 20 {
		session()
	}
	goroutines, own, agents := count()
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for range 250 {
				session()
			}
		})
	}
	running.Wait()
	const slack = 10
	require.Eventually(t, func() bool {
		g, o, a := count()
		return g <= goroutines+slack && o <= own+slack && a <= agents+slack
	}, 30*time.Second, 100*time.Millisecond)
}

func descriptors(t *testing.T, pid int) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	return len(entries)
}

// guestAgent returns the process that serves the guest's socket.
func guestAgent(t *testing.T, v *vm) int {
	found := processes(t, "--listen=unix:"+string(v.dir))
	require.Len(t, found, 1)
	return found[0]
}

// processes returns the processes with a text in their command lines.
func processes(t *testing.T, text string) []int {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var found []int
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(line), text) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			require.NoError(t, err)
			found = append(found, pid)
		}
	}
	return found
}
