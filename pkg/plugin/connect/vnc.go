package connect

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"

	"github.com/spf13/cobra"

	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/guest"
)

// NewVNCCommand returns the command vnc.
func NewVNCCommand(env *cmdutil.Env) *cobra.Command { return newVNCCommand(env, guest.NewAccess) }

func newVNCCommand(env *cmdutil.Env, access newAccess) *cobra.Command {
	viewer := ""
	cmd := &cobra.Command{
		Use:   "vnc mi/NAME",
		Short: "Open the screen of a virtual machine",
		Long: `Forward the port of Screen Sharing of a virtual machine to the loopback interface, and open it in your
viewer: Screen Sharing on macOS, vncviewer elsewhere. Without a viewer, only the address is printed.
The command ends with the viewer, or with Ctrl-C.

Enable Screen Sharing in the image. Other users of this computer can reach the port, so protect it with
a password.`,
		Example: `  # Open the screen
  kubectl macrack vnc mi/one

  # Use another viewer; it gets the address 127.0.0.1::PORT
  kubectl macrack vnc mi/one --viewer xtigervncviewer`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cmdutil.CompleteObjects(env, resource),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmdutil.Interrupted(cmd.Context(), runVNC(cmd.Context(), env, access, viewer, args[0]))
		},
	}
	cmd.Flags().StringVar(&viewer, "viewer", "", "Program that shows the screen.")
	return cmd
}

func runVNC(ctx context.Context, env *cmdutil.Env, access newAccess, viewer, arg string) error {
	name, err := instanceName(arg)
	if err != nil {
		return err
	}
	clients, err := env.Connect()
	if err != nil {
		return err
	}
	pod, err := guest.ReadPod(ctx, clients, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	port, err := access(clients).Forward(ctx, pod, vncPort)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.ErrOut, "The screen of %s is at %s:%d. Press Ctrl-C to end.\n", name, loopback, port)
	if viewer == "" && runtime.GOOS == "darwin" {
		if err := runProgram(ctx, env, "open", fmt.Sprintf("vnc://%s:%d", loopback, port)); err != nil {
			return err
		}
	} else if program := findViewer(viewer); program != "" {
		return runProgram(ctx, env, program, fmt.Sprintf("%s::%d", loopback, port))
	}
	<-ctx.Done()
	return nil
}

// findViewer returns the viewer to run, or "" if none is installed.
func findViewer(viewer string) string {
	if viewer != "" {
		return viewer
	}
	if _, err := exec.LookPath("vncviewer"); err != nil {
		return ""
	}
	return "vncviewer"
}
