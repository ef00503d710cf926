package agent

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// drain is how long output is read after a command has exited while background processes hold its
// streams open.
const drain = 2 * time.Second

// Shell is the user, directory and environment of commands.
type Shell struct {
	// Home is the working directory, and $HOME.
	Home string
	// Env is the complete environment.
	Env []string
	// Credential is the user; nil selects the agent's own.
	Credential *syscall.Credential
}

// UserShell returns the shell of a user; an empty name selects the agent's own user. Only root may
// select another. home, if not empty, overrides the user's home directory.
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
		"HOME=" + home, "USER=" + u.Username, "LOGNAME=" + u.Username, "SHELL=" + loginShell(u.Username), "LANG=en_US.UTF-8",
		"PATH=" + os.Getenv("PATH"),
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

// InheritEnv adds the environment of a login session, which takes precedence. It has the user's own
// shell and temporary folder.
func (s *Shell) InheritEnv(session []string) { s.Env = append(s.Env, session...) }

// loginShell returns the shell of a user's account, or /bin/sh.
func loginShell(name string) string {
	var shell string
	if runtime.GOOS == "darwin" {
		out, _ := exec.Command("/usr/bin/dscl", ".", "-read", "/Users/"+name, "UserShell").Output()
		shell = shellOfRecord(string(out))
	} else {
		passwd, _ := os.ReadFile("/etc/passwd")
		shell = shellOfPasswd(string(passwd), name)
	}
	return cmp.Or(shell, "/bin/sh")
}

// shellOfRecord returns the shell in the output of dscl: "UserShell: /bin/zsh".
func shellOfRecord(record string) string {
	shell, _ := strings.CutPrefix(strings.TrimSpace(record), "UserShell: ")
	if !filepath.IsAbs(shell) {
		return ""
	}
	return shell
}

// shellOfPasswd returns the shell of a user in the format of passwd(5).
func shellOfPasswd(passwd, name string) string {
	for line := range strings.Lines(passwd) {
		if fields := strings.Split(strings.TrimSpace(line), ":"); len(fields) == 7 && fields[0] == name {
			return fields[6]
		}
	}
	return ""
}

// maxGroupsDarwin is NGROUPS_MAX of macOS: setgroups(2) refuses more with EINVAL. Linux accepts
// 65536.
const maxGroupsDarwin = 16

// supplementary returns the groups of a user that a process can have on an operating system. The
// primary group is first; on macOS it counts towards the limit.
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

// own makes the shell's user the owner of a file or directory.
func (s *Shell) own(path string) error {
	if s.Credential == nil {
		return nil
	}
	return os.Lchown(path, int(s.Credential.Uid), int(s.Credential.Gid))
}

// command prepares a command in its own session. When ctx ends, the session's first process group
// is killed.
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

// exitCode returns the exit code that a shell would report for a finished command. A command that
// fails is not an error.
func exitCode(cmd *exec.Cmd, err error) (int32, error) {
	if cmd.ProcessState == nil {
		return 0, err
	}
	if ended, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ended.Signaled() {
		return 128 + int32(ended.Signal()), nil
	}
	return int32(cmd.ProcessState.ExitCode()), nil
}
