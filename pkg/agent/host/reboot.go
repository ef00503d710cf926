package host

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// Rebooter is a host that can be rebooted. The reboot ends the virtual machines and the agent.
type Rebooter interface {
	Reboot(ctx context.Context) error
}

// sudo reboots a Mac. The package of artifacts/macos permits only this command to the agent's user.
type sudo struct {
	// run runs a command; nil runs the real command.
	run func(ctx context.Context, name string, args ...string) ([]byte, error)
}

// Reboot implements Rebooter.
func (s sudo) Reboot(ctx context.Context) error {
	run := s.run
	if run == nil {
		run = func(ctx context.Context, name string, args ...string) ([]byte, error) {
			return exec.CommandContext(ctx, name, args...).CombinedOutput()
		}
	}
	if out, err := run(ctx, "/usr/bin/sudo", "-n", "/sbin/shutdown", "-r", "now"); err != nil {
		return fmt.Errorf("sudo shutdown -r now: %w: %s; is /etc/sudoers.d/macrack installed?", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Reboot implements Rebooter: the host gets a new boot ID, and its kernel forgets its virtual
// machines.
func (s *Simulated) Reboot(context.Context) error { return s.Dir.Reboot(NewBootID()) }
