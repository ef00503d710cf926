// Realcluster tests MacRack on a real cluster on one Linux machine, as root. Kubelets, container
// runtimes, kube-proxy and a pod network run in private namespaces, and the Helm chart is installed
// on them. Simulated Macs join from outside of the cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// options are the flags of both parts of this program. The outer part builds everything, and runs
// the inner part in namespaces of its own. Their end ends all that the inner part has started.
type options struct {
	nodes    int
	previous string
	until    string
	reuse    bool
}

func (o *options) addFlags(flags *flag.FlagSet) {
	flags.IntVar(&o.nodes, "nodes", 1, "number of Nodes: 1 or 3; with 3, etcd has three members")
	flags.StringVar(&o.previous, "previous", "", "commit or tag to upgrade from; default: the last tag, or else "+olderCommit)
	flags.BoolVar(&o.reuse, "reuse", false, "take the programs and images of the last run")
	flags.StringVar(&o.until, "until", "", "name of the last step to run; default: all")
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		stop()
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 3 && args[0] == initCommand {
		return runInit(args[1], args[2])
	}
	if len(args) == 2 && args[0] == innerCommand {
		return runInner(ctx, args[1])
	}
	var o options
	o.addFlags(flag.CommandLine)
	if err := flag.CommandLine.Parse(args); err != nil {
		return err
	}
	if o.nodes != 1 && o.nodes != 3 {
		return fmt.Errorf("invalid -nodes=%d; use 1 or 3", o.nodes)
	}
	if os.Geteuid() != 0 {
		return errors.New("the test makes namespaces and mounts; run it as root")
	}
	return runOuter(ctx, o)
}
