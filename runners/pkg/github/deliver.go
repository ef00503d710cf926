package github

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/actions/scaleset"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/guest"
	"macrack.io/macrack/runners/pkg/sets"
)

// waitForJob is the end of the startup script of an instance. It waits for a configuration in a
// named pipe, and runs the runner with it. The configuration is on no command line and on no disk.
// The runner belongs to the guest agent, so it survives a broken connection.
const waitForJob = `
umask 077
cd "$HOME" || exit 1
mkdir -p .macrack-runner || exit 1
mkfifo .macrack-runner/config || exit 1
config=
while [ -z "$config" ]; do
  IFS= read -r config <.macrack-runner/config || config=
done
: >.macrack-runner/delivered
rm -f .macrack-runner/config
ACTIONS_RUNNER_INPUT_JITCONFIG=$config
export ACTIONS_RUNNER_INPUT_JITCONFIG
unset config
exec %s
`

// deliver writes a configuration from the standard input into the pipe. It prints what it found.
const deliver = `
cd "$HOME/.macrack-runner" 2>/dev/null || { echo wait; exit 0; }
[ -e delivered ] && { echo already; exit 0; }
[ -p config ] || { echo wait; exit 0; }
cat >config || exit 1
n=0
until [ -e delivered ]; do
  n=$((n+1)); [ $n -gt 100 ] && exit 1
  sleep 0.1
done
echo delivered
`

// probe prints whether a guest has its configuration.
const probe = `[ -e "$HOME/.macrack-runner/delivered" ] && echo already || echo wait`

// The outputs of deliver and probe.
const (
	outputAlready   = "already"
	outputDelivered = "delivered"
	outputWait      = "wait"
)

// startupScript returns the startup script of an instance.
func (s *Source) startupScript() string {
	own := s.github.StartupScript
	if own == "" {
		own = "#!/bin/sh\n"
	}
	return strings.TrimRight(own, "\n") + "\n" + fmt.Sprintf(waitForJob, s.github.RunnerPath)
}

// Start registers a runner with the name of the instance, and hands its configuration over to the
// guest. The configuration is never stored: each attempt has a new one, and a runner whose
// configuration was lost is removed.
func (s *Source) Start(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	client, scaleSetID := s.connection()
	if client == nil {
		return fmt.Errorf("%w: no connection to GitHub", sets.ErrWait)
	}
	setting := &scaleset.RunnerScaleSetJitRunnerSetting{Name: instance.Name, WorkFolder: "_work"}
	jit, err := client.GenerateJitRunnerConfig(ctx, setting, scaleSetID)
	if errors.Is(err, scaleset.RunnerExistsError) {
		output, probeErr := guest.Output(ctx, s.guests, instance, nil, probe)
		if probeErr != nil {
			return probeErr
		}
		if strings.TrimSpace(output) == outputAlready {
			return nil
		}
		if err := s.remove(ctx, client, instance.Name); err != nil {
			if errors.Is(err, sets.ErrRunning) {
				return nil
			}
			return err
		}
		jit, err = client.GenerateJitRunnerConfig(ctx, setting, scaleSetID)
	}
	if err != nil {
		return err
	}
	output, err := guest.Output(ctx, s.guests, instance, strings.NewReader(jit.EncodedJITConfig+"\n"), deliver)
	if err != nil {
		return err
	}
	switch strings.TrimSpace(output) {
	case outputDelivered:
		return nil
	case outputAlready:
		// An earlier configuration has arrived, and its runner has ended since: this one is
		// surplus.
		return ignoreRunning(s.remove(ctx, client, instance.Name))
	case outputWait:
		return errors.Join(sets.ErrWait, ignoreRunning(s.remove(ctx, client, instance.Name)))
	}
	return fmt.Errorf("the connection to the guest of instance %q broke while its configuration was handed over", instance.Name)
}

// remove removes a runner from GitHub, if it exists.
func (s *Source) remove(ctx context.Context, client *scaleset.Client, name string) error {
	runner, err := client.GetRunnerByName(ctx, name)
	if err != nil || runner == nil {
		return err
	}
	err = client.RemoveRunner(ctx, int64(runner.ID))
	switch {
	case errors.Is(err, scaleset.RunnerNotFoundError):
		return nil
	case errors.Is(err, scaleset.JobStillRunningError):
		return sets.ErrRunning
	}
	return err
}

func ignoreRunning(err error) error {
	if errors.Is(err, sets.ErrRunning) {
		return nil
	}
	return err
}
