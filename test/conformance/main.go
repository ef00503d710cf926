// Conformance runs a table of behaviours for every kind, with common clients and tools, against a
// running cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	clientfeatures "k8s.io/client-go/features"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"macrack.io/macrack/test/cluster"
)

func main() {
	opts := options{}
	flag.BoolVar(&opts.own, "own", false, "start a separate cluster for the suite, and stop it at the end")
	flag.BoolVar(&opts.reuse, "reuse", false, "use the running dev cluster, without starting it")
	flag.StringVar(&opts.kind, "kind", "", "run the behaviours of this kind only")
	flag.StringVar(&opts.behaviour, "behaviour", "", "run the behaviours whose name contains this text")
	flag.BoolVar(&opts.verbose, "verbose", false, "also print behaviours that passed, and those that do not apply, with the reason")
	flag.Parse()
	clientfeatures.ReplaceFeatureGates(gates{clientfeatures.FeatureGates()})
	log.SetLogger(klog.Background())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, opts); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

type options struct {
	own, reuse      bool
	verbose         bool
	kind, behaviour string
}

func run(ctx context.Context, out io.Writer, opts options) error {
	kinds, err := loadKinds()
	if err != nil {
		return err
	}
	dev := cluster.StartDev
	if opts.reuse {
		dev = func(context.Context) (*cluster.Cluster, error) { return cluster.ReopenDev() }
	}
	furnish := func(ctx context.Context, c *cluster.Cluster) (*world, error) { return prepare(ctx, c, opts.leases()) }
	own := cluster.Options{Apiservers: 2, Controllers: 1, Macs: macs, Example: true}
	return cluster.RunSuite(ctx, out, opts.own, own, dev, furnish, func(w *world) error {
		defer w.close()
		r := &report{out: out, options: opts}
		for _, k := range kinds {
			k.world = w
			for _, b := range behaviours {
				r.run(ctx, w, k, b)
			}
		}
		for _, b := range scenarios {
			r.run(ctx, w, nil, b)
		}
		return errors.Join(r.end(len(kinds)), ctx.Err())
	})
}

// leases returns the number of Macs that the suite leases while it runs, in addition to the shared
// one.
func (o options) leases() int {
	if o.kind == "" || o.kind == allKinds {
		return macs - 2
	}
	return 0
}

// macs returns the number of Macs in a separate cluster: one for each bound lease, and one that
// stays free.
const macs = 5
