package gitlab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/guest"
	"macrack.io/macrack/runners/pkg/machines"
	"macrack.io/macrack/runners/pkg/observe"
	"macrack.io/macrack/runners/pkg/sets"
)

const (
	// contactTimeout is the time for which a guest may be unreachable while a script runs in it.
	contactTimeout = 10 * time.Minute
	// retryPause is the pause after a broken connection.
	retryPause = time.Second
)

// launch stores a script from the standard input, and starts it in a session of its own, so that a
// broken connection does not end it. %[1]s is the folder, and %[2]d the size of the script.
const launch = `
umask 077
d="$HOME/.macrack-gitlab/%[1]s"
[ -e "$d/pid" ] && { echo launched; exit 0; }
mkdir -p "$d" && cat >"$d/script" || exit 1
[ "$(wc -c <"$d/script")" -eq %[2]d ] || { echo incomplete; exit 0; }
run='shell=$(command -v bash || echo sh)
"$shell" "$1/script" >"$1/out" 2>&1 </dev/null
echo $? >"$1/exit.part" && mv "$1/exit.part" "$1/exit"'
: >"$d/out"
if command -v setsid >/dev/null; then
  setsid /bin/sh -c "$run" sh "$d" </dev/null >/dev/null 2>&1 &
else
  set -m
  nohup /bin/sh -c "$run" sh "$d" </dev/null >/dev/null 2>&1 &
fi
echo $! >"$d/pid"
echo launched
`

// follow prints the output of a script from a byte on, until the script ends.
const follow = `
d="$HOME/.macrack-gitlab/%[1]s"
tail -c +%[2]d -f "$d/out" &
tail=$!
while [ ! -e "$d/exit" ] && kill -0 "$(cat "$d/pid")" 2>/dev/null; do sleep 0.2; done
sleep 0.5
kill $tail
`

// outcome prints the exit code of a script, or its state.
const outcome = `
d="$HOME/.macrack-gitlab/%[1]s"
if [ -e "$d/exit" ]; then echo "exit $(cat "$d/exit")"
elif kill -0 "$(cat "$d/pid")" 2>/dev/null; then echo running
elif [ -e "$d/exit" ]; then echo "exit $(cat "$d/exit")"
else echo gone; fi
`

// remainder prints the output of an ended script from a byte on.
const remainder = `tail -c +%[2]d "$HOME/.macrack-gitlab/%[1]s/out"`

// end ends a script and its child processes.
const end = `kill -TERM "-$(cat "$HOME/.macrack-gitlab/%[1]s/pid")"; sleep 1; kill -KILL "-$(cat "$HOME/.macrack-gitlab/%[1]s/pid")"; true`

// Run runs the script of a stage in the machine of the job, and returns its exit code. It returns
// ErrBuild if the script failed.
func (e *Executor) Run(ctx context.Context, script []byte, stage string) (int, error) {
	job, err := e.job()
	if err != nil {
		return 0, err
	}
	instance, err := e.patientMachine(ctx, job)
	switch {
	case err != nil:
		return 0, err
	case instance == nil:
		return 0, fmt.Errorf("job %s has no virtual machine; it was ended, or its timeout has passed", job)
	}
	s := &stageRun{Executor: e, instance: instance, id: utilrand.String(12), lastContact: e.Clock.Now()}
	code, err := s.run(ctx, script)
	switch {
	case err == nil && code != 0:
		err = fmt.Errorf("%w: exit code %d in stage %s", ErrBuild, code, stage)
		if stage == "after_script" {
			return code, err // it does not change the result of the job
		}
		// The end of the job is noted by Cleanup: other stages follow.
		return code, errors.Join(err, e.end(ctx, instance, sets.Failed, false))
	case ctx.Err() != nil:
		s.cancel(context.WithoutCancel(ctx))
	}
	return code, err
}

// stageRun is one script in a guest.
type stageRun struct {
	*Executor
	instance    *instancev1alpha1.MacOSInstance
	id          string
	printed     int64
	lastContact time.Time
}

// run starts the script, follows its output, and returns its exit code. Each step is repeated while
// the machine exists.
func (s *stageRun) run(ctx context.Context, script []byte) (int, error) {
	for launched := false; !launched; {
		output, err := guest.Output(ctx, s.Guests, s.instance, strings.NewReader(string(script)), fmt.Sprintf(launch, s.id, len(script)))
		launched = err == nil && strings.TrimSpace(output) == "launched"
		if !launched {
			if err := s.again(ctx, err); err != nil {
				return 0, err
			}
		}
	}
	for {
		s.lastContact = s.Clock.Now()
		_, _ = s.Guests.Execute(ctx, s.instance, nil, &counted{s.Out, &s.printed}, io.Discard, "/bin/sh", "-c", fmt.Sprintf(follow, s.id, s.printed+1))
		output, err := guest.Output(ctx, s.Guests, s.instance, nil, fmt.Sprintf(outcome, s.id))
		switch state := strings.TrimSpace(output); {
		case err == nil && state == "gone":
			return 0, fmt.Errorf("the script has disappeared from virtual machine %s; it was restarted or the script was killed", s.instance.Name)
		case err == nil && strings.HasPrefix(state, "exit "):
			code, err := strconv.Atoi(strings.TrimPrefix(state, "exit "))
			if err != nil {
				return 0, err
			}
			return code, s.finish(ctx)
		}
		if err := s.again(ctx, err); err != nil {
			return 0, err
		}
	}
}

// finish prints what is missing of the output.
func (s *stageRun) finish(ctx context.Context) error {
	for {
		code, err := s.Guests.Execute(ctx, s.instance, nil, &counted{s.Out, &s.printed}, io.Discard, "/bin/sh", "-c", fmt.Sprintf(remainder, s.id, s.printed+1))
		if err == nil && code == 0 {
			return nil
		}
		if err := s.again(ctx, err); err != nil {
			return err
		}
	}
}

// again waits before the next attempt, or returns an error if no attempt can succeed.
func (s *stageRun) again(ctx context.Context, cause error) error {
	if s.Clock.Since(s.lastContact) > contactTimeout {
		return fmt.Errorf("virtual machine %s was unreachable for %s: %w", s.instance.Name, contactTimeout, cause)
	}
	fresh, err := s.Instances.Get(ctx, s.instance.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && (fresh.UID != s.instance.UID || observe.Machine(fresh).State != machines.Busy):
		return fmt.Errorf("virtual machine %s has ended: %w", s.instance.Name, errors.Join(cause, err))
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.Clock.After(retryPause):
		return nil
	}
}

// cancel ends the script after gitlab-runner has canceled the job.
func (s *stageRun) cancel(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := guest.Output(ctx, s.Guests, s.instance, nil, fmt.Sprintf(end, s.id)); err != nil {
		fmt.Fprintln(s.Log, err)
	}
	if err := s.end(ctx, s.instance, sets.Canceled, false); err != nil {
		fmt.Fprintln(s.Log, err)
	}
}

// counted counts the bytes that it has written.
type counted struct {
	io.Writer
	written *int64
}

// Write implements io.Writer.
func (c *counted) Write(data []byte) (int, error) {
	n, err := c.Writer.Write(data)
	*c.written += int64(n)
	return n, err
}

// WriteExitCode writes the exit code of a script to the file that gitlab-runner names.
func (e *Executor) WriteExitCode(code int) error {
	file := e.Getenv("BUILD_EXIT_CODE_FILE")
	if file == "" {
		return nil
	}
	return os.WriteFile(file, []byte(strconv.Itoa(code)), 0o600)
}
