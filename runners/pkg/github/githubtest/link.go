package githubtest

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// StandIn is a stand-in for run.sh of a runner. Files in its home directory replace its network,
// and Link is the other end. It fails in a virtual machine that has run a job before.
const StandIn = `#!/bin/sh
link=$HOME/link
mkdir "$link" || exit 1
echo $$ >"$link/pid"
printf '%s' "$ACTIONS_RUNNER_INPUT_JITCONFIG" >"$link/hello.part"
mv "$link/hello.part" "$link/hello"
until [ -e "$link/job" ]; do sleep 0.05; done
: >"$link/started"
sleep "$(cat "$link/job")"
: >"$link/done"
`

// Install is a startup script that installs the stand-in in the home directory.
const Install = `#!/bin/sh
mkdir -p "$HOME/actions-runner"
cat >"$HOME/actions-runner/run.sh" <<'EOF'
` + StandIn + `EOF
chmod +x "$HOME/actions-runner/run.sh"
`

// linked is a stand-in that has connected.
type linked struct {
	hello, name           string
	pid                   int
	given, started, ended bool
}

// Link connects the stand-ins whose link folders match a pattern, until ctx ends.
func (s *Server) Link(ctx context.Context, pattern string) {
	known := map[string]*linked{}
	for ctx.Err() == nil {
		dirs, _ := filepath.Glob(pattern)
		found := map[string]bool{}
		for _, dir := range dirs {
			found[dir] = true
			s.serve(dir, known)
		}
		for dir, l := range known {
			if !found[dir] {
				s.end(l, "")
				delete(known, dir)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Server) serve(dir string, known map[string]*linked) {
	hello, err := os.ReadFile(filepath.Join(dir, "hello"))
	if err != nil {
		return
	}
	l := known[dir]
	if l == nil || l.hello != string(hello) {
		if l != nil {
			s.end(l, "")
		}
		l = &linked{hello: string(hello)}
		known[dir] = l
		l.name, err = s.Connect(l.hello)
		if err != nil {
			l.ended = true
		}
		pid, _ := os.ReadFile(filepath.Join(dir, "pid"))
		l.pid, _ = strconv.Atoi(strings.TrimSpace(string(pid)))
	}
	if l.ended {
		return
	}
	alive := syscall.Kill(l.pid, 0) == nil
	if !l.given && alive {
		if job := s.Next(l.name); job != nil {
			l.given = true
			part := filepath.Join(dir, "job.part")
			seconds := strconv.FormatFloat(job.Duration.Seconds(), 'f', 3, 64)
			if os.WriteFile(part, []byte(seconds), 0o600) == nil {
				_ = os.Rename(part, filepath.Join(dir, "job"))
			}
		}
	}
	if !l.started && exists(dir, "started") {
		l.started = true
		s.Started(l.name)
	}
	switch {
	case exists(dir, "done"):
		s.end(l, "succeeded")
	case !alive:
		s.end(l, "")
	}
}

func (s *Server) end(l *linked, result string) {
	if !l.ended {
		l.ended = true
		s.Ended(l.name, result)
	}
}

func exists(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}
