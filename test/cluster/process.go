package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a program that runs in its own session, so that it outlives its starter. Its data are
// in its pid file. Since pids are reused, a pid counts only if its process began at the recorded
// time.
type process struct {
	name    string
	program string   // path of the binary
	args    []string // without argv[0]
	ports   []int    // loopback ports that it listens on

	pidFile string
	logFile string

	// ready reports whether the program serves.
	ready func(context.Context) error
}

// pidRecord is the content of a pid file.
type pidRecord struct {
	PID     int      `json:"pid"`
	Began   string   `json:"began"` // see processBegan
	Program string   `json:"program"`
	Digest  string   `json:"digest"` // of the binary when it was started
	Args    []string `json:"args"`
}

// stopGrace is the time between SIGTERM and SIGKILL.
const stopGrace = 20 * time.Second

const (
	maxLogSize = 64 << 20 // bytes; a longer log is moved aside at the next start
	logTail    = 12       // lines of the log that an error quotes
)

// children are processes that this program started itself and therefore has to reap.
var children sync.Map // pid -> chan struct{}, closed at the end

// running returns the record of the running process; ok is false if it does not run.
func (p *process) running() (rec pidRecord, ok bool) {
	data, err := os.ReadFile(p.pidFile)
	if err != nil || json.Unmarshal(data, &rec) != nil || rec.PID <= 1 {
		return pidRecord{}, false
	}
	began, err := processBegan(rec.PID)
	return rec, err == nil && began == rec.Began
}

// outdated reports whether the process runs with another binary or other arguments than a new start
// would use.
func (p *process) outdated() bool {
	rec, ok := p.running()
	if !ok {
		return false
	}
	digest, err := fileDigest(p.program)
	return err != nil || rec.Program != p.program || rec.Digest != digest || !slices.Equal(rec.Args, p.args)
}

// start starts the program, which must not be running, and does not wait until it serves.
func (p *process) start() error {
	for _, port := range p.ports {
		if err := portFree(port); err != nil {
			return fmt.Errorf("starting %s: %w", p.name, err)
		}
	}
	digest, err := fileDigest(p.program)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("starting %s: program %s not found", p.name, p.program)
	}
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	if info, err := os.Stat(p.logFile); err == nil && info.Size() > maxLogSize {
		if err := os.Rename(p.logFile, p.logFile+".old"); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()

	cmd := exec.Command(p.program, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = filepath.Dir(p.logFile)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	ended := make(chan struct{})
	children.Store(cmd.Process.Pid, ended)
	go func() {
		err := cmd.Wait()
		if err != nil {
			if f, openErr := os.OpenFile(p.logFile, os.O_APPEND|os.O_WRONLY, 0o644); openErr == nil {
				fmt.Fprintf(f, "--- %s ended: %v\n", p.name, err)
				f.Close()
			}
		}
		children.Delete(cmd.Process.Pid)
		close(ended)
	}()

	began, err := processBegan(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("%s ended at once%s", p.name, p.tail())
	}
	rec := pidRecord{PID: cmd.Process.Pid, Began: began, Program: p.program, Digest: digest, Args: p.args}
	data, err := json.MarshalIndent(rec, "", "  ")
	if err == nil {
		err = writeFile(p.pidFile, append(data, '\n'), 0o644)
	}
	if err != nil {
		// Without a pid file the process could not be stopped later.
		_ = cmd.Process.Kill()
		return err
	}
	return nil
}

// waitReady waits until the program serves. It fails when the program ends or ctx does, with the
// end of the log.
func (p *process) waitReady(ctx context.Context) error {
	last := errors.New("none")
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		if _, ok := p.running(); !ok {
			return false, fmt.Errorf("%s has ended%s", p.name, p.tail())
		}
		if p.ready == nil {
			return true, nil
		}
		if err := p.ready(ctx); err != nil {
			last = err
			return false, nil
		}
		return true, nil
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s is not ready: %w (last answer: %w)%s", p.name, context.Cause(ctx), last, p.tail())
	}
	return err
}

