package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Kill ends a component like a crash (SIGKILL). It stays down until Restart or Up.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	comp, err := c.find(name)
	if err != nil {
		return err
	}
	return c.locked(ctx, name, func() error { return comp.Kill(ctx) })
}

// Shutdown ends a component gracefully (SIGTERM). It stays down until Restart or Up.
func (c *Cluster) Shutdown(ctx context.Context, name string) error {
	comp, err := c.find(name)
	if err != nil {
		return err
	}
	return c.locked(ctx, name, func() error { return comp.Stop(ctx) })
}

// Signal sends a signal to a component; SIGSTOP and SIGCONT simulate a hang.
func (c *Cluster) Signal(name string, sig syscall.Signal) error {
	comp, err := c.find(name)
	if err != nil {
		return err
	}
	rec, ok := comp.Running()
	if !ok {
		return fmt.Errorf("%s does not run", name)
	}
	return syscall.Kill(rec.PID, sig)
}

// Restart stops a component gracefully if it runs, starts it, and returns when it serves.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	comp, err := c.find(name)
	if err != nil {
		return err
	}
	err = c.locked(ctx, name, func() error { return errors.Join(comp.Stop(ctx), comp.Start()) })
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("waited %s", readyTimeout))
	defer cancel()
	return comp.WaitReady(ctx)
}

// Status is the state of one component.
type Status struct {
	Name  string
	PID   int // 0: does not run
	Ports []int
	Ready error // nil: it serves
	Log   string
}

// Status checks every component.
func (c *Cluster) Status(ctx context.Context) []Status {
	ctx, cancel := context.WithTimeout(ctx, healthyWithin)
	defer cancel()
	all := make([]Status, len(c.components))
	var asked sync.WaitGroup
	for i, comp := range c.components {
		asked.Go(func() {
			s := Status{Name: comp.Name, Ports: comp.Ports, Log: comp.LogFile, Ready: errors.New("does not run")}
			if rec, ok := comp.Running(); ok {
				s.PID, s.Ready = rec.PID, nil
				if comp.Ready != nil {
					s.Ready = comp.Ready(ctx)
				}
			}
			all[i] = s
		})
	}
	asked.Wait()
	return all
}

// Names returns the components in their start order.
func (c *Cluster) Names() []string {
	var names []string
	for _, comp := range c.components {
		names = append(names, comp.Name)
	}
	return names
}

// LogFile returns the path of a component's log.
func (c *Cluster) LogFile(name string) string { return filepath.Join(c.dir, "log", name+".log") }

// PID returns the pid of a component, 0 if it does not run.
func (c *Cluster) PID(name string) int {
	if comp := c.component(name); comp != nil {
		if rec, ok := comp.Running(); ok {
			return rec.PID
		}
	}
	return 0
}

func (c *Cluster) component(name string) *component {
	for _, comp := range c.components {
		if comp.Name == name {
			return comp
		}
	}
	return nil
}

func (c *Cluster) find(name string) (*component, error) {
	if comp := c.component(name); comp != nil {
		return comp, nil
	}
	return nil, fmt.Errorf("unknown component %q; use one of %s", name, strings.Join(c.Names(), ", "))
}
