package agent

import (
	"context"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// drain is how long output is read on after a command has ended, if processes that
// it left behind keep its streams open.
const drain = 2 * time.Second

// Shell is as whom, where and with which environment commands run.
type Shell struct {
	// Home is the working directory, and $HOME.
	Home string
	// Env is the whole environment.
	Env []string
	// Credential is the user; nil for the agent's own.
	Credential *syscall.Credential
}

// UserShell returns the shell of a user, or of the agent's own if name is empty.
// Only root may name another. home takes the place of the user's home directory if
// it is not empty.
func UserShell(name, home string) (*Shell, error) {
	u, err := user.Current()
	if name != "" {
		u, err = user.Lookup(name)
	}
	if err != nil {
		return nil, err
	}
	if home == "" {
		home = u.HomeDir
	}
	s := &Shell{Home: home, Env: []string{
		"HOME=" + home, "USER=" + u.Username, "LOGNAME=" + u.Username, "SHELL=/bin/sh", "LANG=en_US.UTF-8",
		"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir(),
	}}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil || int(uid) == os.Getuid() {
		return s, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	s.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, err
	}
	var all []uint32
	for _, text := range groups {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, err
		}
		all = append(all, uint32(id))
	}
	s.Credential.Groups = supplementary(runtime.GOOS, s.Credential.Gid, all)
	return s, nil
}

// maxGroupsDarwin is NGROUPS_MAX of macOS: setgroups(2) refuses more with EINVAL.
// Linux takes 65536.
const maxGroupsDarwin = 16

// supplementary returns which groups of a user a process of an operating system can
// have. The primary one is the first; on macOS it takes one of the places.
func supplementary(system string, primary uint32, groups []uint32) []uint32 {
	kept := []uint32{primary}
	for _, id := range groups {
		if !slices.Contains(kept, id) {
			kept = append(kept, id)
		}
	}
	if system == "darwin" && len(kept) > maxGroupsDarwin {
		kept = kept[:maxGroupsDarwin]
	}
	return kept
}

// own gives a file or directory to the shell's user.
func (s *Shell) own(path string) error {
	if s.Credential == nil {
		return nil
	}
	return os.Lchown(path, int(s.Credential.Uid), int(s.Credential.Gid))
}

// command prepares a command in a session of its own. When ctx ends, the session's
// first process group is killed.
func (s *Shell) command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = s.Home, s.Env
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Setsid = true
	cmd.SysProcAttr.Credential = s.Credential
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = drain
	return cmd
}

// exitCode is what a shell would say of a command that has ended. An error of the
// command itself is none.
func exitCode(cmd *exec.Cmd, err error) (int32, error) {
	if cmd.ProcessState == nil {
		return 0, err
	}
	if ended, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ended.Signaled() {
		return 128 + int32(ended.Signal()), nil
	}
	return int32(cmd.ProcessState.ExitCode()), nil
}
