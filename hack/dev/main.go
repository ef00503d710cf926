// Dev runs the dev cluster: a Kubernetes control plane, macrack and three simulated Macs. Each
// component is a process on loopback, with its state in .dev.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"macrack.io/macrack/test/cluster/build"
	"macrack.io/macrack/test/cluster/process"

	"github.com/spf13/cobra"

	"macrack.io/macrack/test/cluster"
)

const defaultPortBase = 16440

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "dev",
		Short:         "Run the dev cluster",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		upCommand(), downCommand(), cleanCommand(), statusCommand(), buildCommand(),
		actCommand("restart", "Stop a component gracefully and start it again", (*cluster.Cluster).Restart),
		actCommand("kill", "Kill a component, until restart or up", (*cluster.Cluster).Kill),
		actCommand("stop", "Stop a component gracefully, until restart or up", (*cluster.Cluster).Shutdown),
		balanceCommand(), keepCommand(), registryCommand(),
	)
	return root
}

func upCommand() *cobra.Command {
	opts := cluster.Options{
		Detach: true, Sync: true,
		EtcdMembers: 1, Apiservers: 2, Controllers: 2, Macs: 3, Example: true,
	}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster, or the components that do not run or have changed",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return up(cmd.Context(), opts)
		},
	}
	cmd.Flags().IntVar(&opts.EtcdMembers, "etcd-members", opts.EtcdMembers, "members of macrack's etcd, 1 or 3; cannot change while its data is kept")
	cmd.Flags().IntVar(&opts.Apiservers, "apiservers", opts.Apiservers, "replicas of macrack-apiserver; with 0, only Kubernetes runs")
	cmd.Flags().IntVar(&opts.Controllers, "controllers", opts.Controllers, "replicas of macrack-controllers")
	cmd.Flags().IntVar(&opts.Macs, "macs", opts.Macs, "simulated Macs with an agent each")
	cmd.Flags().BoolVar(&opts.Example, "example", opts.Example, "apply artifacts/example")
	return cmd
}

func up(ctx context.Context, opts cluster.Options) (err error) {
	began := time.Now()
	if opts.Dir, err = stateDir(); err != nil {
		return err
	}
	if opts.PortBase, err = portBase(); err != nil {
		return err
	}
	if opts.Apiservers == 0 {
		opts.Controllers, opts.Macs, opts.Example = 0, 0, false
	}
	opts.Progress = &stopwatch{out: os.Stdout, began: began}
	c, err := cluster.Open(opts)
	if err != nil {
		return err
	}
	if err := c.Up(ctx); err != nil {
		if strings.Contains(err.Error(), "choose other ports") {
			err = fmt.Errorf("%w: DEV_PORT_BASE=17440 make up", err)
		}
		return err
	}
	return whatNext(c, time.Since(began))
}

func whatNext(c *cluster.Cluster, took time.Duration) error {
	kubeconfig, err := c.WriteUserKubeconfig()
	if err != nil {
		return err
	}
	fmt.Printf(`
The cluster is up (%s). Logs are in %s. Type:

  export KUBECONFIG=%s PATH=%s:$PATH

  kubectl get macrack,macrack-admin -A                         # as admin: everything of ours
  kubectl get macnodes,nodes
  kubectl --context acme apply -f - <<'EOF'                    # as a tenant: rent a Mac
  apiVersion: rack.macrack.io/v1alpha1
  kind: MacNodeLease
  metadata: {name: build}
  spec: {className: base}
  EOF
  kubectl --context acme get leases.rack.macrack.io -o wide
  kubectl --context direct-acme get leases                     # straight at macrack-apiserver, the short name is ours
  kubectl get compliancereports

  go run ./hack/dev status                                     # and: kill NAME, restart NAME
  make down
`, took.Round(time.Second), relative(filepath.Join(c.Dir(), "log")), kubeconfig, c.Bin())
	return nil
}

func downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster; its state stays",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			dir, err := stateDir()
			if err != nil {
				return err
			}
			err = down(dir)
			if errors.Is(err, cluster.ErrNoCluster) {
				fmt.Println(err)
				return nil
			}
			if err == nil {
				fmt.Println("The cluster is down. Its state is kept: `make up` resumes it, `make clean` removes it.")
			}
			return err
		},
	}
}

