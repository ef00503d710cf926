package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	guestv1 "macrack.io/macrack/pkg/vm/guest/v1"
)

const (
	// notEnded is the exit code of a script that has not exited by itself.
	notEnded = 255
	// scriptName is the file of a running startup script in the home directory.
	scriptName = ".macrack-startup"
)

// record is the state that survives a restart of the guest: setup.json.
type record struct {
	InstanceUID string `json:"instanceUID"`
	// Done reports whether the setup has ended, with Result.
	Done   bool              `json:"done"`
	Result guest.SetupResult `json:"result"`
}

// setup is the setup of a guest, which runs once.
type setup struct {
	config Config

	mu      sync.Mutex
	record  record
	running bool          // the script runs in this process
	written int64         // bytes of output in the file
	changed chan struct{} // closed and replaced on each change of these fields
	cancel  context.CancelFunc
	ended   sync.WaitGroup
}

func openSetup(config Config) (*setup, error) {
	if err := os.MkdirAll(config.StateDir, 0o700); err != nil {
		return nil, err
	}
	s := &setup{config: config, changed: make(chan struct{}), cancel: func() {}}
	data, err := os.ReadFile(s.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &s.record); err != nil {
		return nil, fmt.Errorf("%s: %w", s.recordPath(), err)
	}
	if info, err := os.Stat(s.outputPath()); err == nil {
		s.written = info.Size()
	}
	if config.Shell != nil {
		_ = os.Remove(filepath.Join(config.Shell.Home, scriptName))
	}
	if !s.record.Done {
		return s, s.finish(guest.SetupResult{ExitCode: notEnded, Reason: "the guest was restarted while the startup script ran; the script is not repeated"})
	}
	return s, nil
}

func (s *setup) recordPath() string { return filepath.Join(s.config.StateDir, "setup.json") }
func (s *setup) outputPath() string { return filepath.Join(s.config.StateDir, "startup.log") }

// begin starts the setup, unless it has already run for this instance.
func (s *setup) begin(request *guestv1.SetupRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case request.GetInstanceUid() == "":
		return status.Error(codes.InvalidArgument, "the instance UID is missing")
	case s.record.InstanceUID == request.GetInstanceUid():
		return nil
	case s.running:
		return status.Errorf(codes.FailedPrecondition, "the guest is already set up as instance %s", s.record.InstanceUID)
	}
	if err := s.installKeys(request.GetSshAuthorizedKeys()); err != nil {
		return status.Errorf(codes.Internal, "failed to install the SSH keys: %v", err)
	}
	if err := os.Remove(s.outputPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return status.Errorf(codes.Internal, "%v", err)
	}
	// The record is written before the script can run, so that it never runs twice.
	next := record{InstanceUID: request.GetInstanceUid(), Done: request.GetStartupScript() == "" && s.config.GrowDisk == nil}
	if err := contract.WriteJSON(s.recordPath(), next); err != nil {
		return status.Errorf(codes.Internal, "%v", err)
	}
	s.record, s.written = next, 0
	if next.Done {
		return nil
	}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	s.running = true
	s.ended.Go(func() { s.run(ctx, request) })
	return nil
}

// environment returns variables as entries NAME=VALUE. They are neither logged nor stored.
func environment(variables []*guestv1.EnvironmentVariable) []string {
	var all []string
	for _, v := range variables {
		all = append(all, v.GetName()+"="+string(v.GetValue()))
	}
	return all
}

// run runs the script, for as long as the guest runs. The agent's log contains neither the script
// nor its output.
func (s *setup) run(ctx context.Context, request *guestv1.SetupRequest) {
	defer s.cancel()
	result := guest.SetupResult{ExitCode: notEnded}
	log, err := os.OpenFile(s.outputPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		output := &limited{file: log, grown: s.grown}
		s.growDisk(ctx, output)
		variables := environment(request.GetEnvironment())
		if request.GetCaches() {
			variables = append(s.config.Caches.prepare(ctx, s.config.Clock, output), variables...)
		}
		result.ExitCode, err = s.script(ctx, request.GetStartupScript(), variables, output)
		err = errors.Join(err, log.Close())
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		// The agent exits. Its successor finds the interrupted script and reports it.
		return
	case err != nil:
		result.Reason = fmt.Sprintf("the startup script failed: %v", err)
	}
	klog.InfoS("Startup script ended", "exitCode", result.ExitCode, "reason", result.Reason)
	if err := s.finish(result); err != nil {
		klog.ErrorS(err, "Failed to store the result of the startup script")
	}
}

// growDisk grows the file system. A failure does not end the setup: the image's size may suffice.
func (s *setup) growDisk(ctx context.Context, output io.Writer) {
	if s.config.GrowDisk == nil {
		return
	}
	if err := s.config.GrowDisk(ctx); err != nil {
		klog.ErrorS(err, "Failed to grow the disk")
		fmt.Fprintf(output, "macrack-guest-agent: the file system keeps the size of the image: %v\n", err)
	}
}

