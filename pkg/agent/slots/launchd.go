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
	// slotLabelPrefix begins the labels of the slots' jobs; the slot's number follows.
	slotLabelPrefix = "io.macrack.vm."

	launchctl = "/bin/launchctl"
	// kickstartTimeout bounds a launchctl that hangs: one that is late does no harm,
	// as a job that runs is not started again.
	kickstartTimeout = 15 * time.Second
)

// SlotLabel is the label of the launchd job of a slot.
func SlotLabel(slot int) string { return slotLabelPrefix + strconv.Itoa(slot) }

// LaunchdDomain is the launchd domain of a user's login session, to which the jobs
// belong: virtual machines need one.
func LaunchdDomain(uid int) string { return "gui/" + strconv.Itoa(uid) }

// Launchd launches runners as launchd jobs, one for each slot, which outlive the
// agent. The jobs are those of artifacts/macos; they name the slots' directories.
type Launchd struct {
	// UID is the user whose login session the jobs belong to.
	UID int
	// run runs a command; nil for the real thing.
	run func(ctx context.Context, name string, args ...string) ([]byte, error)
}

// Launch implements Launcher. It cannot know when the runner ends: the slot's lock
// tells.
func (l *Launchd) Launch(dir contract.SlotDir) (<-chan error, error) {
	slot, err := strconv.Atoi(filepath.Base(string(dir)))
	if err != nil || slot < 0 || slot >= rules.MaxVMsPerMac {
		return nil, fmt.Errorf("%s is not the directory of a slot: there are %d, named by their numbers", dir, rules.MaxVMsPerMac)
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
		return nil, fmt.Errorf("launchctl kickstart %s: %w: %s; is the job loaded, and the user logged in? `macrack-agent doctor` says", job, err, strings.TrimSpace(string(out)))
	}
	return nil, nil
}
