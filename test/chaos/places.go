package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/rules"
)

// places ends processes at each place of the life of a virtual machine.
func places(ctx context.Context, r *run) error {
	// One life collects the places.
	if err := r.mac.set("trace", ""); err != nil {
		return err
	}
	i, err := r.start(ctx)
	if err != nil {
		return err
	}
	if err := wait(ctx, func() (err error) {
		if i, err = r.get(ctx, i.Name); err == nil && !booted(i) {
			err = fmt.Errorf("the guest of %s does not answer", i.Name)
		}
		return err
	}); err != nil {
		return err
	}
	if err := r.clear(ctx); err != nil {
		return err
	}
	var all []string
	known := map[string]bool{}
	for _, place := range r.mac.trace() {
		if !known[place] && place != "" && strings.Contains(place, r.Place) && !strings.HasPrefix(place, "attached ") && !strings.HasPrefix(place, "scrub") {
			known[place] = true
			all = append(all, place)
		}
	}
	if len(all) < 20 && r.Place == "" {
		return fmt.Errorf("only %d places were seen: %q", len(all), all)
	}
	for n, place := range all {
		modes := []string{endAgent, endBoth, endPower}
		if runnerPlace(place) {
			modes[0] = endRunner
		}
		for m, mode := range modes {
			if r.Places != 0 {
				if step := len(all) / r.Places; n%step != step/2 || n/step%len(modes) != m {
					continue // one way for each of a few places
				}
			}
			reached := false
			for try := 0; !reached && try < 5; try++ {
				if reached, err = r.reach(ctx, place); err != nil {
					r.violation("on the way to %s: %v", place, err)
				}
			}
			if !reached {
				fmt.Fprintf(r.Out, "no process reached %q in five lives\n", place)
				r.mac.disarm()
				continue
			}
			r.fault(mode+" at "+place, func() error { return r.place(ctx, mode) })
			// Regardless of its outcome, the next instance finds a working Mac.
			if !r.mac.agent.Running() {
				if err := r.mac.agent.Start(); err != nil {
					return err
				}
			}
			if err := r.clear(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// runnerPlace reports whether a place belongs to a runner.
func runnerPlace(place string) bool {
	return strings.HasPrefix(place, "runner:") || strings.HasPrefix(place, "write started.json") || strings.HasPrefix(place, "write result.json") || strings.HasPrefix(place, "write setup.json")
}

// booted reports whether the guest has booted.
func booted(i *instancev1alpha1.MacOSInstance) bool {
	return i.Status.Phase == instancev1alpha1.MacOSInstanceRunning && meta.IsStatusConditionTrue(i.Status.Conditions, instancev1alpha1.MacOSInstanceGuestReady)
}

// reach runs an instance until a process has reached a fault point, during its start or its stop,
// and reports whether one has: some fault points depend on timing.
func (r *run) reach(ctx context.Context, place string) (bool, error) {
	if strings.HasPrefix(place, "report Pulling") { // only a missing image is fetched
		if err := os.RemoveAll(filepath.Join(r.mac.state(), "images")); err != nil {
			return false, err
		}
	}
	if err := r.mac.set("arm", place); err != nil {
		return false, err
	}
	name, err := r.create(ctx)
	if err != nil {
		return false, err
	}
	r.reached, r.down = name, false
	hit := false
	err = wait(ctx, func() error {
		if _, hit = r.mac.hit(); hit {
			return nil
		}
		i, err := r.get(ctx, name)
		if apierrors.IsNotFound(err) && r.down {
			return nil
		}
		if err != nil {
			return err
		}
		if booted(i) && !r.down {
			r.down = true
			if err := r.admin.InstanceV1alpha1().MacOSInstances(tenant).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
		return fmt.Errorf("no process reaches %q; %s is %s", place, name, i.Status.Phase)
	})
	if err == nil && !hit {
		_, hit = r.mac.hit()
	}
	return hit, err
}

// place ends processes at the place that was reached.
func (r *run) place(ctx context.Context, mode string) error {
	defer r.mac.disarm()
	name, down := r.reached, r.down
	pid, _ := r.mac.hit()
	before := map[string]int{}
	if mode == endAgent {
		before = r.pids(ctx)
	}
	if err := r.end(pid, mode); err != nil {
		return err
	}
	r.mac.disarm()
	if !r.mac.agent.Running() {
		if err := r.mac.agent.Start(); err != nil {
			return err
		}
	}
	if !down {
		var i *instancev1alpha1.MacOSInstance
		if err := wait(ctx, func() (err error) {
			if i, err = r.get(ctx, name); err == nil && !rules.InstanceEnded(i.Status.Phase) && i.Status.Phase != instancev1alpha1.MacOSInstanceRunning {
				err = fmt.Errorf("%s is %s: %s", name, i.Status.Phase, i.Status.Message)
			}
			return err
		}); err != nil {
			return err
		}
		if mode == endAgent && rules.InstanceEnded(i.Status.Phase) {
			return fmt.Errorf("only the agent was killed, and %s is %s: %s", name, i.Status.Phase, i.Status.Message)
		}
		if err := errors.Join(r.settle(ctx), r.same(ctx, before)); err != nil {
			return err
		}
	}
	return errors.Join(r.clear(ctx), r.settle(ctx))
}

// end ends the processes of a mode. No mode resumes the process at the fault point.
func (r *run) end(hit int, mode string) error {
	switch mode {
	case endPower:
		return r.mac.losePower()
	case endAgent:
		r.mac.agent.Kill()
	case endRunner:
		r.mac.killRunners(hit)
	case endBoth:
		r.mac.agent.Kill()
		r.mac.killRunners(r.mac.runners()...)
	}
	return nil
}
