package slots

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
)

// vmBinary is macrack-vm, built once for the tests.
var vmBinary string

const spawnerEnv = "SLOTS_TEST_SPAWNER"

func TestMain(m *testing.M) {
	if act := os.Getenv(spawnerEnv); act != "" {
		spawnerMain(act, os.Args[1], os.Args[2], os.Args[3])
		return
	}
	dir, err := os.MkdirTemp("", "macrack-slots")
	if err != nil {
		panic(err)
	}
	vmBinary = filepath.Join(dir, "macrack-vm")
	build := exec.Command("go", "build", "-o", vmBinary, "macrack.io/macrack/cmd/vm")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// freeze stops a process and returns when none of its threads runs any more; until then it may
// respond.
func freeze(t *testing.T, pid int) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	require.Eventually(t, func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		return err == nil && !slices.ContainsFunc(tasks, func(path string) bool {
			stat, err := os.ReadFile(path)
			_, state, _ := strings.Cut(string(stat), ") ")
			return err == nil && !strings.HasPrefix(state, "T")
		})
	}, time.Minute, time.Millisecond)
}

// mac is a simulated Mac with the slots of one agent.
type mac struct {
	t       *testing.T
	dir     string
	host    sim.HostDir
	changed chan struct{}
	*Manager
	stop func()

	mu      sync.Mutex
	removed []Removed
}

// erased returns the files passed to OnErase since the last call.
func (m *mac) erased() []Removed {
	m.mu.Lock()
	defer m.mu.Unlock()
	removed := m.removed
	m.removed = nil
	return removed
}

func newMac(t *testing.T) *mac {
	t.Helper()
	m := &mac{t: t, dir: tempDir(t), host: sim.HostDir(tempDir(t))}
	require.NoError(t, m.host.Init("C02TEST", "boot-1"))
	m.open()
	t.Cleanup(func() {
		m.stop()
		for i := range rules.MaxVMsPerMac {
			if started, err := m.slot(i).ReadStarted(); err == nil && started != nil {
				_ = syscall.Kill(started.PID, syscall.SIGKILL)
			}
			waitUnlocked(t, m.slot(i))
		}
	})
	return m
}

// tempDir is like t.TempDir, but tolerates a runner that still tries to take its lock.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mac")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, 2*time.Minute, 20*time.Millisecond)
	})
	return dir
}

func (m *mac) slot(i int) contract.SlotDir {
	return contract.SlotDir(filepath.Join(m.dir, fmt.Sprint(i)))
}

func config(dir, hostDir, binary string) Config {
	return Config{
		Dir:           dir,
		Launcher:      &Process{Binary: binary, Args: []string{"--backend=sim", "--sim-host-dir=" + hostDir}},
		Clock:         clock.RealClock{},
		AnswerTimeout: 10 * time.Second,
	}
}

// open starts an agent.
func (m *mac) open(options ...func(*Config)) {
	m.t.Helper()
	m.changed = make(chan struct{}, 1)
	changed := m.changed
	c := config(m.dir, string(m.host), vmBinary)
	c.OnChange = func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	c.OnErase = func(removed []Removed) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.removed = append(m.removed, removed...)
	}
	for _, o := range options {
		o(&c)
	}
	manager, err := Open(c)
	require.NoError(m.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		manager.Run(ctx)
	}()
	m.Manager = manager
	m.stop = func() { cancel(); <-done }
}

// restart replaces the agent by a new one.
func (m *mac) restart(options ...func(*Config)) {
	m.t.Helper()
	m.stop()
	m.open(options...)
}

func (m *mac) wait(uid string, is func(Status) bool) Status {
	m.t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		s, ok := m.Find(uid)
		if ok && is(s) {
			return s
		}
		select {
		case <-m.changed:
		case <-timeout:
			require.FailNow(m.t, "timed out", "slot of %s: %+v, ended with %+v", uid, s, s.Result)
		}
	}
}

