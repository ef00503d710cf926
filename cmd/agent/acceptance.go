package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"macrack.io/macrack/pkg/agent/acceptance"
	"macrack.io/macrack/pkg/agent/doctor"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/version"
	"macrack.io/macrack/pkg/vm/keychain"
)

// Defaults of the acceptance.
const (
	acceptanceDir    = "macrack-acceptance"
	acceptanceRepeat = 20
	acceptanceRuns   = 1000
)

type acceptanceOptions struct {
	options
	push   images.PushOptions
	tartVM string
	report string
	// registry is a repository for a push and a pull.
	registry string

	only   []string
	again  bool
	list   bool
	repeat int
	runs   int
}

func newAcceptanceCommand() *cobra.Command {
	o := &acceptanceOptions{options: options{backend: backendVZ, launcher: launcherProcess, nodeName: "acceptance"}, repeat: acceptanceRepeat, runs: acceptanceRuns}
	cmd := &cobra.Command{
		Use:   "acceptance {--tart-vm NAME|DIR | --disk FILE --aux FILE --hardware-model BASE64}",
		Short: "Check on this Mac what cannot be checked elsewhere, and write a report",
		Long: "Acceptance starts, stops, kills and erases virtual machines with the code of the agent, without a cluster, and measures. " +
			"For the other checks it shows the steps, and asks for the result. It writes report.md and report.json after each check. " +
			"Run it in the login session of the agent's user, while the agent runs no virtual machine. " +
			"A later run continues: it repeats only what has not passed.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer cancel()
			if o.list {
				for _, check := range acceptance.Checks() {
					fmt.Fprintf(cmd.OutOrStdout(), "%s\t%s\n", check.ID, check.Title)
				}
				return nil
			}
			return o.run(ctx, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.tartVM, "tart-vm", "", "Virtual machine of tart to clone: its name in TART_HOME (default ~/.tart), or its directory.")
	flags.StringVar(&o.push.Disk, "disk", "", "Raw disk image to clone, instead of --tart-vm.")
	flags.StringVar(&o.push.Aux, "aux", "", "Auxiliary storage (NVRAM) that belongs to --disk.")
	flags.StringVar(&o.push.HardwareModel, "hardware-model", "", "VZMacHardwareModel that belongs to --disk, in base64.")
	flags.StringVar(&o.report, "report", acceptanceDir, "Directory of the report.")
	flags.StringVar(&o.stateDir, "state-dir", "", "Directory of the slots and disks, of its own. Keep the path short. Default: /tmp/macrack-UID.")
	flags.StringVar(&o.vmBinary, "vm-binary", "", "Path of macrack-vm. Default: in the folder of this program.")
	flags.StringVar(&o.backend, "backend", o.backend, "Hypervisor: vz (Virtualization.framework) or sim (simulated).")
	flags.StringVar(&o.simHostDir, "sim-host-dir", "", "Directory of the simulated Mac. Required with --backend=sim.")
	flags.StringVar(&o.simSerialNumber, "sim-serial-number", "", "Serial number of the simulated Mac, used if --sim-host-dir is new. Required with --backend=sim.")
	flags.StringVar(&o.simGuestAgent, "sim-guest-agent", "", "Path of macrack-guest-agent, which simulated guests run as a process of this host.")
	flags.StringVar(&o.registry, "registry", "", "Repository for a push and a pull, such as registry.example.com/acceptance. It must allow pulls without credentials. Default: none.")
	flags.StringSliceVar(&o.only, "only", nil, "IDs of the checks to run. Default: all that have not passed.")
	flags.BoolVar(&o.again, "again", false, "Start a new report.")
	flags.BoolVar(&o.list, "list", false, "List the checks, and do nothing.")
	flags.IntVar(&o.repeat, "repeat", o.repeat, "Number of repetitions of the checks that repeat.")
	flags.IntVar(&o.runs, "commands", o.runs, "Number of commands of the check of descriptors.")
	cmd.MarkFlagsMutuallyExclusive("tart-vm", "disk")
	cmd.MarkFlagsRequiredTogether("disk", "aux", "hardware-model")
	return cmd
}

func (o *acceptanceOptions) run(ctx context.Context, in io.Reader, out io.Writer) error {
	config, err := o.config(in, out)
	if err != nil {
		return err
	}
	report, err := acceptance.ReadReport(o.report)
	if err != nil {
		return err
	}
	const program = "macrack-agent"
	if old := report.Versions[program]; old != "" && old != version.String() && !o.again {
		return fmt.Errorf("the report in %s is of version %q; use --again, or another --report", o.report, old)
	}
	if o.again || report.Started.IsZero() {
		report = &acceptance.Report{Started: config.Clock.Now()}
	}
	report.Versions = map[string]string{program: version.String()}
	if info, err := config.Host.Info(); err == nil {
		report.Host = map[string]string{"model": info.ModelIdentifier, "macOS": info.MacOSVersion, "memory": images.Size(info.Memory), "backend": o.backend}
	}
	if err := acceptance.Run(ctx, *config, report, func(r *acceptance.Report) error { return r.Write(o.report) }); err != nil {
		return err
	}
	fmt.Fprintf(out, "report: %s\n", filepath.Join(o.report, "report.md"))
	if failed := report.Failed(); len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

func (o *acceptanceOptions) config(in io.Reader, out io.Writer) (*acceptance.Config, error) {
	if o.stateDir == "" {
		o.stateDir = fmt.Sprintf("/tmp/macrack-%d", os.Getuid())
	}
	if err := ownDir(o.stateDir); err != nil {
		return nil, err
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	image, err := o.image()
	if err != nil {
		return nil, err
	}
	platform, err := o.platform()
	if err != nil {
		return nil, err
	}
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return nil, fmt.Errorf("docker credentials: %w", err)
	}
	config := &acceptance.Config{
		Registry: o.registry, Credential: credentials.Credential(store),
		Dir: o.stateDir, Launcher: platform.Launcher, NewMachineID: platform.NewMachineID, Host: platform.Host,
		Image: *image, CPU: 4, Memory: 8 << 30, DiskSize: image.DiskSize, Clock: clock.RealClock{},
		BootTimeout: 5 * time.Minute, Grace: 2 * time.Minute, Repeat: o.repeat, Commands: o.runs, Progress: out, Only: o.only,
	}
	if o.backend == backendVZ {
		config.KeychainLocked = keychain.Security{}.Locked
		config.Doctor = (&doctor.Doctor{
			StateDir: defaultStateDir, VMBinary: o.vmBinary, UID: os.Getuid(), Host: doctor.Commands{}, Storage: doctor.Files{}, Clock: clock.RealClock{},
			Cluster: &doctor.Kubeconfig{Path: filepath.Join(defaultStateDir, kubeconfigName), CertDir: filepath.Join(defaultStateDir, certDirName), Clock: clock.RealClock{}},
		}).Run
	}
	if f, ok := in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 { // a person, probably
			config.Ask = asker(in, out)
		}
	}
	return config, nil
}

// ownDir makes a directory that only this user can write to. Another user may have made it in /tmp.
func ownDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only this user can write to; remove it, or use another --state-dir", path)
	}
	return nil
}

