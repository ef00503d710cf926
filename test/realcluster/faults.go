package main

import (
	"context"
	"fmt"
	"time"

	"macrack.io/macrack/test/cluster/await"
)

const (
	// downtime is how long a Node is drained or down.
	downtime = 20 * time.Second
	// maxOutage is the longest acceptable outage of the API while other Nodes, or other replicas,
	// can serve it.
	maxOutage = 5 * time.Second
)

// drainNode drains a Node, and uncordons it. With one Node, that is an outage of the API.
func (w *world) drainNode(ctx context.Context) error {
	n := w.nodes[len(w.nodes)-1]
	drain := []string{"drain", n.name, "--ignore-daemonsets", "--delete-emptydir-data", patience}
	if len(w.nodes) == 1 {
		drain = append(drain, "--disable-eviction") // the budgets keep a replica, which has no other Node
	}
	return w.probe(ctx, len(w.nodes) > 1, func(ctx context.Context) error {
		if _, err := w.kubectl(ctx, drain...); err != nil {
			return err
		}
		if err := await.Sleep(ctx, downtime); err != nil {
			return err
		}
		if _, err := w.kubectl(ctx, "uncordon", n.name); err != nil {
			return err
		}
		return w.waitForAPI(ctx)
	})
}

// killNode ends a Node like a power failure, and starts it again.
func (w *world) killNode(ctx context.Context) error {
	n := w.nodes[len(w.nodes)-1]
	return w.probe(ctx, false, func(ctx context.Context) error {
		n.kill()
		if err := await.Sleep(ctx, downtime); err != nil {
			return err
		}
		if err := w.startNode(ctx, n); err != nil {
			return err
		}
		return w.waitForAPI(ctx)
	})
}

// probe runs act under load, and returns an error if it disturbs a VM or a lease. If served is set,
// the API must also be served all the time.
func (w *world) probe(ctx context.Context, served bool, act func(context.Context) error) error {
	return w.undisturbed(ctx, func(ctx context.Context) error {
		l, err := w.underLoad(ctx, act)
		w.note = l.String()
		if err == nil && served {
			err = l.check()
		}
		return err
	})
}

// check returns an error if the outage was too long.
func (l load) check() error {
	if l.outage > maxOutage {
		return fmt.Errorf("%s; at most %s is acceptable (last error: %w)", l, maxOutage, l.last)
	}
	return nil
}
