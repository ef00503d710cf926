//go:build faults

package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/utils/clock"
)

// Dir is the directory that configures faults; if it is empty, faults are off.
var Dir = os.Getenv("MACRACK_FAULTS")

func init() {
	if Dir == "" {
		return
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		for range asked {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			data, _ := json.Marshal(Stats{PID: os.Getpid(), Goroutines: runtime.NumGoroutine(), HeapBytes: m.HeapAlloc})
			stats := filepath.Join(Dir, "stats")
			if os.WriteFile(stats+".new", data, 0o600) == nil {
				_ = os.Rename(stats+".new", stats)
			}
		}
	}()
}

// Stats are the statistics that a process writes on SIGUSR1.
type Stats struct {
	PID        int
	Goroutines int
	// HeapBytes is the heap in use after a garbage collection.
	HeapBytes uint64
}

// At is a point at which a test may kill the process.
func At(place string) {
	if Dir == "" {
		return
	}
	trace(place)
	arm := filepath.Join(Dir, "arm")
	wanted, err := os.ReadFile(arm)
	if err != nil || strings.TrimSpace(string(wanted)) != place {
		return
	}
	claimed := fmt.Sprintf("%s.%d", arm, os.Getpid())
	if os.Rename(arm, claimed) != nil {
		return // another process was faster
	}
	_ = os.WriteFile(claimed, []byte(fmt.Sprintf("%s\n%d\n", place, os.Getpid())), 0o600)
	_ = os.Rename(claimed, filepath.Join(Dir, "hit"))
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	select {}
}

func trace(place string) {
	f, err := os.OpenFile(filepath.Join(Dir, "trace"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.WriteString(place + "\n")
}

// Write returns the injected error of a write to path, or nil.
func Write(path string) error {
	if Dir == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(Dir, "full")); err == nil {
		return &fs.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
	}
	return nil
}

// Undo is the saved state of a path before the last change that may not be on disk.
type Undo struct {
	Path    string
	Existed bool
	Data    []byte
}

var undos struct {
	sync.Mutex
	n atomic.Int64
}

// Undoable saves path, which is about to be replaced or removed.
func Undoable(path string) {
	if Dir == "" {
		return
	}
	info, err := os.Lstat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > 1<<20) {
		return
	}
	undo := Undo{Path: path}
	if data, err := os.ReadFile(path); err == nil {
		undo.Existed, undo.Data = true, data
	} else if !errors.Is(err, fs.ErrNotExist) {
		return
	}
	undos.Lock()
	defer undos.Unlock()
	_ = os.MkdirAll(filepath.Join(Dir, "undo"), 0o700)
	data, _ := json.Marshal(undo)
	_ = os.WriteFile(filepath.Join(Dir, "undo", fmt.Sprintf("%d-%09d", os.Getpid(), undos.n.Add(1))), data, 0o600)
}

// Durable discards the saved state of dir, whose entries are now on disk.
func Durable(dir string) {
	if Dir == "" {
		return
	}
	undos.Lock()
	defer undos.Unlock()
	entries, _ := os.ReadDir(filepath.Join(Dir, "undo"))
	for _, entry := range entries {
		path := filepath.Join(Dir, "undo", entry.Name())
		var undo Undo
		if data, err := os.ReadFile(path); err == nil && json.Unmarshal(data, &undo) == nil && filepath.Dir(undo.Path) == dir {
			_ = os.Remove(path)
		}
	}
}

// Clock returns the clock of the programs on a Mac. It jumps when its file changes.
func Clock() clock.WithTicker {
	if Dir == "" {
		return clock.RealClock{}
	}
	return jumpingClock{}
}

type jumpingClock struct{ clock.RealClock }

func (c jumpingClock) Now() time.Time {
	ahead, err := os.ReadFile(filepath.Join(Dir, "clock"))
	if err != nil {
		return c.RealClock.Now()
	}
	offset, err := time.ParseDuration(strings.TrimSpace(string(ahead)))
	if err != nil {
		return c.RealClock.Now()
	}
	return c.RealClock.Now().Add(offset)
}

func (c jumpingClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
