package slots

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// AgentLabel is the label of the agent's launchd job.
	AgentLabel = "io.macrack.agent"
	// slotLabelPrefix is the prefix of the labels of the slots' jobs; the slot's number follows.
	slotLabelPrefix = "io.macrack.vm."

	launchctl = "/bin/launchctl"
	// kickstartTimeout bounds a hanging launchctl. A late kickstart is harmless: launchd does not
	// start a running job again.
	kickstartTimeout = 15 * time.Second
)

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
}

// Launch implements Launcher. It returns a nil channel, because the end of the runner is only
// visible in the slot's lock.
func (l *Launchd) Launch(dir contract.SlotDir) (<-chan error, error) {
	slot, err := strconv.Atoi(filepath.Base(string(dir)))
	if err != nil || slot < 0 || slot >= rules.MaxVMsPerMac {
		return nil, fmt.Errorf("%s is not the directory of a slot; there are %d, named by their numbers", dir, rules.MaxVMsPerMac)
	}
	ctx, cancel := context.WithTimeout(context.Background(), kickstartTimeout)
	defer cancel()
	run := l.run
	if run == nil {
		run = func(ctx context.Context, name string, args ...string) ([]byte, error) {
			return exec.CommandContext(ctx, name, args...).CombinedOutput()
		}
	}
	job := LaunchdDomain(l.UID) + "/" + SlotLabel(slot)
	if out, err := run(ctx, launchctl, "kickstart", job); err != nil {
		return nil, fmt.Errorf("launchctl kickstart %s: %w: %s; run `macrack-agent doctor` to check the job and the login session", job, err, strings.TrimSpace(string(out)))
	}
	return nil, nil
}
