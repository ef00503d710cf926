package slots

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// AgentLabel is the label of the agent's launchd job.
	AgentLabel = "io.macrack.agent"
	// slotLabelPrefix is the prefix of the labels of the slots' jobs; the slot's number follows.
	slotLabelPrefix = "io.macrack.vm."

	// AgentDomain is the launchd domain of the agent's job: a daemon survives a logout, and macOS
	// does not ask its user for access to the local network.
	AgentDomain = "system"

	launchctl = "/bin/launchctl"
	// startTimeout bounds the start of a job. A late kickstart is harmless: launchd does not start
	// a running job again.
	startTimeout = 30 * time.Second
	// kickstartPause is the time between tries, and jobPoll that between looks at the job.
	kickstartPause = 3 * time.Second
	jobPoll        = 200 * time.Millisecond
)

// jobPID matches the process of a job in the output of launchctl print. A job that does not run has
// none.
var jobPID = regexp.MustCompile(`(?m)^\s*pid = (\d+)$`)

// SlotLabel returns the label of a slot's launchd job.
func SlotLabel(slot int) string { return slotLabelPrefix + strconv.Itoa(slot) }

// LaunchdDomain returns the launchd domain of a user's login session. The jobs belong to it because
// virtual machines need a login session.
func LaunchdDomain(uid int) string { return "gui/" + strconv.Itoa(uid) }

// Launchd launches runners as launchd jobs, one for each slot, which outlive the agent.
// artifacts/macos has the jobs; they name the slots' directories.
type Launchd struct {
	// UID is the user whose login session the jobs belong to.
	UID int
	// run runs a command; nil runs the real command.
	run func(ctx context.Context, name string, args ...string) ([]byte, error)
	// clock is for tests.
	clock clock.Clock
}

// Launch implements Launcher. It returns a nil channel, because the end of the runner is only
// visible in the slot's lock.
//
// A kickstart has no effect while the slot's last runner exits, and launchd may delay it. Therefore
// Launch waits for the last runner, and tries again until the job runs.
func (l *Launchd) Launch(dir contract.SlotDir) (<-chan error, error) {
	slot, err := strconv.Atoi(filepath.Base(string(dir)))
	if err != nil || slot < 0 || slot >= rules.MaxVMsPerMac {
		return nil, fmt.Errorf("%s is not the directory of a slot; there are %d, named by their numbers", dir, rules.MaxVMsPerMac)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	job := LaunchdDomain(l.UID) + "/" + SlotLabel(slot)
	l.poll(ctx, kickstartPause, func() bool { return !l.runs(ctx, job) })
	for {
		if out, err := l.command(ctx, "kickstart", job); err != nil {
			return nil, fmt.Errorf("launchctl kickstart %s: %w: %s; run `macrack-agent doctor` to check the job and the login session", job, err, strings.TrimSpace(string(out)))
		}
		if l.poll(ctx, kickstartPause, func() bool { return l.runs(ctx, job) || begun(dir) }) {
			return nil, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("launchd does not start %s within %s; run `launchctl print %s` to see why", job, startTimeout, job)
		}
	}
}

// begun reports whether a runner has begun to run the slot's VM. It may have exited since.
func begun(dir contract.SlotDir) bool {
	_, err := os.Lstat(dir.StartedPath())
	return err == nil
}

// runs reports whether a job has a process.
func (l *Launchd) runs(ctx context.Context, job string) bool {
	out, err := l.command(ctx, "print", job)
	return err == nil && jobPID.Match(out)
}

// poll waits until condition holds, for at most timeout, and reports whether it does.
func (l *Launchd) poll(ctx context.Context, timeout time.Duration, condition func() bool) bool {
	c := l.clock
	if c == nil {
		c = clock.RealClock{}
	}
	for waited := time.Duration(0); !condition(); waited += jobPoll {
		if waited >= timeout {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-c.After(jobPoll):
		}
	}
	return true
}

func (l *Launchd) command(ctx context.Context, args ...string) ([]byte, error) {
	if l.run != nil {
		return l.run(ctx, launchctl, args...)
	}
	return exec.CommandContext(ctx, launchctl, args...).CombinedOutput()
}
