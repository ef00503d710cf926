package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// clockSteps moves the Mac's clock during runs, starts and stops of virtual machines.
func clockSteps(ctx context.Context, r *run) error {
	base := r.tb.Clock.Offset()
	defer func() { _ = r.mac.set("clock", base.String()) }()
	steps := []time.Duration{25 * time.Hour, -25 * time.Hour, time.Second, -time.Second}
	if r.Places != 0 {
		steps = steps[:2]
	}
	for _, step := range steps {
		i, err := r.start(ctx)
		if err != nil {
			return err
		}
		before := r.pids(ctx)
		r.fault(fmt.Sprintf("the clock jumps by %s", step), func() error {
			if err := r.mac.set("clock", (base + step).String()); err != nil {
				return err
			}
			other, err := r.start(ctx)
			if err != nil {
				return err
			}
			if err := errors.Join(r.settle(ctx), r.same(ctx, before), r.delete(ctx, other.Name)); err != nil {
				return err
			}
			// The clock jumps back in the middle of a stop.
			if err := r.admin.InstanceV1alpha1().MacOSInstances(tenant).Delete(ctx, i.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
			return errors.Join(r.mac.set("clock", base.String()), r.clear(ctx), r.settle(ctx))
		})
	}
	return nil
}
