package connect

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/guest"
)

// NewSSHCommand returns the command ssh.
func NewSSHCommand(env *cmdutil.Env) *cobra.Command { return newSSHCommand(env, guest.NewAccess) }

func newSSHCommand(env *cmdutil.Env, access newAccess) *cobra.Command {
	var o sshOptions
	cmd := &cobra.Command{
		Use:   "ssh mi/NAME [-- COMMAND [ARG...]]",
		Short: "Log in to a virtual machine with ssh",
		Long: `Log in to a virtual machine with your ssh, through a port that is forwarded by kube-apiserver.

The host keys are read by the guest agent, not over the network of the guest, and ssh accepts no other
key. An image without a guest agent or without Remote Login has no such keys: ssh is then refused,
unless --insecure-host-key is set.

ssh knows the guest as macrack.NAMESPACE.NAME, so "Host macrack.*" in ~/.ssh/config applies to all
guests. The instance must have your public key in spec.sshAuthorizedKeys, or its user a password.`,
		Example: `  # Log in as admin
  kubectl macrack ssh mi/one

  # Run a command as another user
  kubectl macrack ssh mi/one -l ci -- uptime`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) == 0 || dash == 0 || dash < 0 && len(args) > 1 || dash > 1 {
				return errors.New("ssh needs one instance, such as mi/one; write a command after --")
			}
			return nil
		},
		ValidArgsFunction: cmdutil.CompleteObjects(env, resource),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmdutil.Interrupted(cmd.Context(), runSSH(cmd.Context(), env, access, o, args[0], args[1:]))
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func runSSH(ctx context.Context, env *cmdutil.Env, access newAccess, o sshOptions, arg string, command []string) error {
	name, err := instanceName(arg)
	if err != nil {
		return err
	}
	return withSession(ctx, env, access, name, o, func(ctx context.Context, s *session) error {
		args := append(append([]string{}, s.args...), "-p", portText(s.port), "--", s.host)
		return runProgram(ctx, env, "ssh", append(args, command...)...)
	})
}
