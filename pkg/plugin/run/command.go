// Package run is the command that runs one command in a new virtual machine.
package run

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/guest"
	"macrack.io/macrack/pkg/rules"
)

// defaultDeadline is the time for which a killed plugin blocks a slot at most. A new lease lasts as
// long.
const defaultDeadline = rules.MinimumLeaseDuration

// Options are the flags and arguments of the command.
type Options struct {
	Image, Class string
	// Lease is the lease to use; empty: one with a free slot, or a new one.
	Lease string
	// NodeClass is the class of the Mac of a new lease; empty: the default of the fleet.
	NodeClass string
	// Yes: a new lease needs no confirmation.
	Yes bool
	// Deadline is the time that the virtual machine may run.
	Deadline time.Duration
	// Stdin and TTY connect the command to the user's input and terminal.
	Stdin, TTY bool
	Command    []string
}

// NewCommand returns the command run.
func NewCommand(env *cmdutil.Env) *cobra.Command { return newCommand(env, guest.NewAccess) }

func newCommand(env *cmdutil.Env, newAccess func(*cmdutil.Clients) guest.Access) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "run --image IMAGE --class CLASS [--lease LEASE] -- COMMAND [ARG...]",
		Short: "Run a command in a new virtual machine",
		Long: `Start a virtual machine, run a command in it, and delete it. The exit code is that of the command.

The virtual machine takes a free slot of a lease of the namespace. If all are taken, a new lease is
made, after a confirmation: a lease keeps its Mac for at least 24 hours, and is billed for them. A new
lease deletes itself after that time, and its slots are free for further runs until then.

Ctrl-C also deletes the virtual machine, and a lease that has no Mac yet. If the plugin is killed, the
virtual machine ends at its deadline, and is deleted then.`,
		Example: `  # Print the version of Xcode in an image
  kubectl macrack run --image macos-26-xcode-26 --class small -- xcodebuild -version

  # Open a shell, on the Mac of a lease
  kubectl macrack run -it --image macos-26-xcode-26 --class small --lease build -- zsh

  # Run a script of standard input, and lease a Mac without a question if none is free
  kubectl macrack run -i --yes --image macos-26-xcode-26 --class small -- sh -s < build.sh`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() != 0 {
				return errors.New("no command; write it after --, for example -- sw_vers")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Deadline < time.Second {
				return fmt.Errorf("--deadline is %s; it must be at least 1s", o.Deadline)
			}
			o.Command = args
			clients, err := env.Connect()
			if err != nil {
				return err
			}
			r := &runner{env: env, clients: clients, access: newAccess(clients), options: o}
			return r.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Image, "image", "", "MacOSImage of the virtual machine.")
	flags.StringVar(&o.Class, "class", "", "InstanceClass of the virtual machine.")
	flags.StringVar(&o.Lease, "lease", "", "Lease whose Mac runs the virtual machine. Default: one with a free slot.")
	flags.StringVar(&o.NodeClass, "node-class", "", "MacNodeClass of the Mac, if a new lease is made. Default: that of the fleet.")
	flags.BoolVarP(&o.Yes, "yes", "y", false, "Make a new lease without a question.")
	flags.DurationVar(&o.Deadline, "deadline", defaultDeadline, "Time after which the virtual machine is shut down, also if the plugin was killed.")
	flags.BoolVarP(&o.Stdin, "stdin", "i", false, "Pass standard input to the command.")
	flags.BoolVarP(&o.TTY, "tty", "t", false, "Run the command in a terminal.")
	for _, name := range []string{"image", "class"} {
		_ = cmd.MarkFlagRequired(name)
	}
	for flag, resource := range map[string]string{"image": "macosimages", "class": "instanceclasses", "lease": "mnl", "node-class": "macnodeclasses"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cmdutil.CompleteNames(env, resource))
	}
	return cmd
}