// macOf returns the MAC address of the virtual machine of an instance.
func macOf(uid string) string {
	sum := crc32.ChecksumIEEE([]byte(uid))
	return fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum))
}

func attached(s Status) bool    { return s.Phase == Attached && s.State.VM == contract.VMRunning }
func ready(s Status) bool       { return attached(s) && s.State.GuestReady && s.State.Address != nil }
func exited(s Status) bool      { return s.Phase == Exited }
func unreachable(s Status) bool { return s.Phase == Unreachable }
func prepared(s Status) bool    { return s.Phase == Prepared }

func spec(uid string) *contract.Spec {
	return &contract.Spec{
		InstanceUID: uid, Namespace: "acme", Name: "vm-" + uid, MachineID: "machine-" + uid, MACAddress: macOf(uid), Network: contract.Network{Mode: contract.NetworkNAT},
		CPU: 4, MemoryBytes: 8 << 30,
	}
}

func fill(dir contract.SlotDir) error {
	return os.WriteFile(dir.DiskPath(), []byte("disk"), 0o600)
}

func (m *mac) start(s *contract.Spec) {
	m.t.Helper()
	require.NoError(m.t, m.Prepare(s, fill))
	require.NoError(m.t, m.Launch(s.InstanceUID))
}

func (m *mac) running() int {
	m.t.Helper()
	n, err := m.host.RunningVMs()
	require.NoError(m.t, err)
	return n
}

func waitUnlocked(t *testing.T, dir contract.SlotDir) {
	t.Helper()
	require.Eventually(t, func() bool {
		lock, err := dir.TryLock()
		if err != nil {
			return false
		}
		lock.Unlock()
		return true
	}, 2*time.Minute, 20*time.Millisecond)
}

func TestVMLivesAndLeavesNothing(t *testing.T) {
	m := newMac(t)
	s := spec("a")
	s.StartupScript = "exit 0"
	m.start(s)
	status := m.wait("a", func(s Status) bool { return ready(s) && s.State.StartupScript != nil })
	assert.Equal(t, "machine-a", status.State.MachineID)
	assert.Equal(t, contract.AddressFromGuestAgent, status.State.Address.Source)
	assert.NotNil(t, status.State.StartedAt)
	assert.Equal(t, 1, m.running())
	info, err := os.Stat(m.slot(status.Slot).SocketPath())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.ErrorIs(t, m.Erase("a"), ErrNotHere, "a running VM is not erased")

	require.NoError(t, m.Stop(context.Background(), "a", 10*time.Second))
	status = m.wait("a", exited)
	assert.Equal(t, contract.ExitStopped, status.Result.Reason)
	assert.Equal(t, 0, m.running(), "stopped means that the VM is gone")
	waitUnlocked(t, m.slot(status.Slot))

	m.erased()
	require.NoError(t, m.Erase("a"))
	var paths []string
	for _, r := range m.erased() {
		paths = append(paths, strings.TrimPrefix(r.Path, fmt.Sprint(status.Slot)+"/"))
	}
	assert.Subset(t, paths, []string{"spec.json", "result.json", "started.json", "disk/disk.img", "console.log", "runner.log"})
	left, err := m.Leftovers()
	require.NoError(t, err)
	assert.Empty(t, left)
	_, found := m.Find("a")
	assert.False(t, found)
}