// stop ends the program: SIGTERM, then SIGKILL after stopGrace. It is not an error if the program
// does not run.
func (p *process) stop(ctx context.Context) error {
	rec, ok := p.running()
	if !ok {
		return removeIfExists(p.pidFile)
	}
	if err := syscall.Kill(rec.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stopping %s (pid %d): %w", p.name, rec.PID, err)
	}
	grace, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if err := p.waitEnded(grace, rec); err == nil {
		return removeIfExists(p.pidFile)
	}
	return p.kill(ctx)
}

// kill ends the program like a crash, and returns when it is gone.
func (p *process) kill(ctx context.Context) error {
	rec, ok := p.running()
	if !ok {
		return removeIfExists(p.pidFile)
	}
	if err := syscall.Kill(rec.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing %s (pid %d): %w", p.name, rec.PID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if err := p.waitEnded(ctx, rec); err != nil {
		return fmt.Errorf("%s (pid %d) still runs after SIGKILL: %w", p.name, rec.PID, err)
	}
	return removeIfExists(p.pidFile)
}

func (p *process) waitEnded(ctx context.Context, rec pidRecord) error {
	if ended, ok := children.Load(rec.PID); ok {
		select {
		case <-ended.(chan struct{}):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return poll(ctx, func(context.Context) (bool, error) {
		began, err := processBegan(rec.PID)
		return err != nil || began != rec.Began, nil
	})
}

// tail quotes the end of the log for an error message.
func (p *process) tail() string {
	lines, err := lastLines(p.logFile, logTail)
	if err != nil || len(lines) == 0 {
		return fmt.Sprintf("\n  (its log %s is empty)", p.logFile)
	}
	return fmt.Sprintf("\n  the end of %s:\n    %s", p.logFile, strings.Join(lines, "\n    "))
}

func lastLines(path string, n int) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const window = 32 << 10
	if info, err := f.Stat(); err == nil && info.Size() > window {
		if _, err := f.Seek(-window, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return nil, nil
	}
	lines := strings.Split(string(data), "\n")
	// The cause of a panic stands above a long trace.
	cause := slices.IndexFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")
	})
	if cause >= 0 && len(lines)-cause > n {
		return append(lines[cause:cause+n:cause+n], "..."), nil
	}
	return lines[max(0, len(lines)-n):], nil
}

// processBegan identifies the process with a pid by its start time. It fails for an unused pid, and
// for a zombie.
func processBegan(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat("/proc/self/stat"); err == nil {
			return "", os.ErrProcessDone
		}
		return processBeganPS(pid)
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

// processBeganPS is processBegan for systems without /proc.
func processBeganPS(pid int) (string, error) {
	out, err := exec.Command("ps", "-o", "state=,lstart=", "-p", strconv.Itoa(pid)).Output()
	state, began, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || began == "" || strings.HasPrefix(state, "Z") {
		return "", os.ErrProcessDone
	}
	return strings.TrimSpace(began), nil
}

// stopStrays ends processes of a program whose command line names dir: leftovers of a component,
// such as the simulated VMs, which outlive their agent by design.
func stopStrays(ctx context.Context, program, dir string) error {
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

var (
	digestsMu sync.Mutex
	digests   = map[string]string{} // by path, size and modification time
)

func fileDigest(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	key := fmt.Sprint(path, info.Size(), info.ModTime().UnixNano())
	digestsMu.Lock()
	defer digestsMu.Unlock()
	if d, ok := digests[key]; ok {
		return d, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	digests[key] = hex.EncodeToString(h.Sum(nil))
	return digests[key], nil
}

// writeFile replaces a file atomically.
func writeFile(path string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// poll calls done five times a second until it returns true or an error, or ctx ends.
func poll(ctx context.Context, done func(context.Context) (bool, error)) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(ctx); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
