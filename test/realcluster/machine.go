package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster/await"
)

const (
	// bridge connects the machines and the control plane, which has the last address.
	bridge              = "machines"
	controlPlaneAddress = "10.99.0.254"
	prefix              = "/24"
)

// A machine has its own processes, mounts, network and name. Its end ends all its processes.
type machine struct {
	name, address string
	// dir has its disk, and the logs of its programs.
	dir string

	init  *exec.Cmd
	stdin io.WriteCloser
}

// A program is restarted by its machine whenever it ends.
type program struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
	Env  []string `json:"env"`
	Log  string   `json:"log"`
}

// start starts the machine and connects it to the bridge.
func (m *machine) start(ctx context.Context) error {
	for _, dir := range []string{"lib", "log"} {
		if err := os.MkdirAll(filepath.Join(m.dir, dir), 0o755); err != nil {
			return err
		}
	}
	m.init = exec.Command("/proc/self/exe", initCommand, m.name, m.dir)
	m.init.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	m.init.Stderr = os.Stderr
	stdout, err := m.init.StdoutPipe()
	if err != nil {
		return err
	}
	if m.stdin, err = m.init.StdinPipe(); err != nil {
		return err
	}
	if err := m.init.Start(); err != nil {
		return fmt.Errorf("starting machine %s: %w", m.name, err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != initReady {
		return fmt.Errorf("machine %s did not start: %q, %w", m.name, line, err)
	}
	return m.connect(ctx)
}

func (m *machine) connect(ctx context.Context) error {
	// The link of an earlier start vanishes a moment after the end of its machine.
	err := await.Success(ctx, 10*time.Second, 100*time.Millisecond, func() error {
		return run(ctx, "ip", "link", "add", m.name, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(m.init.Process.Pid))
	})
	if err != nil {
		return err
	}
	if err := run(ctx, "ip", "link", "set", m.name, "master", bridge, "up"); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"ip", "addr", "add", m.address + prefix, "dev", "eth0"},
		{"ip", "link", "set", "eth0", "up"},
		{"ip", "route", "add", "default", "via", controlPlaneAddress},
	} {
		if err := m.run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// launch starts the programs of the machine. It is called once after each start.
func (m *machine) launch(programs ...program) error {
	for i := range programs {
		programs[i].Log = filepath.Join(m.dir, programs[i].Name+".log")
	}
	return json.NewEncoder(m.stdin).Encode(programs)
}

// command returns a command on the machine.
func (m *machine) command(ctx context.Context, args ...string) *exec.Cmd {
	pid := strconv.Itoa(m.init.Process.Pid)
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", pid, "--mount", "--net", "--pid", "--uts", "--ipc", "--"}, args...)...)
}

func (m *machine) run(ctx context.Context, args ...string) error {
	if out, err := m.command(ctx, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s on %s: %w: %s", strings.Join(args, " "), m.name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// kill ends the machine like a power failure.
func (m *machine) kill() {
	if m.init == nil || m.init.Process == nil {
		return
	}
	_ = m.init.Process.Kill()
	_ = m.init.Wait()
	m.init = nil
}

// run runs a command, whose error quotes its output.
func run(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
