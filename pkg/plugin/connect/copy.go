package connect

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/guest"
)

// NewCopyCommand returns the command cp.
func NewCopyCommand(env *cmdutil.Env) *cobra.Command { return newCopyCommand(env, guest.NewAccess) }

func newCopyCommand(env *cmdutil.Env, access newAccess) *cobra.Command {
	var o sshOptions
	recursive := false
	cmd := &cobra.Command{
		Use:   "cp [-r] SOURCE TARGET",
		Short: "Copy files to or from a virtual machine with scp",
		Long: `Copy files with your scp. One of SOURCE and TARGET is mi/NAME:PATH, the other is a local path. The host
keys are checked as by kubectl macrack ssh.`,
		Example: `  # Copy a folder to the home of the user
  kubectl macrack cp -r ./src mi/one:src

  # Copy a file from the guest
  kubectl macrack cp mi/one:build/app.ipa .`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmdutil.Interrupted(cmd.Context(), runCopy(cmd.Context(), env, access, o, recursive, args[0], args[1]))
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "Copy folders.")
	return cmd
}

func runCopy(ctx context.Context, env *cmdutil.Env, access newAccess, o sshOptions, recursive bool, source, target string) error {
	name, remote, upload, err := parseCopy(source, target)
	if err != nil {
		return err
	}
	return withSession(ctx, env, access, name, o, func(ctx context.Context, s *session) error {
		args := append(append([]string{}, s.args...), "-P", portText(s.port))
		if recursive {
			args = append(args, "-r")
		}
		if upload {
			args = append(args, "--", localPath(source), s.host+":"+remote)
		} else {
			args = append(args, "--", s.host+":"+remote, localPath(target))
		}
		return runProgram(ctx, env, "scp", args...)
	})
}

// parseCopy returns the instance and the path in it.
func parseCopy(source, target string) (name, path string, upload bool, err error) {
	from, to := strings.HasPrefix(source, resource+"/"), strings.HasPrefix(target, resource+"/")
	if from == to {
		return "", "", false, errors.New("exactly one of SOURCE and TARGET must be mi/NAME:PATH")
	}
	remote := source
	if to {
		remote = target
	}
	object, path, ok := strings.Cut(remote, ":")
	if !ok {
		return "", "", false, fmt.Errorf("%q has no path; use mi/NAME:PATH", remote)
	}
	name, err = instanceName(object)
	return name, path, to, err
}

// localPath returns a path that scp takes neither for an option nor for a remote one.
func localPath(path string) string {
	if filepath.IsAbs(path) || strings.HasPrefix(path, "./") {
		return path
	}
	return "./" + path
}
