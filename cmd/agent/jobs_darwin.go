package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	agentslots "macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/rules"
)

// launchAgents are the slots' jobs in the user's Library/LaunchAgents, and the agent's daemon.
type launchAgents struct{}

func newJobs() jobs { return launchAgents{} }

func (launchAgents) agent() []string { return []string{agentslots.AgentLabel} }

func (launchAgents) slots() []string {
	var labels []string
	for slot := range rules.MaxVMsPerMac {
		labels = append(labels, agentslots.SlotLabel(slot))
	}
	return labels
}

func (launchAgents) stop(ctx context.Context, label string) error {
	if label == agentslots.AgentLabel {
		return stopDaemon(ctx)
	}
	job := agentslots.LaunchdDomain(os.Getuid()) + "/" + label
	if exec.CommandContext(ctx, "/bin/launchctl", "print", job).Run() == nil {
		if out, err := exec.CommandContext(ctx, "/bin/launchctl", "bootout", job).CombinedOutput(); err != nil {
			return fmt.Errorf("launchctl bootout %s: %w: %s", job, err, strings.TrimSpace(string(out)))
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	err = os.Remove(filepath.Join(home, "Library", "LaunchAgents", label+".plist"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// stopDaemon returns an error while the daemon is loaded: only root can stop it.
func stopDaemon(ctx context.Context) error {
	job := agentslots.AgentDomain + "/" + agentslots.AgentLabel
	if exec.CommandContext(ctx, "/bin/launchctl", "print", job).Run() != nil {
		return nil
	}
	return fmt.Errorf("the agent is a daemon, which only an administrator can stop; run `sudo launchctl bootout %s`, then uninstall again", job)
}

func (launchAgents) remainingSteps() []string {
	return []string{
		"sudo rm -rf " + defaultStateDir + " /usr/local/var/log/macrack /usr/local/share/macrack",
		"sudo rm -f /Library/LaunchDaemons/" + agentslots.AgentLabel + ".plist",
		"sudo rm -f /usr/local/bin/macrack-agent /usr/local/bin/macrack-vm /etc/sudoers.d/macrack /etc/newsyslog.d/macrack.conf",
		"sudo pkgutil --forget io.macrack.agent",
	}
}
