package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	initCommand = "init"
	initReady   = "ready\n"
	// restartDelay is the time between the end of a program and its next start.
	restartDelay = time.Second
)

// runInit is the first process of a machine. It prints a line when the machine is ready, reads the
// programs of the machine, and keeps them running.
func runInit(name, dir string) error {
	if err := syscall.Sethostname([]byte(name)); err != nil {
		return err
	}
	if err := mountDisk(dir); err != nil {
		return err
	}
	if err := run(context.Background(), "ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return err
	}
	fmt.Print(initReady)
	var programs []program
	if err := json.NewDecoder(os.Stdin).Decode(&programs); err != nil {
		return fmt.Errorf("reading the programs of %s: %w", name, err)
	}
	s := supervisor{running: map[int]program{}}
	for _, p := range programs {
		if err := s.start(p); err != nil {
			return err
		}
	}
	return s.reap()
}

// mountDisk gives the machine its own /proc, /run, /var/lib and /var/log. A kubelet needs shared
// mounts.
func mountDisk(dir string) error {
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"", "/", "", syscall.MS_REC | syscall.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
		{filepath.Join(dir, "lib"), "/var/lib", "", syscall.MS_BIND},
		{filepath.Join(dir, "log"), "/var/log", "", syscall.MS_BIND},
		{"", "/", "", syscall.MS_REC | syscall.MS_SHARED},
	} {
		if err := syscall.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	return nil
}

// A supervisor restarts programs, and reaps the processes that have lost their parents.
type supervisor struct {
	mu      sync.Mutex
	running map[int]program
}

func (s *supervisor) start(p program) error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	process, err := os.StartProcess(p.Args[0], p.Args, &os.ProcAttr{
		// The first of two values of a variable counts.
		Dir: "/", Env: append(p.Env, os.Environ()...), Files: []*os.File{nil, log, log}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.Name, err)
	}
	s.running[process.Pid] = p
	return nil
}

func (s *supervisor) reap() error {
	for {
		pid, err := syscall.Wait4(-1, nil, 0, nil)
		if err != nil { // no process is left, until a program is restarted
			time.Sleep(restartDelay)
			continue
		}
		s.mu.Lock()
		p, ok := s.running[pid]
		delete(s.running, pid)
		s.mu.Unlock()
		if ok {
			time.AfterFunc(restartDelay, func() {
				if err := s.start(p); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
			})
		}
	}
}