func TestEndings(t *testing.T) {
	tests := []struct {
		name   string
		sim    contract.Simulation
		act    func(m *mac, s Status)
		reason contract.ExitReason
		code   int
	}{
		{name: "guest ignores the request", sim: contract.Simulation{IgnoreShutdown: true}, reason: contract.ExitStoppedByForce,
			act: func(m *mac, s Status) { require.NoError(m.t, m.Stop(context.Background(), "a", time.Second)) }},
		{name: "guest hangs at boot", sim: contract.Simulation{NeverReady: true, IgnoreShutdown: true}, reason: contract.ExitKilled,
			act: func(m *mac, s Status) { require.NoError(m.t, m.Kill(context.Background(), "a")) }},
		{name: "crash", sim: contract.Simulation{CrashAfterMillis: 300}, reason: contract.ExitCrashed, code: 1,
			act: func(*mac, Status) {}},
		{name: "crash on demand", reason: contract.ExitCrashed, code: 1,
			act: func(m *mac, s Status) { m.post(s.Slot, sim.PathCrash) }},
		{name: "guest shuts itself down", reason: contract.ExitGuestShutdown,
			act: func(m *mac, s Status) { m.post(s.Slot, sim.PathDown) }},
		{name: "runner killed", reason: contract.ExitVanished,
			act: func(m *mac, s Status) { require.NoError(m.t, syscall.Kill(s.State.PID, syscall.SIGKILL)) }},
		{name: "runner told to end", reason: contract.ExitStopped,
			act: func(m *mac, s Status) { require.NoError(m.t, syscall.Kill(s.State.PID, syscall.SIGTERM)) }},
		{name: "a second stop shortens the grace", sim: contract.Simulation{IgnoreShutdown: true}, reason: contract.ExitStoppedByForce,
			act: func(m *mac, s Status) {
				require.NoError(m.t, m.Stop(context.Background(), "a", 10*time.Minute))
				require.NoError(m.t, m.Stop(context.Background(), "a", 0))
			}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := newMac(t)
			s := spec("a")
			s.Simulation = &test.sim
			m.start(s)
			test.act(m, m.wait("a", attached))
			status := m.wait("a", exited)
			assert.Equal(t, test.reason, status.Result.Reason)
			if test.code != 0 {
				require.NotNil(t, status.Result.Error)
				assert.Equal(t, test.code, status.Result.Error.Code)
			}
			assert.Equal(t, 0, m.running())
			require.ErrorContains(t, m.Relaunch("a"), "has run and cannot be restarted")
		})
	}
}

func (m *mac) post(slot int, path string) {
	m.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", m.slot(slot).SocketPath())
	}}}
	resp, err := client.Post("http://vm"+path, "", nil)
	require.NoError(m.t, err)
	_ = resp.Body.Close()
	require.Equal(m.t, http.StatusAccepted, resp.StatusCode)
}

func TestThirdVMHasNoSlot(t *testing.T) {
	m := newMac(t)
	m.start(spec("a"))
	m.start(spec("b"))
	require.ErrorIs(t, m.Prepare(spec("c"), fill), ErrNoFreeSlot)
	a, b := m.wait("a", ready), m.wait("b", ready)
	assert.NotEqual(t, a.State.Address.Value, b.State.Address.Value)
	require.ErrorIs(t, m.Prepare(spec("c"), fill), ErrNoFreeSlot)
	assert.Equal(t, 2, m.running())
	entries, err := os.ReadDir(m.dir)
	require.NoError(t, err)
	assert.Len(t, entries, rules.MaxVMsPerMac)

	// An ended VM occupies its slot until it is erased.
	require.NoError(t, m.Kill(context.Background(), "a"))
	m.wait("a", exited)
	require.ErrorIs(t, m.Prepare(spec("c"), fill), ErrNoFreeSlot)
	require.NoError(t, m.Erase("a"))
	m.start(spec("c"))
	m.wait("c", ready)
}

// The kernel has its own count: a second set of slots on the same Mac does not help.
func TestThirdVMIsRefusedByTheKernel(t *testing.T) {
	m := newMac(t)
	m.start(spec("a"))
	m.start(spec("b"))
	m.wait("a", attached)
	m.wait("b", attached)

	rogue := &mac{t: t, dir: tempDir(t), host: m.host}
	rogue.open()
	defer func() { rogue.stop() }()
	rogue.start(spec("c"))
	status := rogue.wait("c", exited)
	assert.Equal(t, contract.ExitStartFailed, status.Result.Reason)
	assert.True(t, contract.IsLimitExceeded(status.Result.Error), "%v", status.Result.Error)
	assert.Equal(t, 2, m.running())

	// A refused start may be retried, and succeeds once the kernel has room.
	require.NoError(t, m.Kill(context.Background(), "a"))
	m.wait("a", exited)
	require.NoError(t, rogue.Relaunch("c"))
	rogue.wait("c", attached)
	require.NoError(t, rogue.Kill(context.Background(), "c"))
	rogue.wait("c", exited)
}