func down(dir string) error {
	c, err := cluster.Reopen(dir, os.Stdout)
	if err != nil {
		return err
	}
	return c.Stop()
}

func cleanCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "clean",
		Short: "Stop the cluster and remove its state; binaries stay",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			dir, err := stateDir()
			if err != nil {
				return err
			}
			if err := down(dir); err != nil && !errors.Is(err, cluster.ErrNoCluster) {
				return err
			}
			for _, name := range cluster.StatePaths {
				if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
					return err
				}
			}
			fmt.Println("The cluster is down and its state is removed.")
			return nil
		},
	}
}

func statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the components; fails unless all serve",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := reopen()
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tPID\tSTATE\tPORTS\tLOG")
			failing := 0
			for _, s := range c.Status(cmd.Context()) {
				state := "ready"
				if s.Ready != nil {
					failing++
					state, _, _ = strings.Cut(s.Ready.Error(), "\n")
				}
				pid := "-"
				if s.PID != 0 {
					pid = strconv.Itoa(s.PID)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Name, pid, state, strings.Trim(fmt.Sprint(s.Ports), "[]"), relative(s.Log))
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if failing > 0 {
				return fmt.Errorf("%d components are not ready", failing)
			}
			return nil
		},
	}
}

func buildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build the control plane and the product's binaries into .dev/bin",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			progress := &stopwatch{out: os.Stdout, began: time.Now()}
			_, err := build.ControlPlane(cmd.Context(), progress)
			if err == nil {
				_, err = build.Product(cmd.Context(), progress)
			}
			return err
		},
	}
}

func actCommand(verb, short string, act func(*cluster.Cluster, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " NAME",
		Short: short,
		Args:  cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			c, err := reopen()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			return c.Names(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := reopen()
			if err != nil {
				return err
			}
			return act(c, cmd.Context(), args[0])
		},
	}
}

func balanceCommand() *cobra.Command {
	var listen, caFile string
	cmd := &cobra.Command{
		Use:    "balance --listen HOST:PORT --ca-file FILE BACKEND...",
		Short:  "Forward connections to the replicas of macrack-apiserver",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, backends []string) error {
			ready, err := cluster.Readyz(caFile)
			if err != nil {
				return err
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			return cluster.Balance(cmd.Context(), l, backends, ready)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address to listen on")
	cmd.Flags().StringVar(&caFile, "ca-file", "", "CA of the replicas' serving certificates")
	return cmd
}

func registryCommand() *cobra.Command {
	var listen, dir string
	cmd := &cobra.Command{
		Use:    "registry --listen HOST:PORT --dir DIR",
		Short:  "Serve the images of the simulated Macs",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			return cluster.ServeRegistry(cmd.Context(), l, dir)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address to listen on")
	cmd.Flags().StringVar(&dir, "dir", "", "folder of its content")
	return cmd
}

func keepCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:    "keep --dir DIR",
		Short:  "Restart components that have exited unexpectedly",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return process.Keep(cmd.Context(), dir, os.Stderr)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "state of the cluster")
	return cmd
}

func stateDir() (string, error) {
	root, err := build.Root()
	return filepath.Join(root, ".dev"), err
}

func reopen() (*cluster.Cluster, error) {
	dir, err := stateDir()
	if err != nil {
		return nil, err
	}
	return cluster.Reopen(dir, os.Stderr)
}

func portBase() (int, error) {
	text := os.Getenv("DEV_PORT_BASE")
	if text == "" {
		return defaultPortBase, nil
	}
	base, err := strconv.Atoi(text)
	if err != nil || base < 1024 || base > 65000 {
		return 0, fmt.Errorf("invalid DEV_PORT_BASE %q; use a number from 1024 to 65000, the first of a block of 64 ports", text)
	}
	return base, nil
}

// relative shortens a path for display.
func relative(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(wd, path); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return path
}

// stopwatch prefixes every line with the elapsed time.
type stopwatch struct {
	out   io.Writer
	began time.Time
}

func (s *stopwatch) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		elapsed := int(time.Since(s.began).Seconds())
		if _, err := fmt.Fprintf(s.out, "[%2d:%02d] %s\n", elapsed/60, elapsed%60, strings.TrimRight(line, "\n")); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
