package agent

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/queue"
)

func (a *Agent) work(ctx context.Context) {
	for {
		k, shutdown := a.queue.Get()
		if shutdown {
			return
		}
		err := a.reconcile(ctx, k)
		switch {
		case err == nil:
			a.queue.Forget(k)
		case ctx.Err() == nil && !errors.Is(err, context.Canceled):
			klog.V(2).InfoS("Failed to reconcile; retrying", "key", k.NamespacedName, "kind", k.Kind, "err", err)
			a.queue.AddRateLimited(k)
		default:
			a.queue.AddRateLimited(k)
		}
		a.queue.Done(k)
	}
}

func (a *Agent) reconcile(ctx context.Context, k queue.Key) error {
	switch k.Kind {
	case queue.InstanceKind:
		return a.instance.Reconcile(ctx, k.NamespacedName)
	case queue.PodKind:
		return a.pods.Reconcile(ctx, k.NamespacedName)
	case queue.PrefetchKind:
		return a.prefetcher.Reconcile(ctx, k.Name)
	default:
		return a.macNode.Reconcile(ctx)
	}
}

// every calls f at each interval, measured by the agent's clock, until ctx is done.
func (a *Agent) every(ctx context.Context, interval time.Duration, f func()) {
	ticker := a.config.Clock.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			f()
		}
	}
}
