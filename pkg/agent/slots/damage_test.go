package slots

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/vm/contract"
)

// phase waits until slot 0 has one of the phases, and returns its status.
func (m *mac) phase(phases ...Phase) Status {
	m.t.Helper()
	var s Status
	require.Eventually(m.t, func() bool {
		s = m.Statuses()[0]
		for _, p := range phases {
			if s.Phase == p {
				return true
			}
		}
		return false
	}, 30*time.Second, 5*time.Millisecond, "slot 0 is not %v", phases)
	return s
}

// exit leaves slot 0 with a VM that has ended.
func (m *mac) exit() {
	m.start(spec("a"))
	m.wait("a", attached)
	require.NoError(m.t, m.Kill(context.Background(), "a"))
	m.wait("a", exited)
}

// Whatever a file contains, the slot becomes usable again, and no VM is reported as having run that
// has not.
func TestCorruptFiles(t *testing.T) {
	m := newMac(t)
	m.exit()
	m.stop()
	files := map[string][]byte{}
	for _, path := range []string{m.slot(0).SpecPath(), m.slot(0).ResultPath(), m.slot(0).StartedPath()} {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		files[path] = data
	}
	restore := func() {
		for path, data := range files {
			require.NoError(t, os.RemoveAll(path))
			require.NoError(t, os.WriteFile(path, data, 0o600))
		}
	}
	open := func() *Manager {
		manager, err := Open(config(m.dir, string(m.host), vmBinary))
		require.NoError(t, err)
		return manager
	}
	for path, data := range files {
		want := map[string]Phase{m.slot(0).SpecPath(): Corrupt}[path]
		if want == "" {
			want = Exited
		}
		garbled := map[string]func(){
			"a directory": func() { require.NoError(t, os.MkdirAll(filepath.Join(path, "x"), 0o700)) },
			"null":        func() { require.NoError(t, os.WriteFile(path, []byte("null"), 0o600)) },
			"no object":   func() { require.NoError(t, os.WriteFile(path, []byte("{}"), 0o600)) },
			"zeros":       func() { require.NoError(t, os.WriteFile(path, make([]byte, len(data)), 0o600)) },
		}
		for n := range len(data) - 2 { // the last ones are } and a newline
			garbled["the first bytes: "+string(data[:n])] = func() { require.NoError(t, os.WriteFile(path, data[:n], 0o600)) }
		}
		for name, garble := range garbled {
			restore()
			require.NoError(t, os.RemoveAll(path))
			garble()
			status := open().Statuses()[0]
			require.Equal(t, want, status.Phase, "%s is %s: %v", path, name, status.Err)
			if path == m.slot(0).ResultPath() {
				require.Equal(t, contract.ExitVanished, status.Result.Reason)
				require.NotNil(t, status.Result.StartedAt)
			}
		}
	}
	restore()
	require.NoError(t, os.WriteFile(m.slot(0).SpecPath(), []byte("{"), 0o600))
	m.open()
	require.Equal(t, Corrupt, m.Statuses()[0].Phase)
	require.NoError(t, m.EraseSlot(0))
	left, err := m.Leftovers()
	require.NoError(t, err)
	assert.Empty(t, left)
	m.start(spec("b"))
	m.wait("b", attached)
}

// The runner knows its VM even if the spec is lost.
func TestCorruptSpecOfARunningVM(t *testing.T) {
	m := newMac(t)
	m.start(spec("a"))
	before := m.wait("a", ready)
	m.stop()
	require.NoError(t, os.Remove(m.slot(0).SpecPath()))
	m.open()
	m.wait("a", attached)
	m.stop()
	require.NoError(t, os.WriteFile(m.slot(0).SpecPath(), nil, 0o600))
	m.open()
	after := m.wait("a", attached)
	assert.Equal(t, before.State.PID, after.State.PID)
	assert.Equal(t, "machine-a", after.Spec.MachineID)
	assert.Equal(t, macOf("a"), after.Spec.MACAddress)
	assert.Equal(t, "vm-a", after.Spec.Name)

	// Its result is not lost either.
	defer func() {
		m.stop()
		m.open()
		m.wait("a", attached)
		require.NoError(t, m.Kill(context.Background(), "a"))
		assert.Equal(t, contract.ExitKilled, m.wait("a", exited).Result.Reason)
		require.NoError(t, m.Erase("a"))
	}()

	// An unresponsive VM must not be declared dead.
	freeze(t, after.State.PID)
	m.restart(func(c *Config) { c.AnswerTimeout = 100 * time.Millisecond })
	assert.Nil(t, m.phase(Unreachable).Spec)
	require.NoError(t, syscall.Kill(after.State.PID, syscall.SIGCONT))
}