func TestKernelLeaksUntilReboot(t *testing.T) {
	m := newMac(t)
	require.NoError(t, m.host.LeakOnStart(true))
	for _, uid := range []string{"a", "b"} {
		m.start(spec(uid))
		m.wait(uid, attached)
		require.NoError(t, m.Stop(context.Background(), uid, 10*time.Second))
		m.wait(uid, exited)
		require.NoError(t, m.Erase(uid))
	}
	require.NoError(t, m.host.LeakOnStart(false))
	assert.Equal(t, 0, m.running())
	m.start(spec("c"))
	assert.True(t, contract.IsLimitExceeded(m.wait("c", exited).Result.Error))

	require.NoError(t, m.host.Reboot("boot-2"))
	require.NoError(t, m.Relaunch("c"))
	m.wait("c", attached)
}

func TestAgentRestartAdopts(t *testing.T) {
	m := newMac(t)
	m.start(spec("a"))
	before := m.wait("a", ready)
	m.restart()
	after := m.wait("a", attached)
	assert.Equal(t, before.State.PID, after.State.PID)
	assert.Equal(t, before.State.MachineID, after.State.MachineID)
	assert.Equal(t, before.State.StartedAt, after.State.StartedAt)

	// The VM ends while no agent runs; the next agent reads the result.
	m.stop()
	require.NoError(t, syscall.Kill(after.State.PID, syscall.SIGTERM))
	waitUnlocked(t, m.slot(after.Slot))
	m.open()
	assert.Equal(t, contract.ExitStopped, m.wait("a", exited).Result.Reason)
}

func TestSilentRunner(t *testing.T) {
	m := newMac(t)
	m.start(spec("a"))
	status := m.wait("a", ready)
	impatient := func(c *Config) { c.AnswerTimeout, c.ProbeInterval = 300*time.Millisecond, 100*time.Millisecond }
	freeze(t, status.State.PID)

	m.restart(impatient)
	got := m.wait("a", unreachable)
	require.ErrorContains(t, got.Err, "does not respond")
	require.Error(t, m.Stop(context.Background(), "a", 0))
	require.ErrorIs(t, m.Erase("a"), ErrNotHere, "what may still run is not erased")
	assert.Equal(t, 1, m.running())

	require.NoError(t, syscall.Kill(status.State.PID, syscall.SIGCONT))
	m.wait("a", attached)

	// It is also noticed without a restart.
	m.post(status.Slot, sim.PathHang)
	m.wait("a", unreachable)
	m.post(status.Slot, sim.PathWake)
	m.wait("a", attached)
}

func TestRunnerOfAnotherVMIsNotAdopted(t *testing.T) {
	m := newMac(t)
	m.start(spec("a"))
	status := m.wait("a", ready)
	m.stop()
	require.NoError(t, contract.WriteJSON(m.slot(status.Slot).SpecPath(), spec("b")))
	m.open(func(c *Config) { c.AnswerTimeout = time.Second })
	got := m.wait("b", unreachable)
	assert.ErrorContains(t, got.Err, "runs instance a")
}

