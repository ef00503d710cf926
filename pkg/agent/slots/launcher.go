package slots

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/runner"
)

// Launcher starts a runner for a slot.
type Launcher interface {
	// Launch starts a runner and does not wait for it. The channel yields once
	// when the runner has ended; a launcher that cannot know returns nil.
	Launch(dir contract.SlotDir) (<-chan error, error)
}

// Process launches runners as processes of their own session, so that neither
// the agent's end nor a signal to its terminal reaches them.
type Process struct {
	// Binary is the path of macrack-vm.
	Binary string
	// Args follow `run --slot-dir DIR`, such as --backend and --sim-host-dir.
	Args []string
}

// runnerLog is the runner's own log, beside the guest's console.
const runnerLog = "runner.log"

// Launch implements Launcher.
func (p *Process) Launch(dir contract.SlotDir) (<-chan error, error) {
	log, err := os.OpenFile(filepath.Join(string(dir), runnerLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(p.Binary, append([]string{"run", "--slot-dir", string(dir)}, p.Args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start runner: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return ended, nil
}

// NewMachineID has macrack-vm make a machine identifier.
func (p *Process) NewMachineID(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, p.Binary, append([]string{"machine-id"}, p.Args...)...).Output()
	if err != nil {
		return "", fmt.Errorf("%s machine-id: %w", p.Binary, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// InProcess runs runners in this process: for tests and for a test bed that runs
// many Macs at once. The files, locks and sockets are the real ones.
type InProcess struct {
	Backend runner.Backend
	Clock   clock.Clock

	runs sync.WaitGroup
}

// Launch implements Launcher.
func (p *InProcess) Launch(dir contract.SlotDir) (<-chan error, error) {
	ended := make(chan error, 1)
	p.runs.Go(func() {
		_, err := runner.Run(context.Background(), dir, p.Backend, p.Clock)
		ended <- err
	})
	return ended, nil
}

// Wait blocks until all runners have ended.
func (p *InProcess) Wait() { p.runs.Wait() }