// image returns the files to clone.
func (o *acceptanceOptions) image() (*images.Cached, error) {
	if o.tartVM != "" {
		if err := useTartVM(&o.push, o.tartVM); err != nil {
			return nil, err
		}
	}
	if o.push.Disk == "" {
		return nil, errors.New("no image was given; use --tart-vm, or --disk with --aux and --hardware-model")
	}
	size, err := images.Inspect(o.push)
	if err != nil {
		return nil, err
	}
	return &images.Cached{Name: "acceptance", Disk: o.push.Disk, Aux: o.push.Aux, HardwareModel: o.push.HardwareModel, DiskSize: size}, nil
}

// asker returns a function that asks the person at a terminal.
func asker(in io.Reader, out io.Writer) func(context.Context, string, string) acceptance.Answer {
	lines := bufio.NewScanner(in)
	return func(_ context.Context, title, question string) acceptance.Answer {
		fmt.Fprintf(out, "\n%s\n%s\n[y]es, [n]o and a note, [s]kip and a note, or Enter to answer later: ", title, question)
		if !lines.Scan() {
			return acceptance.Answer{Outcome: acceptance.Ask}
		}
		return parseAnswer(lines.Text())
	}
}

// parseAnswer reads an answer such as "n the size does not follow".
func parseAnswer(line string) acceptance.Answer {
	word, note, _ := strings.Cut(strings.TrimSpace(line), " ")
	outcomes := map[string]acceptance.Outcome{
		"y": acceptance.Pass, "yes": acceptance.Pass, "n": acceptance.Fail, "no": acceptance.Fail, "s": acceptance.Skip, "skip": acceptance.Skip,
	}
	outcome, known := outcomes[strings.ToLower(word)]
	if !known {
		return acceptance.Answer{Outcome: acceptance.Ask}
	}
	return acceptance.Answer{Outcome: outcome, Note: strings.TrimSpace(note)}
}
