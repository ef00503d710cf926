package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/version"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/runner"
	"macrack.io/macrack/pkg/vm/sim"
)

type options struct {
	slotDir       string
	backend       string
	simHostDir    string
	simGuestAgent string
}

// hypervisor is a runner.Backend that can also generate machine identifiers.
type hypervisor struct {
	runner.Backend
	newMachineID func() (string, error)
}

func (o *options) hypervisor() (*hypervisor, error) {
	switch o.backend {
	case "sim":
		if o.simHostDir == "" {
			return nil, errors.New("--sim-host-dir is required with --backend=sim")
		}
		backend := &sim.Backend{Host: sim.HostDir(o.simHostDir), Clock: clock.RealClock{}, Network: true}
		if o.simGuestAgent != "" {
			backend.GuestAgent = []string{o.simGuestAgent}
		}
		return &hypervisor{
			Backend:      backend,
			newMachineID: func() (string, error) { return sim.NewMachineID(), nil },
		}, nil
	case "vz":
		return newVZ()
	default:
		return nil, fmt.Errorf("invalid --backend %q; use sim or vz", o.backend)
	}
}

func newCommand() *cobra.Command {
	o := &options{backend: "vz"}
	cmd := &cobra.Command{
		Use:          "macrack-vm",
		Short:        "Run one macOS virtual machine in one slot of a Mac",
		SilenceUsage: true,
		Version:      version.String(),
	}
	cmd.PersistentFlags().StringVar(&o.backend, "backend", o.backend, "Hypervisor: vz (Virtualization.framework) or sim (simulated).")
	cmd.PersistentFlags().StringVar(&o.simHostDir, "sim-host-dir", o.simHostDir, "Directory of the simulated Mac. Required with --backend=sim.")
	cmd.PersistentFlags().StringVar(&o.simGuestAgent, "sim-guest-agent", o.simGuestAgent, "Path of macrack-guest-agent, which simulated guests run as a process of this host. For development only: commands of tenants run on this host, confined to a directory of the slot as far as Landlock can. If empty, simulated guests run no commands.")
	cmd.AddCommand(newRunCommand(o), newMachineIDCommand(o))
	return cmd
}

func newRunCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Lock a slot, run its VM until it ends, and write the result",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			backend, err := o.hypervisor()
			if err != nil {
				return err
			}
			ctx, cancel := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer cancel()
			return run(ctx, contract.SlotDir(o.slotDir), backend)
		},
	}
	cmd.Flags().StringVar(&o.slotDir, "slot-dir", o.slotDir, "Directory of the slot.")
	_ = cmd.MarkFlagRequired("slot-dir")
	return cmd
}

func run(ctx context.Context, dir contract.SlotDir, backend runner.Backend) error {
	_, err := runner.Run(ctx, dir, backend, clock.RealClock{})
	if errors.Is(err, contract.ErrLocked) || errors.Is(err, runner.ErrNothingToRun) {
		// Another runner was faster, or the agent has taken the slot back. Exit code 0 keeps
		// launchd from a restart.
		klog.InfoS("Nothing to run", "slot", dir, "reason", err)
		return nil
	}
	return err
}

func newMachineIDCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "machine-id",
		Short: "Print a new machine identifier",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			backend, err := o.hypervisor()
			if err != nil {
				return err
			}
			id, err := backend.newMachineID()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), id)
			return err
		},
	}
}