func TestInterruptedActs(t *testing.T) {
	t.Run("failed fill leaves the slot free and empty", func(t *testing.T) {
		m := newMac(t)
		broken := errors.New("disk full")
		require.ErrorIs(t, m.Prepare(spec("a"), func(dir contract.SlotDir) error {
			require.NoError(t, fill(dir))
			return broken
		}), broken)
		left, err := m.Leftovers()
		require.NoError(t, err)
		assert.Empty(t, left)
	})
	t.Run("disk without a spec", func(t *testing.T) {
		m := newMac(t)
		m.stop()
		require.NoError(t, os.MkdirAll(m.slot(0).DiskDir(), 0o700))
		require.NoError(t, fill(m.slot(0)))
		m.open()
		left, err := m.Leftovers()
		require.NoError(t, err)
		assert.Contains(t, left, "0/disk/disk.img")
		require.NoError(t, m.EraseFree())
		assert.Equal(t, "0/disk/disk.img", m.erased()[0].Path)
		left, err = m.Leftovers()
		require.NoError(t, err)
		assert.Empty(t, left)
		m.start(spec("a"))
		m.wait("a", attached)
	})
	t.Run("spec that was never launched", func(t *testing.T) {
		m := newMac(t)
		require.NoError(t, m.Prepare(spec("a"), fill))
		m.restart()
		m.wait("a", prepared)
		require.NoError(t, m.Launch("a"))
		m.wait("a", attached)
	})
	t.Run("unreadable spec", func(t *testing.T) {
		m := newMac(t)
		m.stop()
		require.NoError(t, os.WriteFile(m.slot(0).SpecPath(), []byte("{"), 0o600))
		m.open()
		assert.Equal(t, Corrupt, m.Statuses()[0].Phase)
	})
	t.Run("runner that cannot run", func(t *testing.T) {
		m := newMac(t)
		m.restart(func(c *Config) { c.Launcher = &Process{Binary: "/bin/false"} })
		require.NoError(t, m.Prepare(spec("a"), fill))
		require.NoError(t, m.Launch("a"))
		got := m.wait("a", func(s Status) bool { return prepared(s) && s.Err != nil })
		assert.ErrorContains(t, got.Err, "exit status 1")
	})
}

func TestTwoRunnersForOneSlot(t *testing.T) {
	m := newMac(t)
	require.NoError(t, m.Prepare(spec("a"), fill))
	launcher := m.config.Launcher
	_, err := launcher.Launch(m.slot(0))
	require.NoError(t, err)
	require.NoError(t, m.Launch("a"))
	m.wait("a", attached)
	assert.Equal(t, 1, m.running())
	ended, err := launcher.Launch(m.slot(0))
	require.NoError(t, err)
	require.NoError(t, <-ended, "the runner that finds the slot taken ends quietly")
	require.NoError(t, m.Kill(context.Background(), "a"))
	m.wait("a", exited)
	ended, err = launcher.Launch(m.slot(0))
	require.NoError(t, err)
	require.NoError(t, <-ended)
	assert.Equal(t, 0, m.running(), "a spec that has run is not run again")
}

// hungLauncher reports a failed launch, with or without a started runner.
type hungLauncher struct {
	Launcher
	starts bool
}

func (l *hungLauncher) Launch(dir contract.SlotDir) (<-chan error, error) {
	if l.starts {
		l.late(dir)
	}
	return nil, errors.New("launchctl was killed")
}

