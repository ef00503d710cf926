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

var errUnfit = errors.New("this Mac does not meet the requirements; see the lines with fail")

func newDoctorCommand() *cobra.Command {
	var output, vmBinary, registry string
	stateDir := defaultStateDir
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this Mac meets the requirements, and suggest remedies",
		Long: `Doctor checks the system, the user, the state directory, the disk, the certificate, the cluster, the registries, and the
virtual machines. It changes nothing. Each line is ok, warn, fail, or skip (not checked). The exit code is 1 if a check fails, else 0.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("invalid --output %q; use json, or omit the flag", output)
			}
			stateDir, err := filepath.Abs(stateDir)
			if err != nil {
				return err
			}
			if vmBinary == "" {
				if vmBinary, err = siblingPath("macrack-vm"); err != nil {
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
	flags.StringVar(&vmBinary, "vm-binary", vmBinary, "Path of macrack-vm. Default: in the folder of this program.")
	flags.StringVar(&registry, "registry", registry, "Registry (host or host:port) to check in addition to those of the image catalogue.")
	flags.StringVarP(&output, "output", "o", output, "Output format: json. If empty, one line for each check.")
	return cmd
}

// siblingPath returns the path of a program in the folder of this program.
func siblingPath(name string) (string, error) {
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
