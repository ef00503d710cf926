package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/simulate"
)

func newSimulateCommand() *cobra.Command {
	var (
		traces   []string
		markdown bool
	)
	limits := floor.Limits{Max: 8, PerLease: 2, Warm: 1, GrowAfter: time.Minute, KeepIdle: 30 * time.Minute, DecideBefore: 15 * time.Minute}
	timing := simulate.Timing{Bind: 2 * time.Minute, Boot: time.Minute}
	cmd := &cobra.Command{
		Use:   "simulate --jobs TRACE.csv",
		Short: "Compare the costs and waits of four policies on a trace of jobs",
		Long: `Replay a trace of jobs with a virtual clock, and compare four policies:

floor rule         the decisions of macrack-runners
keep all           the same, but a lease is never deleted
release when idle  the same, but a lease is deleted when it was idle for 10 minutes, also before its floor;
                   its Mac is then paid, and counts for --max, until the floor
oracle             the least cost at which jobs start when they do with keep all; a lower bound

A trace is a CSV file with the header queuedAt,seconds and lines such as 2026-03-02T09:00:00Z,720.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := validate(limits, timing); err != nil {
				return err
			}
			for _, file := range traces {
				results, err := compare(file, limits, timing)
				if err != nil {
					return err
				}
				name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
				if markdown {
					err = simulate.PrintMarkdown(cmd.OutOrStdout(), name, results)
				} else {
					err = simulate.Print(cmd.OutOrStdout(), name, results)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&traces, "jobs", nil, "Files with the jobs to replay.")
	flags.BoolVar(&markdown, "markdown", false, "Print tables in Markdown.")
	flags.IntVar(&limits.Min, "min", limits.Min, "Minimum number of leases.")
	flags.IntVar(&limits.Max, "max", limits.Max, "Maximum number of leases.")
	flags.IntVar(&limits.PerLease, "per-lease", limits.PerLease, "Virtual machines on each Mac: 1 or 2.")
	flags.IntVar(&limits.Warm, "warm", limits.Warm, "Free slots to aim for while there are jobs.")
	flags.DurationVar(&limits.GrowAfter, "grow-after", limits.GrowAfter, "Time for which demand exceeds the capacity before another Mac is leased.")
	flags.DurationVar(&limits.KeepIdle, "keep-idle", limits.KeepIdle, "Time for which a lease is idle before it is surplus.")
	flags.DurationVar(&limits.DecideBefore, "decide-before", limits.DecideBefore, "Time before the floor at which the end of a lease is decided.")
	flags.DurationVar(&timing.Bind, "bind", timing.Bind, "Time from the creation of a lease to its binding.")
	flags.DurationVar(&timing.Boot, "boot", timing.Boot, "Time in which a virtual machine boots.")
	_ = cmd.MarkFlagRequired("jobs")
	return cmd
}

func validate(limits floor.Limits, timing simulate.Timing) error {
	switch {
	case limits.Min < 0 || limits.Max < 1 || limits.Min > limits.Max:
		return fmt.Errorf("--min is %d and --max is %d; use 0 <= min <= max and 1 <= max", limits.Min, limits.Max)
	case limits.PerLease < 1 || limits.PerLease > 2:
		return fmt.Errorf("--per-lease is %d; use 1 or 2", limits.PerLease)
	case limits.Warm < 0:
		return fmt.Errorf("--warm is %d; use 0 or more", limits.Warm)
	case min(limits.GrowAfter, limits.KeepIdle, limits.DecideBefore, timing.Bind, timing.Boot) < 0:
		return errors.New("a duration is negative; use 0 or more")
	}
	return nil
}

func compare(file string, limits floor.Limits, timing simulate.Timing) ([]simulate.Result, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	jobs, err := simulate.ReadTrace(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return simulate.Compare(jobs, limits, timing), nil
}
