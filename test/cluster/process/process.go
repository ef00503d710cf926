package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster/await"
)

// Process is a program that runs in its own session, so that it outlives its starter. Its pid file
// records it. Since pids are reused, a pid counts only if its process began at the recorded time.
type Process struct {
	Name    string
	Program string   // path of the binary
	Args    []string // without argv[0]
	Ports   []int    // loopback ports that it listens on

	PIDFile string
	LogFile string

	// Ready checks that the program serves.
	Ready func(context.Context) error
}

// Record is the content of a pid file.
type Record struct {
	PID     int      `json:"pid"`
	Began   string   `json:"began"` // see began
	Program string   `json:"program"`
	Digest  string   `json:"digest"` // of the binary when it was started
	Args    []string `json:"args"`
}

// stopGrace is the time between SIGTERM and SIGKILL.
const stopGrace = 20 * time.Second

const (
	maxLogSize = 64 << 20 // bytes; a longer log is moved aside at the next start
	logTail    = 12       // lines of the log that an error quotes
)

// children are processes that this program started itself and therefore has to reap.
var children sync.Map // pid -> chan struct{}, closed at the end

// Running returns the record of the running process; ok is false if it does not run.
func (p *Process) Running() (rec Record, ok bool) {
	data, err := os.ReadFile(p.PIDFile)
	if err != nil || json.Unmarshal(data, &rec) != nil || rec.PID <= 1 {
		return Record{}, false
	}
	began, err := began(rec.PID)
	return rec, err == nil && began == rec.Began
}

// Outdated reports whether the process runs with another binary or other arguments than a new start
// would use.
func (p *Process) Outdated() bool {
	rec, ok := p.Running()
	if !ok {
		return false
	}
	digest, err := digest(p.Program)
	return err != nil || rec.Program != p.Program || rec.Digest != digest || !slices.Equal(rec.Args, p.Args)
}

// Start starts the program, which must not be running, and does not wait until it serves.
func (p *Process) Start() error {
	for _, port := range p.Ports {
		if err := CheckPort(port); err != nil {
			return fmt.Errorf("starting %s: %w", p.Name, err)
		}
	}
	digest, err := digest(p.Program)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("starting %s: program %s not found", p.Name, p.Program)
	}
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.Name, err)
	}
	if info, err := os.Stat(p.LogFile); err == nil && info.Size() > maxLogSize {
		if err := os.Rename(p.LogFile, p.LogFile+".old"); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()

	cmd := exec.Command(p.Program, p.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = filepath.Dir(p.LogFile)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.Name, err)
	}
	ended := make(chan struct{})
	children.Store(cmd.Process.Pid, ended)
	go func() {
		err := cmd.Wait()
		if err != nil {
			if f, openErr := os.OpenFile(p.LogFile, os.O_APPEND|os.O_WRONLY, 0o644); openErr == nil {
				fmt.Fprintf(f, "--- %s ended: %v\n", p.Name, err)
				f.Close()
			}
		}
		children.Delete(cmd.Process.Pid)
		close(ended)
	}()

	began, err := began(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("%s ended at once%s", p.Name, p.tail())
	}
	rec := Record{PID: cmd.Process.Pid, Began: began, Program: p.Program, Digest: digest, Args: p.Args}
	data, err := json.MarshalIndent(rec, "", "  ")
	if err == nil {
		err = WriteFile(p.PIDFile, append(data, '\n'), 0o644)
	}
	if err != nil {
		// Without a pid file the process could not be stopped later.
		_ = cmd.Process.Kill()
		return err
	}
	return nil
}

// WaitReady waits until the program serves. It fails when the program ends or ctx does, with the
// end of the log.
func (p *Process) WaitReady(ctx context.Context) error {
	last := errors.New("none")
	err := await.Poll(ctx, func(ctx context.Context) (bool, error) {
		if _, ok := p.Running(); !ok {
			return false, fmt.Errorf("%s has ended%s", p.Name, p.tail())
		}
		if p.Ready == nil {
			return true, nil
		}
		if err := p.Ready(ctx); err != nil {
			last = err
			return false, nil
		}
		return true, nil
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s is not ready: %w (last answer: %w)%s", p.Name, context.Cause(ctx), last, p.tail())
	}
	return err
}

// Stop ends the program: SIGTERM, then SIGKILL after stopGrace. It is not an error if the program
// does not run.
func (p *Process) Stop(ctx context.Context) error {
	rec, ok := p.Running()
	if !ok {
		return RemoveFile(p.PIDFile)
	}
	if err := syscall.Kill(rec.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stopping %s (pid %d): %w", p.Name, rec.PID, err)
	}
	grace, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if err := p.waitEnded(grace, rec); err == nil {
		return RemoveFile(p.PIDFile)
	}
	return p.Kill(ctx)
}

// Kill ends the program like a crash, and returns when it is gone.
func (p *Process) Kill(ctx context.Context) error {
	rec, ok := p.Running()
	if !ok {
		return RemoveFile(p.PIDFile)
	}
	if err := syscall.Kill(rec.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing %s (pid %d): %w", p.Name, rec.PID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if err := p.waitEnded(ctx, rec); err != nil {
		return fmt.Errorf("%s (pid %d) still runs after SIGKILL: %w", p.Name, rec.PID, err)
	}
	return RemoveFile(p.PIDFile)
}

func (p *Process) waitEnded(ctx context.Context, rec Record) error {
	if ended, ok := children.Load(rec.PID); ok {
		select {
		case <-ended.(chan struct{}):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return await.Poll(ctx, func(context.Context) (bool, error) {
		began, err := began(rec.PID)
		return err != nil || began != rec.Began, nil
	})
}
