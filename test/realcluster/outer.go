package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster/build"
	"macrack.io/macrack/test/cluster/process"
)

const (
	innerCommand = "inner"
	// The names of the state and of the control groups have this prefix and the pid.
	statePrefix = "macrack-nodes-"
	stateParent = "/tmp" // $TMPDIR can be too long for the sockets in the state
	// stopGrace is the time in which the inner part must end after an interruption.
	stopGrace = 30 * time.Second
)

// plan is what the outer part passes to the inner part.
type plan struct {
	Nodes int    `json:"nodes"`
	Until string `json:"until"`
	Root  string `json:"root"`
	// Dir has the state, which is removed in the end.
	Dir string `json:"dir"`
	// Logs are kept.
	Logs string `json:"logs"`
	// Registry is the host of the images' references. Nodes reach it at another address.
	Registry string `json:"registry"`
	Cgroup   string `json:"cgroup"`
	// ImagesTook is the duration of `make images`.
	ImagesTook       time.Duration `json:"imagesTook"`
	Current, Earlier release
}

// A release is a chart with the values of its images.
type release struct {
	Name   string `json:"name"`
	Chart  string `json:"chart"`
	Values string `json:"values"`
}

// runOuter builds everything, runs the inner part, and removes what outlives its namespaces.
func runOuter(ctx context.Context, o options) (err error) {
	root, err := build.Root()
	if err != nil {
		return err
	}
	p := plan{Nodes: o.nodes, Until: o.until, Root: root, Logs: filepath.Join(root, ".dev", "cluster-test")}
	unlock, err := process.Lock(ctx, filepath.Join(root, ".dev", "cluster-test.lock"), os.Stderr)
	if err != nil {
		return err
	}
	defer unlock()
	if err := errors.Join(removeStale(), os.RemoveAll(p.Logs), os.MkdirAll(p.Logs, 0o755)); err != nil {
		return err
	}
	if p.Dir, err = os.MkdirTemp(stateParent, fmt.Sprintf("%s%d-", statePrefix, os.Getpid())); err != nil {
		return err
	}
	var r result
	began := time.Now()
	err = p.prepare(ctx, o)
	r.count("programs and images are built", time.Since(began), err)
	if err == nil {
		var inner result
		inner, err = p.test(ctx)
		r.add(inner)
	}
	began = time.Now()
	left := p.clean()
	r.count("nothing is left behind", time.Since(began), left)
	fmt.Printf("cluster-test: steps=%d passed=%d failed=%d\n", r.Steps, r.Passed, r.Failed)
	return errors.Join(err, left)
}

// test runs the inner part, and returns the result of its steps.
func (p *plan) test(ctx context.Context) (result, error) {
	var nodes []string
	for i := range p.Nodes {
		nodes = append(nodes, nodeName(i))
	}
	group, cgroups, err := makeCgroups(nodes...)
	if err == nil {
		p.Cgroup = group
		err = p.runInNamespaces(ctx)
	}
	err = errors.Join(err, cgroups.remove())
	r, readErr := p.readResult()
	return r, errors.Join(err, readErr)
}

// clean removes the state. It returns an error if something of the test is left on this machine:
// a process, a mount, or a control group.
func (p *plan) clean() error {
	errs := os.RemoveAll(p.Dir)
	mounts, err := os.ReadFile("/proc/self/mounts")
	errs = errors.Join(errs, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, p.Dir) {
			errs = errors.Join(errs, fmt.Errorf("mount %s", strings.TrimSpace(line)))
		}
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	errs = errors.Join(errs, err)
	for _, file := range commands {
		if command, _ := os.ReadFile(file); strings.Contains(string(command), p.Dir) {
			errs = errors.Join(errs, fmt.Errorf("process %s", strings.ReplaceAll(string(command), "\x00", " ")))
		}
	}
	groups, err := ownCgroups()
	for _, group := range groups {
		errs = errors.Join(errs, fmt.Errorf("control group %s", group))
	}
	return errors.Join(errs, err)
}

// runInNamespaces runs the inner part. The system kills it if this program dies.
func (p *plan) runInNamespaces(ctx context.Context) error {
	file := filepath.Join(p.Dir, "plan.json")
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return err
	}
	runtime.LockOSThread() // Pdeathsig is sent at the end of the thread
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", innerCommand, file)
	cmd.Dir = p.Root
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true, // an interruption from the terminal arrives here only, and is passed on once
		Pdeathsig:  syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return fmt.Errorf("the test failed (%w); the logs are in %s", err, p.Logs)
	}
	return nil
}