// script runs the script in the login session of the user, or else without a session.
func (s *setup) script(ctx context.Context, script string, environment []string, output io.Writer) (int32, error) {
	if script == "" {
		return 0, nil
	}
	if s.config.Shell == nil {
		return s.config.Script(ctx, script, environment, func(data []byte) { _, _ = output.Write(data) }), nil
	}
	path := filepath.Join(s.config.Shell.Home, scriptName)
	if err := contract.WriteFile(path, []byte(script)); err != nil {
		return notEnded, err
	}
	defer os.Remove(path)
	if err := errors.Join(os.Chmod(path, 0o700), s.config.Shell.own(path)); err != nil {
		return notEnded, err
	}
	args := []string{"/bin/sh", path}
	if strings.HasPrefix(script, "#!") {
		args = args[1:]
	}
	if s.config.Session != nil {
		if s.config.Session.await(ctx) {
			return s.config.Session.run(ctx, args, environment, output)
		}
		if s.config.Session.Patience > 0 {
			fmt.Fprintln(output, "macrack-guest-agent: no user is logged in; the script runs without a login session")
		}
	}
	cmd := s.config.Shell.command(ctx, args)
	cmd.Env = append(slices.Clip(cmd.Env), environment...)
	cmd.Stdout, cmd.Stderr = output, output // the same writer, so that writes are serialized
	code, err := exitCode(cmd, cmd.Run())
	if err != nil {
		code = notEnded
	}
	return code, err
}

// limited writes at most MaxScriptOutput bytes and drops the rest.
type limited struct {
	file    *os.File
	written int64
	grown   func(int64)
}

func (l *limited) Write(data []byte) (int, error) {
	if room := guest.MaxScriptOutput - l.written; room > 0 {
		n, err := l.file.Write(data[:min(int64(len(data)), room)])
		l.written += int64(n)
		l.grown(l.written)
		if err != nil {
			klog.ErrorS(err, "Failed to store output of the startup script")
			l.written = guest.MaxScriptOutput
		}
	}
	return len(data), nil // output errors must not end a script
}

func (s *setup) grown(written int64) {
	s.change(func() { s.written = written })
}

func (s *setup) finish(result guest.SetupResult) error {
	s.mu.Lock()
	next := s.record
	s.mu.Unlock()
	next.Done, next.Result = true, result
	err := contract.WriteJSON(s.recordPath(), next)
	s.change(func() { s.record, s.running = next, false })
	return err
}

func (s *setup) change(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

// close kills the script, if it runs.
func (s *setup) close() {
	s.mu.Lock()
	cancel := s.cancel
	s.mu.Unlock()
	cancel()
	s.ended.Wait()
}

func (s *setup) look() (record, int64, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record, s.written, s.changed
}

// installKeys adds the keys that are missing from the user's authorized_keys.
func (s *setup) installKeys(keys []string) error {
	if s.config.Shell == nil || len(keys) == 0 {
		return nil
	}
	shell := s.config.Shell
	dir := filepath.Join(shell.Home, ".ssh")
	path := filepath.Join(dir, "authorized_keys")
	if err := os.Mkdir(dir, 0o700); err == nil {
		err = shell.own(dir)
		if err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if len(data) == 0 {
		lines = nil
	}
	for _, key := range keys {
		if strings.ContainsAny(key, "\r\n") {
			return errors.New("a key has more than one line")
		}
		if !slices.Contains(lines, key) {
			lines = append(lines, key)
		}
	}
	if err := contract.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n")); err != nil {
		return err
	}
	return shell.own(path)
}

// Setup implements guestv1.GuestServer.
func (a *Agent) Setup(request *guestv1.SetupRequest, stream guestv1.Guest_SetupServer) error {
	if a.config.InSession {
		return errInSession
	}
	if err := a.setup.begin(request); err != nil {
		return err
	}
	return a.setup.follow(stream, max(request.GetOutputOffset(), 0))
}

// follow sends the output from offset on, and then the result.
func (s *setup) follow(stream guestv1.Guest_SetupServer, offset int64) error {
	buffer := make([]byte, chunk)
	for {
		record, written, changed := s.look()
		for offset < written {
			n, err := readAt(s.outputPath(), buffer[:min(chunk, written-offset)], offset)
			if err != nil {
				return status.Errorf(codes.Internal, "%v", err)
			}
			offset += int64(n)
			if err := stream.Send(&guestv1.SetupResponse{Kind: &guestv1.SetupResponse_Output{Output: buffer[:n]}}); err != nil {
				return err
			}
		}
		if record.Done {
			return stream.Send(&guestv1.SetupResponse{Kind: &guestv1.SetupResponse_Result{Result: &guestv1.SetupResult{
				ExitCode: record.Result.ExitCode, Reason: record.Result.Reason,
			}}})
		}
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-changed:
		}
	}
}

func readAt(path string, buffer []byte, offset int64) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err := f.ReadAt(buffer, offset)
	if errors.Is(err, io.EOF) && n > 0 {
		err = nil
	}
	return n, err
}
