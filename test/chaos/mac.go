package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster/kubeconfig"
	"macrack.io/macrack/test/cluster/process"

	"k8s.io/apimachinery/pkg/util/uuid"

	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
	"macrack.io/macrack/test/cluster"
)

// mac is a simulated Mac. Its agent and its runners are separate processes.
type mac struct {
	name     string
	dir      string
	host     sim.HostDir
	binaries string
	link     *link
	agent    process.Child
}

// newMac prepares the nth Mac of a cluster, and starts nothing.
func newMac(c *cluster.Cluster, binaries, name, serial string) (*mac, error) {
	m := &mac{name: name, dir: filepath.Join(c.Dir(), "macs", name), binaries: binaries}
	m.host = sim.HostDir(filepath.Join(m.dir, "host"))
	if err := errors.Join(os.MkdirAll(m.state(), 0o700), os.MkdirAll(m.faults(), 0o700), m.host.Init(serial, string(uuid.NewUUID()))); err != nil {
		return nil, err
	}
	if err := m.host.SetGuest(contract.Simulation{BootMillis: 20, ShutdownMillis: 10}); err != nil {
		return nil, err
	}
	path, err := c.Kubeconfig("system:node:" + name)
	if err != nil {
		return nil, err
	}
	if m.link, err = newLink(fmt.Sprintf("127.0.0.1:%d", c.Port("kube-apiserver"))); err != nil {
		return nil, err
	}
	config := filepath.Join(m.dir, "kubeconfig")
	if err := kubeconfig.Redirect(path, config, func(string) string { return "https://" + m.link.address() }); err != nil {
		return nil, err
	}
	m.agent = process.Child{
		Name: "the agent of " + name, Program: filepath.Join(binaries, "chaos"), LogFile: m.log(), Env: []string{m.faultsEnv()},
		Args:       []string{"agent", "--node-name=" + m.name, "--kubeconfig=" + config, "--state-dir=" + m.state(), "--host-dir=" + string(m.host), "--vm-binary=" + filepath.Join(binaries, "macrack-vm")},
		Attributes: &syscall.SysProcAttr{Setpgid: true},
	}
	return m, os.WriteFile(m.fault("trace"), nil, 0o600)
}

func (m *mac) state() string            { return filepath.Join(m.dir, "state") }
func (m *mac) faults() string           { return filepath.Join(m.dir, "faults") }
func (m *mac) fault(name string) string { return filepath.Join(m.faults(), name) }
func (m *mac) log() string              { return filepath.Join(m.dir, "agent.log") }
func (m *mac) slot(n int) contract.SlotDir {
	return contract.SlotDir(filepath.Join(m.state(), "slots", strconv.Itoa(n)))
}
func (m *mac) set(name, value string) error { return os.WriteFile(m.fault(name), []byte(value), 0o600) }
func (m *mac) unset(name string)            { _ = os.Remove(m.fault(name)) }

// faultsEnv makes a program reach faults in the folder of the Mac.
func (m *mac) faultsEnv() string { return "MACRACK_FAULTS=" + m.faults() }

// stopAgent shuts the agent down, and returns how long that took.
func (m *mac) stopAgent() time.Duration {
	began := time.Now()
	m.agent.Stop()
	return time.Since(began)
}

// runners returns the live runner processes of the Mac according to the system, not to the slots.
func (m *mac) runners() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err == nil && strings.Contains(string(line), "\x00run\x00--slot-dir\x00"+m.state()+"/") {
			pids = append(pids, pid) // the command line of a zombie is empty
		}
	}
	return pids
}

func (m *mac) killRunners(pids ...int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for slices.ContainsFunc(m.runners(), func(pid int) bool { return slices.Contains(pids, pid) }) {
		time.Sleep(2 * time.Millisecond)
	}
}

// vm is a virtual machine as reported by its runner.
type vm struct {
	slot int
	contract.State
}

// vms reads every slot's socket.
func (m *mac) vms(ctx context.Context) []vm {
	var all []vm
	for n := range rules.MaxVMsPerMac {
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		if state, err := contract.NewClient(m.slot(n)).State(ctx); err == nil && state.VM != contract.VMStopped {
			all = append(all, vm{n, *state})
		}
		cancel()
	}
	return all
}

// leftovers are the files of the slots other than the locks.
func (m *mac) leftovers() []string { return m.files("slots") }

// files are the files in a directory of the state, other than locks.
func (m *mac) files(name string) []string {
	var paths []string
	_ = filepath.WalkDir(filepath.Join(m.state(), name), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && entry.Name() != "lock" {
			paths = append(paths, path)
		}
		return nil
	})
	return paths
}

// hit waits until a process has reached the armed place, and returns its PID.
func (m *mac) hit() (int, bool) {
	data, err := os.ReadFile(m.fault("hit"))
	if err != nil {
		return 0, false
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	pid, err := strconv.Atoi(lines[len(lines)-1])
	return pid, err == nil
}

func (m *mac) disarm() {
	for _, name := range []string{"arm", "hit"} {
		m.unset(name)
	}
}

// losePower ends all processes at once, reverts unsynced writes, and boots the Mac again.
func (m *mac) losePower() error {
	_ = m.agent.Signal(syscall.SIGKILL)
	m.killRunners(m.runners()...)
	m.agent.Kill()
	m.killRunners(m.runners()...) // a runner that was just being started
	entries, err := os.ReadDir(m.fault("undo"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	slices.Reverse(entries) // the newest first
	for _, entry := range entries {
		var undo struct {
			Path    string
			Existed bool
			Data    []byte
		}
		path := filepath.Join(m.fault("undo"), entry.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if json.Unmarshal(data, &undo) == nil {
			if _, err := os.Stat(filepath.Dir(undo.Path)); err == nil {
				_ = os.RemoveAll(undo.Path)
				if undo.Existed {
					if err := os.WriteFile(undo.Path, undo.Data, 0o600); err != nil {
						return err
					}
				}
			}
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return m.host.Reboot(string(uuid.NewUUID()))
}

// trace returns the places that processes of the Mac have reached.
func (m *mac) trace() []string {
	data, _ := os.ReadFile(m.fault("trace"))
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// usage is the resource usage of a process.
type usage struct {
	fds, goroutines int
	heap            uint64
}

// agentUsage reads the usage from the agent's process.
func (m *mac) agentUsage(ctx context.Context) (usage, error) {
	m.unset("stats")
	if err := m.agent.Signal(syscall.SIGUSR1); err != nil {
		return usage{}, err
	}
	var stats struct {
		PID, Goroutines int
		HeapBytes       uint64
	}
	for {
		if data, err := os.ReadFile(m.fault("stats")); err == nil {
			if err := json.Unmarshal(data, &stats); err != nil {
				return usage{}, err
			}
			break
		}
		select {
		case <-ctx.Done():
			return usage{}, fmt.Errorf("the agent does not report its usage: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", stats.PID))
	return usage{len(fds), stats.Goroutines, stats.HeapBytes}, err
}

// startRunner starts a runner by hand.
func (m *mac) startRunner(dir contract.SlotDir) error {
	runner := process.Child{
		Name: "a runner", Program: filepath.Join(m.binaries, "macrack-vm"), Args: []string{"run", "--slot-dir", string(dir), "--backend=sim", "--sim-host-dir=" + string(m.host)},
		Env: []string{m.faultsEnv()}, LogFile: os.DevNull, Attributes: &syscall.SysProcAttr{Setsid: true},
	}
	return runner.Start()
}