// late starts a runner without the knowledge of the slots, and returns when it holds the slot.
func (l *hungLauncher) late(dir contract.SlotDir) {
	if _, err := l.Launcher.Launch(dir); err != nil {
		panic(err)
	}
	for {
		if started, err := dir.ReadStarted(); err == nil && started != nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestRunnerOfAFailedLaunch(t *testing.T) {
	setUp := func(t *testing.T, starts bool) (*mac, *hungLauncher) {
		m := newMac(t)
		l := &hungLauncher{Launcher: m.config.Launcher, starts: starts}
		m.restart(func(c *Config) { c.Launcher = l })
		require.NoError(t, m.Prepare(spec("a"), fill))
		require.ErrorContains(t, m.Launch("a"), "launchctl was killed")
		return m, l
	}
	t.Run("before its launcher gives up", func(t *testing.T) {
		m, _ := setUp(t, true)
		status, _ := m.Find("a")
		assert.Equal(t, Attached, status.Phase)
		require.NoError(t, m.Kill(context.Background(), "a"))
		assert.Equal(t, contract.ExitKilled, m.wait("a", exited).Result.Reason)
	})
	t.Run("after it has given up", func(t *testing.T) {
		m, l := setUp(t, false)
		require.ErrorContains(t, m.wait("a", prepared).Err, "launchctl was killed")
		l.late(m.slot(0))
		require.ErrorIs(t, m.Erase("a"), contract.ErrLocked)
		status, _ := m.Find("a")
		assert.Equal(t, Attached, status.Phase)
		m.wait("a", ready)
		require.NoError(t, m.Kill(context.Background(), "a"))
		assert.Equal(t, contract.ExitKilled, m.wait("a", exited).Result.Reason)
	})
	t.Run("and has ended", func(t *testing.T) {
		m, l := setUp(t, false)
		l.late(m.slot(0))
		_, err := contract.NewClient(m.slot(0)).Kill(context.Background())
		require.NoError(t, err)
		waitUnlocked(t, m.slot(0))
		require.ErrorIs(t, m.Erase("a"), ErrNotHere, "what has run is reported before it is erased")
		assert.Equal(t, contract.ExitKilled, m.wait("a", exited).Result.Reason)
		require.NoError(t, m.Erase("a"))
	})
	t.Run("after the slot was erased", func(t *testing.T) {
		m, l := setUp(t, false)
		require.NoError(t, m.Erase("a"))
		ended, err := l.Launcher.Launch(m.slot(0))
		require.NoError(t, err)
		require.NoError(t, <-ended)
		assert.Equal(t, 0, m.running())
	})
}

func TestSocketPathTooLong(t *testing.T) {
	_, err := Open(config(filepath.Join(t.TempDir(), strings.Repeat("x", 100)), "", ""))
	require.ErrorContains(t, err, "use a shorter state directory")
}

// spawnerMain is an agent that is killed at the point named by act. It runs in its own process.
func spawnerMain(act, dir, hostDir, binary string) {
	say := func(what string) {
		fmt.Println(what)
		select {} // wait for the kill
	}
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	manager, err := Open(config(dir, hostDir, binary))
	check(err)
	if act == "filling" {
		check(manager.Prepare(spec("a"), func(dir contract.SlotDir) error {
			check(fill(dir))
			say("now")
			return nil
		}))
	}
	check(manager.Prepare(spec("a"), fill))
	if act == "prepared" {
		say("now")
	}
	check(manager.Launch("a"))
	if act == "running" {
		go manager.Run(context.Background())
		for s, _ := manager.Find("a"); s.Phase != Attached; s, _ = manager.Find("a") {
			time.Sleep(5 * time.Millisecond)
		}
	}
	say("now")
}

func TestAgentKilled(t *testing.T) {
	for _, test := range []struct {
		act   string
		phase []Phase
	}{
		{act: "filling", phase: []Phase{Free}},
		{act: "prepared", phase: []Phase{Prepared}},
		{act: "launched", phase: []Phase{Prepared, Attached}},
		{act: "running", phase: []Phase{Attached}},
	} {
		t.Run(test.act, func(t *testing.T) {
			m := newMac(t)
			m.stop()
			spawner := exec.Command(os.Args[0], m.dir, string(m.host), vmBinary)
			spawner.Env = append(os.Environ(), spawnerEnv+"="+test.act)
			out, err := spawner.StdoutPipe()
			require.NoError(t, err)
			spawner.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			require.NoError(t, spawner.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "now\n", line)
			// The whole process group is killed, as by a terminal or a service manager.
			require.NoError(t, syscall.Kill(-spawner.Process.Pid, syscall.SIGKILL))
			_ = spawner.Wait()

			m.open()
			status := m.Statuses()[0]
			require.True(t, slices.Contains(test.phase, status.Phase), "slot is %+v", status)
			switch status.Phase {
			case Free:
				m.start(spec("a"))
			case Prepared:
				require.NoError(t, m.Launch("a"))
			}
			m.wait("a", ready)
			assert.Equal(t, 1, m.running())
		})
	}
}
