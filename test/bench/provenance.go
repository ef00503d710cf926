package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// Provenance states where the results of a run come from.
type Provenance struct {
	Date   string `json:"date"`
	Commit string `json:"commit"`
	// Dirty reports that the code has changes that are not in the commit.
	Dirty     bool   `json:"dirty,omitempty"`
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	MemoryGiB int    `json:"memoryGiB"`
}

// provenance describes this machine, and the commit of the repository at root.
func provenance(ctx context.Context, root string) (Provenance, error) {
	p := Provenance{Date: time.Now().UTC().Format(time.DateOnly), Cores: runtime.NumCPU(), CPU: "unknown CPU"}
	commit, err := output(ctx, "git", "-C", root, "rev-parse", "--short", "HEAD")
	if err != nil {
		return p, err
	}
	p.Commit = string(bytes.TrimSpace(commit))
	// A run itself writes documentation.
	changed, err := output(ctx, "git", "-C", root, "status", "--porcelain", "--", ":!docs")
	if err != nil {
		return p, err
	}
	p.Dirty = len(bytes.TrimSpace(changed)) > 0
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(cpu)) {
		if name, model, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			p.CPU = strings.TrimSpace(model)
			break
		}
	}
	memory, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return p, err
	}
	var kib int
	if _, err := fmt.Sscanf(string(memory), "MemTotal: %d kB", &kib); err != nil {
		return p, fmt.Errorf("/proc/meminfo: %w", err)
	}
	p.MemoryGiB = (kib + 1<<19) >> 20
	return p, nil
}

func (p Provenance) String() string {
	commit := p.Commit
	if p.Dirty {
		commit += " with uncommitted changes"
	}
	return fmt.Sprintf("Measured on %s at commit %s. Machine: %s, %d cores, %d GiB of memory.",
		p.Date, commit, p.CPU, p.Cores, p.MemoryGiB)
}