// A running VM stays known when its runner no longer responds.
func TestUnreachableRunnerWhoseSpecIsCorrupt(t *testing.T) {
	for name, garble := range map[string]func(path string) error{
		"garbled": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"gone":    os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			m := newMac(t)
			m.start(spec("a"))
			pid := m.wait("a", ready).State.PID
			m.restart(func(c *Config) { c.AnswerTimeout, c.ProbeInterval = 500*time.Millisecond, 100*time.Millisecond })
			m.wait("a", attached)
			require.NoError(t, garble(m.slot(0).SpecPath()))
			freeze(t, pid)
			assert.Equal(t, "a", m.phase(Unreachable).UID())
			require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
			m.wait("a", attached)
		})
	}
}

func TestCorruptLock(t *testing.T) {
	m := newMac(t)
	m.stop()
	for name, garble := range map[string]func(path string) error{
		"a directory":      func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) },
		"a symlink":        func(path string) error { return os.Symlink("/nonexistent/lock", path) },
		"not to be opened": func(path string) error { return os.WriteFile(path, nil, 0) },
		"of text":          func(path string) error { return os.WriteFile(path, []byte("12345"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			path := m.slot(0).LockPath()
			require.NoError(t, os.RemoveAll(path))
			require.NoError(t, garble(path))
			m.open()
			defer func() { m.stop() }()
			assert.Equal(t, Free, m.Statuses()[0].Phase)
			m.exit()
			require.NoError(t, m.Erase("a"))
		})
	}
}

// A runner without its lock still runs, and so does its VM.
func TestLostLock(t *testing.T) {
	m := newMac(t)
	m.start(spec("a"))
	m.wait("a", ready)
	m.stop()
	require.NoError(t, os.Remove(m.slot(0).LockPath()))
	m.open()
	status := m.phase(Unreachable)
	require.ErrorContains(t, status.Err, "without the slot's lock")
	require.ErrorIs(t, m.Erase("a"), ErrNotHere)
	require.NoError(t, m.KillRunner(context.Background(), 0))
	require.Eventually(t, func() bool { return m.running() == 0 }, 30*time.Second, 5*time.Millisecond)
}

func TestDuplicates(t *testing.T) {
	m := newMac(t)
	m.start(spec("a"))
	m.wait("a", attached)
	for name, change := range map[string]func(*contract.Spec){
		"machine ID":  func(s *contract.Spec) { s.MachineID = "machine-a" },
		"MAC address": func(s *contract.Spec) { s.MACAddress = macOf("a") },
	} {
		s := spec("b")
		change(s)
		require.ErrorIs(t, m.Prepare(s, fill), ErrDuplicateIdentity, name)
	}
	assert.Equal(t, Free, m.Statuses()[1].Phase)

	// A copy of the slot does not belong to the running VM.
	m.stop()
	require.NoError(t, contract.WriteJSON(m.slot(1).SpecPath(), spec("a")))
	m.open()
	found, ok := m.Find("a")
	require.True(t, ok)
	assert.Equal(t, 0, found.Slot)
	require.NoError(t, m.EraseSlot(1))
	assert.Equal(t, Free, m.Statuses()[1].Phase)
}

