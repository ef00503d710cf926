package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"macrack.io/macrack/runners/pkg/gitlab"
	"macrack.io/macrack/runners/pkg/guest"
)

// exitError is an error with the exit code of the process.
type exitError struct {
	error
	code int
}

func newGitLabCommand() *cobra.Command {
	var (
		c    cluster
		e    = gitlab.Executor{Version: version, Clock: clock.RealClock{}, Getenv: os.Getenv}
		wait time.Duration
	)
	cmd := &cobra.Command{
		Use:   "gitlab",
		Short: "The stages of the custom executor of gitlab-runner",
		Long: `The stages of the custom executor of gitlab-runner. gitlab-runner starts them with its variables.
An error of the job's script has the exit code in BUILD_FAILURE_EXIT_CODE, and any other error that
in SYSTEM_FAILURE_EXIT_CODE.`,
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&c.kubeconfig, "kubeconfig", "", "The kubeconfig. By default, that of the environment or of the pod.")
	flags.StringVar(&c.namespace, "namespace", "", "The namespace of the set. By default, that of the kubeconfig.")
	flags.StringVar(&e.Set, "set", "", "The name of the set.")
	flags.StringVar(&e.BuildsDir, "builds-dir", "/Users/admin/builds", "The folder of builds in the virtual machine.")
	flags.StringVar(&e.CacheDir, "cache-dir", "/Users/admin/cache", "The folder of caches in the virtual machine.")
	_ = cmd.MarkPersistentFlagRequired("set")

	stage := func(use, short string, args cobra.PositionalArgs, run func(context.Context, []string) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: args, SilenceUsage: true,
			RunE: func(cmd *cobra.Command, args []string) error {
				e.Out, e.Log = cmd.OutOrStdout(), cmd.ErrOrStderr()
				return exitCode(run(cmd.Context(), args))
			},
		}
	}
	connected := func(run func(context.Context, []string) error) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if err := c.connect(); err != nil {
				return err
			}
			guests, err := guest.New(c.config)
			if err != nil {
				return err
			}
			e.Guests, e.Leases = guests, c.core.CoordinationV1().Leases(c.namespace)
			e.Instances = c.macrack.InstanceV1alpha1().MacOSInstances(c.namespace)
			return run(ctx, args)
		}
	}
	prepare := stage("prepare", "Wait for a virtual machine", cobra.NoArgs, connected(func(ctx context.Context, _ []string) error {
		ctx, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("waited %s; see the Events of the set's leases, or raise --wait", wait))
		defer cancel()
		return e.Prepare(ctx)
	}))
	prepare.Flags().DurationVar(&wait, "wait", 50*time.Minute, "The time to wait for a virtual machine. prepare_exec_timeout of gitlab-runner must be longer.")
	cmd.AddCommand(
		stage("config", "Print the settings of the job", cobra.NoArgs, func(context.Context, []string) error { return e.Config() }),
		prepare,
		stage("run SCRIPT STAGE", "Run a script of the job", cobra.ExactArgs(2), connected(func(ctx context.Context, args []string) error {
			script, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			code, err := e.Run(ctx, script, args[1])
			return errors.Join(err, e.WriteExitCode(code))
		})),
		stage("cleanup", "Give up the virtual machine", cobra.NoArgs, connected(func(ctx context.Context, _ []string) error { return e.Cleanup(ctx) })),
	)
	return cmd
}

// exitCode adds the exit code that gitlab-runner expects for an error.
func exitCode(err error) error {
	if err == nil {
		return nil
	}
	name := "SYSTEM_FAILURE_EXIT_CODE"
	if errors.Is(err, gitlab.ErrBuild) {
		name = "BUILD_FAILURE_EXIT_CODE"
	}
	code, convErr := strconv.Atoi(os.Getenv(name))
	if convErr != nil || code == 0 {
		code = 1
	}
	return exitError{err, code}
}
