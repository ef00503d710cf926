package process

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
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
		all, err := Recorded(dir)
		if err != nil {
			return err
		}
		for _, p := range all {
			if _, ok := p.Running(); !ok {
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

func (k *keeper) restart(ctx context.Context, p *Process) {
	since := time.Since(k.started[p.Name])
	if since > steadyAfter {
		k.backOff[p.Name] = 0
	}
	if since < k.backOff[p.Name] {
		return
	}
	unlock, err := Lock(ctx, filepath.Join(k.dir, "run", p.Name+".lock"), io.Discard)
	if err != nil {
		return
	}
	defer unlock()
	// It may have been started, or stopped for good, during the wait for the lock.
	data, err := os.ReadFile(p.PIDFile)
	var rec Record
	if err != nil || json.Unmarshal(data, &rec) != nil {
		return
	}
	if _, ok := p.Running(); ok {
		return
	}
	p.Program, p.Args = rec.Program, rec.Args
	k.started[p.Name] = time.Now()
	k.backOff[p.Name] = min(maxBackOff, max(keepInterval, 2*k.backOff[p.Name]))
	fmt.Fprintf(k.log, "%s %s has ended: restarting it\n", time.Now().Format(time.RFC3339), p.Name)
	if err := p.Start(); err != nil {
		fmt.Fprintln(k.log, err)
	}
}

// Recorded returns the processes that have a pid file, running or not.
func Recorded(dir string) ([]*Process, error) {
	files, err := filepath.Glob(filepath.Join(dir, "run", "*.pid"))
	var all []*Process
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".pid")
		all = append(all, &Process{Name: name, PIDFile: file, LogFile: filepath.Join(dir, "log", name+".log")})
	}
	return all, err
}
