package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"macrack.io/macrack/test/cluster/process"
)

// component is a process with its place in the start order.
type component struct {
	process.Process
	stage stage
}

type stage int

const (
	stageEtcd stage = iota
	stageKubeAPIServer
	stageKubeControllers
	stageAPIServer
	stageControllers
	stageAgents
	stageKeeper
)

// readyTimeout is the time in which a stage must serve; a busy machine with two cores needs most of
// a minute.
const readyTimeout = 4 * time.Minute

// healthyWithin is the time in which a running component must answer before it is restarted.
const healthyWithin = 15 * time.Second

func (c *Cluster) startStage(ctx context.Context, s stage) error {
	var wanted []*component
	for _, comp := range c.components {
		if comp.stage == s {
			wanted = append(wanted, comp)
		}
	}
	var mu sync.Mutex
	running := map[*component]bool{}
	err := each(wanted, func(comp *component) error {
		ok, err := c.leaveRunning(ctx, comp)
		mu.Lock()
		defer mu.Unlock()
		running[comp] = ok
		return err
	})
	if err != nil {
		return err
	}
	starting := slices.DeleteFunc(slices.Clone(wanted), func(comp *component) bool { return running[comp] })
	if len(starting) == 0 {
		return nil
	}
	var names []string
	for _, comp := range starting {
		names = append(names, comp.Name)
	}
	fmt.Fprintf(c.progress, "starting %s\n", strings.Join(names, ", "))
	for _, comp := range starting {
		if err := c.locked(ctx, comp.Name, comp.Start); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("waited %s", readyTimeout))
	defer cancel()
	return each(starting, func(comp *component) error { return comp.WaitReady(ctx) })
}

// leaveRunning reports whether the component runs and is healthy. If it runs but is not healthy, it
// is stopped.
func (c *Cluster) leaveRunning(ctx context.Context, comp *component) (bool, error) {
	if _, ok := comp.Running(); !ok {
		return false, nil
	}
	healthy, cancel := context.WithTimeout(ctx, healthyWithin)
	defer cancel()
	if comp.WaitReady(healthy) == nil {
		return true, nil
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	fmt.Fprintf(c.progress, "%s runs but does not answer: restarting it\n", comp.Name)
	return false, c.locked(ctx, comp.Name, func() error { return comp.Stop(ctx) })
}

// stopComponents stops the running components that match, clients before their servers.
func (c *Cluster) stopComponents(ctx context.Context, match func(*component) bool) error {
	var errs error
	for s := stageKeeper; s >= stageEtcd; s-- {
		var ending []*component
		for _, comp := range c.components {
			if _, ok := comp.Running(); ok && comp.stage == s && match(comp) {
				ending = append(ending, comp)
			}
		}
		errs = errors.Join(errs, each(ending, func(comp *component) error {
			return c.locked(ctx, comp.Name, func() error { return comp.Stop(ctx) })
		}))
	}
	return errs
}

// stopUnknown stops components that ran in this folder and are no longer wanted.
func (c *Cluster) stopUnknown(ctx context.Context) error {
	unknown, err := c.unknown()
	if err != nil {
		return err
	}
	return each(unknown, func(p *process.Process) error {
		return c.locked(ctx, p.Name, func() error { return p.Stop(ctx) })
	})
}

func (c *Cluster) unknown() ([]*process.Process, error) {
	all, err := process.Recorded(c.dir)
	return slices.DeleteFunc(all, func(p *process.Process) bool { return c.component(p.Name) != nil }), err
}

// locked runs f while no other program starts or stops the component.
func (c *Cluster) locked(ctx context.Context, name string, f func() error) error {
	unlock, err := process.Lock(ctx, filepath.Join(c.dir, "run", name+".lock"), c.progress)
	if err != nil {
		return err
	}
	defer unlock()
	return f()
}

// each runs f for all items at once and joins the errors.
func each[T any](items []T, f func(T) error) error {
	errs := make([]error, len(items))
	var all sync.WaitGroup
	for i, item := range items {
		all.Go(func() { errs[i] = f(item) })
	}
	all.Wait()
	return errors.Join(errs...)
}
