package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

const (
	keepInterval = time.Second
	// A component that ended within steadyAfter of its start waits before the next one, twice as long each time.
	steadyAfter = time.Minute
	maxBackOff  = 30 * time.Second
)

// Keep starts components of the cluster in dir again, as they were started, when they end without having been asked to, until ctx ends. It is
// what a kubelet or launchd does elsewhere. Kill, Shutdown and Stop remove a component's pid file, and so from Keep's care.
func Keep(ctx context.Context, dir string, log io.Writer) error {
	k := keeper{dir: dir, log: log, backOff: map[string]time.Duration{}, started: map[string]time.Time{}}
	tick := time.NewTicker(keepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		all, err := recorded(dir)
		if err != nil {
			return err
		}
		for _, p := range all {
			if _, ok := p.running(); !ok {
				k.restart(ctx, p)
			}
		}
	}
}

type keeper struct {
	dir     string
	log     io.Writer
	backOff map[string]time.Duration
	started map[string]time.Time // by us
}

func (k *keeper) restart(ctx context.Context, p *process) {
	since := time.Since(k.started[p.name])
	if since > steadyAfter {
		k.backOff[p.name] = 0
	}
	if since < k.backOff[p.name] {
		return
	}
	unlock, err := lockFile(ctx, filepath.Join(k.dir, "run", p.name+".lock"), io.Discard)
	if err != nil {
		return
	}
	defer unlock()
	// It may have been started, or stopped for good, while the lock was awaited.
	data, err := os.ReadFile(p.pidFile)
	var rec pidRecord
	if err != nil || json.Unmarshal(data, &rec) != nil {
		return
	}
	if _, ok := p.running(); ok {
		return
	}
	p.program, p.args = rec.Program, rec.Args
	k.started[p.name] = time.Now()
	k.backOff[p.name] = min(maxBackOff, max(keepInterval, 2*k.backOff[p.name]))
	fmt.Fprintf(k.log, "%s %s has ended: starting it again\n", time.Now().Format(time.RFC3339), p.name)
	if err := p.start(); err != nil {
		fmt.Fprintln(k.log, err)
	}
}
