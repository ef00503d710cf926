package sim

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// maxSweeps bounds the search for processes that fork while they are searched.
const maxSweeps = 100

// sweep kills the processes that a guest's commands have left behind, by their home directory. It
// stops all of them first, because a stopped process does not fork.
func sweep(home string) {
	stopped := map[int]bool{}
	for range maxSweeps {
		found := false
		for _, pid := range processes(home) {
			if !stopped[pid] {
				found, stopped[pid] = true, true
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		if !found {
			break
		}
	}
	for _, pid := range processes(home) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// processes returns the processes whose home directory is home.
func processes(home string) []int {
	var all []int
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		environ, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(append([]byte{0}, environ...), []byte("\x00HOME="+home+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			all = append(all, pid)
		}
	}
	return all
}
