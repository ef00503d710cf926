package chaos

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/rules"
)

// hungRunner uses a runner that ignores requests.
func hungRunner(ctx context.Context, r *run) error {
	if !r.Patient {
		return nil
	}
	before, err := r.two(ctx)
	if err != nil {
		return err
	}
	r.fault("a runner that hangs during a stop", func() error {
		hung := r.mac.vms(ctx)[0]
		delete(before, hung.Name)
		if err := syscall.Kill(hung.PID, syscall.SIGSTOP); err != nil {
			return err
		}
		if err := r.quarantined(ctx, rackv1alpha1.ReasonCannotReattach); err != nil {
			return err
		}
		if err := r.admin.InstanceV1alpha1().MacOSInstances(tenant).Delete(ctx, hung.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		return errors.Join(r.delete(ctx, hung.Name), r.unquarantine(ctx), r.settle(ctx), r.same(ctx, before))
	})
	return r.clear(ctx)
}

// stuckKernel makes the kernel lose track of its slots, which only a reboot repairs.
func stuckKernel(ctx context.Context, r *run) error {
	if !r.Patient {
		return nil
	}
	if err := r.clear(ctx); err != nil {
		return err
	}
	r.fault("the kernel's quota is stuck", func() error {
		if err := r.mac.host.Leak(rules.MaxVMsPerMac); err != nil {
			return err
		}
		name, err := r.create(ctx)
		if err != nil {
			return err
		}
		i, err := r.ends(ctx, name)
		if err != nil {
			return err
		}
		if i.Status.Phase != instancev1alpha1.MacOSInstanceFailed || i.Status.StartedAt != nil {
			return fmt.Errorf("%s is %s, started %v: %s", name, i.Status.Phase, i.Status.StartedAt, i.Status.Message)
		}
		if err := errors.Join(r.quarantined(ctx, rackv1alpha1.ReasonKernelQuotaStuck), r.recorded(ctx, rackv1alpha1.ReasonKernelQuotaStuck)); err != nil {
			return err
		}
		// A restart of the agent must not help.
		r.mac.agent.Kill()
		if err := r.mac.agent.Start(); err != nil {
			return err
		}
		time.Sleep(2 * time.Second)
		if err := r.quarantined(ctx, rackv1alpha1.ReasonKernelQuotaStuck); err != nil {
			return err
		}
		if err := r.mac.losePower(); err != nil {
			return err
		}
		if err := errors.Join(r.mac.agent.Start(), r.clear(ctx), r.mac.set("trace", "")); err != nil {
			return err
		}
		if err := wait(ctx, func() error {
			node, err := r.node(ctx)
			if err == nil && node.Status.Quarantine != nil {
				err = errors.New("the Mac is in quarantine after its reboot")
			}
			return err
		}); err != nil {
			return err
		}
		_, err = r.start(ctx)
		return errors.Join(err, r.settle(ctx))
	})
	return r.clear(ctx)
}
