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
	// A component that ended within steadyAfter of its start waits before the next start, twice as
	// long each time.
	steadyAfter = time.Minute
	maxBackOff  = 30 * time.Second
)

// Keep restarts components of the cluster in dir that end unexpectedly, until ctx ends. Elsewhere,
// a kubelet or launchd does this. Kill, Shutdown and Stop remove a component's pid file, and so
// exclude it from Keep.
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
	started map[string]time.Time // by this keeper
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
	// It may have been started, or stopped for good, during the wait for the lock.
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
	fmt.Fprintf(k.log, "%s %s has ended: restarting it\n", time.Now().Format(time.RFC3339), p.name)
	if err := p.start(); err != nil {
		fmt.Fprintln(k.log, err)
	}
}
