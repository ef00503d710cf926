package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// began identifies the process with a pid by its start time. It fails for an unused pid, and
// for a zombie.
func began(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat("/proc/self/stat"); err == nil {
			return "", os.ErrProcessDone
		}
		return beganPS(pid)
	}
	if err != nil {
		return "", os.ErrProcessDone
	}
	// The second field, the command in parentheses, may contain any character; the third is the
	// state and the 22nd the start in clock ticks.
	_, rest, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')'):]), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", os.ErrProcessDone
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(boot)) + "/" + fields[19], nil
}

// beganPS is began for systems without /proc.
func beganPS(pid int) (string, error) {
	out, err := exec.Command("ps", "-o", "state=,lstart=", "-p", strconv.Itoa(pid)).Output()
	state, began, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || began == "" || strings.HasPrefix(state, "Z") {
		return "", os.ErrProcessDone
	}
	return strings.TrimSpace(began), nil
}

// StopStrays ends processes of a program whose command line names dir: leftovers of a component,
// such as the simulated VMs, which outlive their agent by design.
func StopStrays(ctx context.Context, program, dir string) error {
	out, err := exec.CommandContext(ctx, "ps", "-axww", "-o", "pid=,args=").Output()
	if err != nil {
		return fmt.Errorf("listing processes: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		pid, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		args = strings.TrimSpace(args)
		if !strings.HasPrefix(args, program+" ") || !strings.Contains(args, dir+string(filepath.Separator)) {
			continue
		}
		if n, err := strconv.Atoi(pid); err == nil && n > 1 {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
	return nil
}
