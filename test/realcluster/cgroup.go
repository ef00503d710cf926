package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// shares is the weight of all pods; a process has 1024.
	shares = "10240"
)

// cgroups are the directories that this program made, parents first. Control groups outlive the
// processes in them.
type cgroups []string

// makeCgroups makes a control group with children in every hierarchy. It is below that of this
// process in the hierarchy of the CPU, so pods have the priority of this process.
func makeCgroups(children ...string) (group string, made cgroups, err error) {
	hierarchies, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return "", nil, err
	}
	base, err := cpuGroup()
	if err != nil {
		return "", nil, err
	}
	group = filepath.Join(base, statePrefix+strconv.Itoa(os.Getpid()))
	// By default, all pods together weigh as much as one process beside them.
	defer func() {
		if err == nil {
			err = os.WriteFile(filepath.Join(cgroupRoot, "cpu", group, "cpu.shares"), []byte(shares), 0o644)
		}
	}()
	for _, hierarchy := range hierarchies {
		for _, child := range children {
			if !hierarchy.IsDir() {
				continue
			}
			err := made.make(filepath.Join(cgroupRoot, hierarchy.Name()), filepath.Join(group, child))
			if err != nil {
				return "", made, err
			}
		}
	}
	return group, made, nil
}

// make makes a group and its parents in a hierarchy.
func (c *cgroups) make(hierarchy, group string) error {
	dir := hierarchy
	for part := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
		parent := dir
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			return err
		}
		*c = append(*c, dir)
		if err := inheritCPUs(parent, dir); err != nil {
			return err
		}
	}
	return nil
}

// inheritCPUs copies the CPUs and memory nodes, which a new group of the hierarchy cpuset lacks.
func inheritCPUs(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		data, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// cpuGroup returns the group of this process in the hierarchy of the CPU.
func cpuGroup() (string, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 && slices.Contains(strings.Split(parts[1], ","), "cpu") {
			return parts[2], nil
		}
	}
	return "", errors.New("no cgroup v1 hierarchy with the controller cpu; the test has only been tried with cgroup v1")
}

// remove removes the groups with those that a kubelet and containers have made in them.
func (c cgroups) remove() error {
	var errs error
	for _, dir := range slices.Backward(c) {
		errs = errors.Join(errs, removeTree(dir))
	}
	return errs
}

// removeTree removes a group and the groups in it. Its files are not removable.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(dirs) {
		if err := syscall.Rmdir(dir); err != nil {
			return fmt.Errorf("removing control group %s: %w", dir, err)
		}
	}
	return nil
}

// ownCgroups returns the groups of this program in all hierarchies.
func ownCgroups() ([]string, error) {
	base, err := cpuGroup()
	if err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(cgroupRoot, "*", base, statePrefix+strconv.Itoa(os.Getpid())))
}

// removeStale removes the groups and the state of earlier runs that were killed.
func removeStale() error {
	base, err := cpuGroup()
	if err != nil {
		return err
	}
	groups, err := filepath.Glob(filepath.Join(cgroupRoot, "*", base, statePrefix+"*"))
	for _, group := range groups {
		if !alive(group) {
			err = errors.Join(err, removeTree(group))
		}
	}
	states, globErr := filepath.Glob(filepath.Join(stateParent, statePrefix+"*"))
	err = errors.Join(err, globErr)
	for _, state := range states {
		if !alive(state) {
			err = errors.Join(err, os.RemoveAll(state))
		}
	}
	return err
}

// alive reports whether the program runs whose pid is in the name of a group or a state.
func alive(path string) bool {
	pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), statePrefix), "-")
	_, err := os.Stat("/proc/" + pid)
	return err == nil
}
