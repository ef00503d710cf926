package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/doctor"
	"macrack.io/macrack/pkg/agent/host"
)

var errUnfit = errors.New("this Mac is not fit for its work: see the lines with fail")

func newDoctorCommand() *cobra.Command {
	var output, vmBinary, registry string
	stateDir := defaultStateDir
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this Mac can do its work, and say what to do where it cannot",
		Long: `Doctor checks the system, the user, the state directory, the disk, the certificate, the cluster, the registries, and what runs.
It changes nothing. Each line is ok, warn, fail, or skip (not checked, and why). It ends with 1 if anything fails, else with 0.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output is %q, must be json or left out", output)
			}
			stateDir, err := filepath.Abs(stateDir)
			if err != nil {
				return err
			}
			if vmBinary == "" {
				if vmBinary, err = besides("macrack-vm"); err != nil {
					return err
				}
			}
			d := &doctor.Doctor{
				StateDir: stateDir, VMBinary: vmBinary, UID: os.Getuid(), Host: doctor.Commands{}, Storage: doctor.Files{}, Clock: clock.RealClock{},
				Cluster: &doctor.Kubeconfig{
					Path: filepath.Join(stateDir, kubeconfigName), CertDir: filepath.Join(stateDir, certDirName), Clock: clock.RealClock{}, Registry: registry,
				},
			}
			if here, err := host.New(stateDir); err == nil {
				if info, err := here.Info(); err == nil {
					d.SerialNumber = info.SerialNumber
				}
			}
			results := d.Run(cmd.Context())
			if err := printResults(cmd.OutOrStdout(), output, results); err != nil {
				return err
			}
			if doctor.Worst(results) == doctor.Fail {
				return errUnfit
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&stateDir, "state-dir", stateDir, "The agent's state directory.")
	flags.StringVar(&vmBinary, "vm-binary", vmBinary, "Path of macrack-vm. Default: beside this program.")
	flags.StringVar(&registry, "registry", registry, "A registry (host or host:port) to reach, besides those of the catalogue of images.")
	flags.StringVarP(&output, "output", "o", output, "json, or a line for each check.")
	return cmd
}

// besides returns the path of a program in the folder of this one.
func besides(name string) (string, error) {
	self, err := os.Executable()
	return filepath.Join(filepath.Dir(self), name), err
}

func printResults(out io.Writer, format string, results []doctor.Result) error {
	if format == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(results)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.Status, r.Check, r.Message)
		if r.Advice != "" {
			fmt.Fprintf(w, "\t\t-> %s\n", r.Advice)
		}
	}
	return w.Flush()
}