// A failed reservation is released.
func TestSlotsAreFreed(t *testing.T) {
	m := newMac(t)
	lockForAMoment := func() { // as another process may
		lock, err := m.slot(0).TryLock()
		require.NoError(t, err)
		go func() {
			time.Sleep(2 * lockPatience)
			lock.Unlock()
		}()
	}
	for range 3 {
		lockForAMoment()
		require.Error(t, m.EraseFree())
		assert.Equal(t, Free, m.Statuses()[0].Phase)

		lockForAMoment()
		require.ErrorIs(t, m.Prepare(spec("a"), fill), contract.ErrLocked)
		assert.Equal(t, Free, m.Statuses()[0].Phase)
	}
	require.NoError(t, m.Prepare(spec("a"), fill))
}

func TestStrangersBesideTheSlots(t *testing.T) {
	m := newMac(t)
	require.NoError(t, os.MkdirAll(filepath.Join(m.dir, "2", "disk"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "2", "disk", "disk.img"), []byte("secret"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "copy"), []byte("secret"), 0o600))
	left, err := m.Leftovers()
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{"2", "copy"}, left)
	require.NoError(t, m.EraseFree())
	var paths []string
	for _, r := range m.erased() {
		paths = append(paths, r.Path)
	}
	assert.ElementsMatch(t, []string{"2/disk/disk.img", "copy"}, paths)
	left, err = m.Leftovers()
	require.NoError(t, err)
	assert.Empty(t, left)
}

// Only a socket of the slot's owner is trusted.
func TestHijackedSocket(t *testing.T) {
	m := newMac(t)
	m.start(spec("a"))
	pid := m.wait("a", ready).State.PID
	ctx := context.Background()
	path := m.slot(0).SocketPath()
	client := contract.NewClient(m.slot(0))
	_, err := client.State(ctx)
	require.NoError(t, err)

	require.NoError(t, os.Chmod(path, 0o666))
	_, err = client.State(ctx)
	require.ErrorIs(t, err, contract.ErrForeignSocket)
	require.ErrorContains(t, err, "mode 0666")
	require.NoError(t, os.Chmod(path, 0o600))

	elsewhere := filepath.Join(tempDir(t), "s")
	require.NoError(t, os.Rename(path, elsewhere))
	require.NoError(t, os.Symlink(elsewhere, path))
	_, err = client.State(ctx)
	require.ErrorIs(t, err, contract.ErrForeignSocket)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = client.State(ctx)
	require.ErrorIs(t, err, contract.ErrForeignSocket)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Rename(elsewhere, path))
	state, err := client.State(ctx)
	require.NoError(t, err)
	assert.Equal(t, pid, state.PID)

	// A foreign socket in a free slot does not block it.
	_, err = net.Listen("unix", m.slot(1).SocketPath())
	require.NoError(t, err)
	require.NoError(t, os.Chmod(m.slot(1).SocketPath(), 0o666))
	m.restart()
	assert.Equal(t, Free, m.Statuses()[1].Phase)
	m.start(spec("b"))
	m.wait("b", attached)
}

// A hanging runner whose slot is still Attached does not block its callers.
func TestOrdersToAHungRunnerEnd(t *testing.T) {
	m := newMac(t)
	m.start(spec("a"))
	status := m.wait("a", ready)
	m.restart(func(c *Config) { c.AnswerTimeout, c.ProbeInterval = 500*time.Millisecond, time.Hour })
	m.wait("a", attached)
	freeze(t, status.State.PID)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.Error(t, m.Stop(ctx, "a", time.Second))
	require.Error(t, m.StopSlot(ctx, status.Slot, time.Second))
	require.Error(t, m.Kill(ctx, "a"))
	require.NoError(t, ctx.Err(), "an order waited for the caller's patience")
	assert.Equal(t, Attached, m.Statuses()[status.Slot].Phase)
	require.NoError(t, m.KillRunner(ctx, status.Slot))
	m.wait("a", exited)
}

func TestRunnerThatDoesNotObeyIsEnded(t *testing.T) {
	m := newMac(t)
	m.start(spec("a"))
	status := m.wait("a", ready)
	freeze(t, status.State.PID)
	require.NoError(t, m.KillRunner(context.Background(), status.Slot))
	m.wait("a", exited)
	assert.Equal(t, 0, m.running())
	require.Error(t, m.KillRunner(context.Background(), status.Slot), "it is gone")
}
