package cmdutil

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"macrack.io/macrack/pkg/plugin/terminal"
)

// A View is a picture that a command shows once, or continuously with --watch.
type View struct {
	Output Output
	Watch  bool
}

// AddFlags adds the flags of the view.
func (v *View) AddFlags(cmd *cobra.Command) {
	v.Output.AddFlag(cmd.Flags())
	cmd.Flags().BoolVarP(&v.Watch, "watch", "w", false, "Keep the picture current until Ctrl-C.")
}

// Validate refuses combinations of flags.
func (v *View) Validate() error {
	if v.Watch && v.Output != ForPeople {
		return errors.New("--watch draws a picture and has no --output; use kubectl get --watch for data")
	}
	return nil
}

// Follow shows the pictures that follow passes to its argument, until ctx is done or follow fails.
func (v *View) Follow(env *Env, follow func(show func(lines []string) error) error) error {
	screen := terminal.NewScreen(env.Out, terminal.IsTerminal(env.Out, env.Getenv))
	err := follow(func(lines []string) error { return screen.Draw(lines, env.Style().Height) })
	if closed := screen.Close(); err == nil {
		err = closed
	}
	return err
}

// Interrupted returns [ErrInterrupted] instead of the error of a request that ended with ctx.
func Interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ErrInterrupted
	}
	return err
}
