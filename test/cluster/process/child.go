package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster/await"
)

// childTimeout is the time in which a child must serve.
const childTimeout = 2 * time.Minute

// A Child is a process that belongs to this program, which starts it, ends it and starts it again.
type Child struct {
	Name string
	// Program is the path of the binary; empty: this program.
	Program string
	Args    []string
	// Env is added to the environment of this program.
	Env []string
	// LogFile receives the output; empty: standard error of this program.
	LogFile string
	// Prints is a line; Start returns when the process has printed it on standard output.
	Prints string
	// Attributes are those of the operating system.
	Attributes *syscall.SysProcAttr

	mu    sync.Mutex
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}
}

// ExitWithParent ends this process when the program that started it as a Child ends.
func ExitWithParent() {
	go func() { // the parent holds the other end while it lives
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
}

// Start starts the process, which must not be running.
func (c *Child) Start() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	program := c.Program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return err
		}
	}
	log := os.Stderr
	if c.LogFile != "" {
		if log, err = os.OpenFile(c.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			return err
		}
		defer log.Close()
	}
	cmd := exec.Command(program, c.Args...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, c.Attributes
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	var output io.Reader
	if c.Prints != "" {
		cmd.Stdout = nil
		if output, err = cmd.StdoutPipe(); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", c.Name, err)
	}
	if c.Prints != "" {
		if line, err := bufio.NewReader(output).ReadString('\n'); err != nil || line != c.Prints+"\n" {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			return fmt.Errorf("%s printed %q, wanted %q: %w", c.Name, line, c.Prints, err)
		}
	}
	ended := make(chan struct{})
	c.cmd, c.ended = cmd, ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

// Running reports whether the process runs.
func (c *Child) Running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cmd != nil && !closed(c.ended)
}

// PID returns the process ID, or 0 if the process is not running.
func (c *Child) PID() int {
	if !c.Running() {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cmd.Process.Pid
}

// Crashed reports whether the process has ended without Kill and Stop.
func (c *Child) Crashed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cmd != nil && closed(c.ended)
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Signal sends a signal to the process.
func (c *Child) Signal(sig os.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return fmt.Errorf("%s does not run", c.Name)
	}
	return c.cmd.Process.Signal(sig)
}

// Kill ends the process like a crash, and returns when it is gone.
func (c *Child) Kill() { c.end(syscall.SIGKILL) }

// Stop ends the process gracefully, and returns when it is gone.
func (c *Child) Stop() { c.end(syscall.SIGTERM) }

func (c *Child) end(sig os.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Signal(sig)
	<-c.ended
	_ = c.stdin.Close()
	c.cmd = nil
}

// WaitReady waits until check succeeds. It fails if the process ends.
func (c *Child) WaitReady(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, childTimeout, fmt.Errorf("waited %s", childTimeout))
	defer cancel()
	last := errors.New("none")
	err := await.Poll(ctx, func(ctx context.Context) (bool, error) {
		if c.Crashed() {
			return false, fmt.Errorf("%s has ended; see %s", c.Name, c.LogFile)
		}
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s is not ready: %w (last answer: %w); see %s", c.Name, err, last, c.LogFile)
	}
	return err
}
