package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
)

// two starts two instances and returns their processes.
func (r *run) two(ctx context.Context) (map[string]int, error) {
	var names []string
	for range rules.MaxVMsPerMac {
		name, err := r.create(ctx)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	for _, name := range names {
		if _, err := r.runs(ctx, name); err != nil {
			return nil, err
		}
	}
	if err := r.settle(ctx); err != nil {
		return nil, err
	}
	return r.pids(ctx), nil
}

// same fails unless the same virtual machines run as before, in the same processes.
func (r *run) same(ctx context.Context, before map[string]int) error {
	after := r.pids(ctx)
	for name, pid := range before {
		if after[name] != pid {
			return fmt.Errorf("%s ran as process %d, and now as %d", name, pid, after[name])
		}
	}
	return nil
}

// adopted waits until an agent that was just started has adopted the virtual machines.
func (r *run) adopted(ctx context.Context, seen map[string]int) error {
	return wait(ctx, func() error {
		for name, before := range seen {
			i, err := r.get(ctx, name)
			if err != nil {
				return err
			}
			if r.attached(i.UID) <= before {
				return fmt.Errorf("the agent has not adopted %s", name)
			}
		}
		return nil
	})
}

func (r *run) seen(ctx context.Context, names map[string]int) (map[string]int, error) {
	seen := map[string]int{}
	for name := range names {
		i, err := r.get(ctx, name)
		if err != nil {
			return nil, err
		}
		seen[name] = r.attached(i.UID)
	}
	return seen, nil
}

// agentKills kills the agent while two virtual machines run.
func agentKills(ctx context.Context, r *run) error {
	before, err := r.two(ctx)
	if err != nil {
		return err
	}
	for n := range r.AgentKills {
		seen, err := r.seen(ctx, before)
		if err != nil {
			return err
		}
		r.fault(fmt.Sprintf("kill -9 of the agent, %d of %d", n+1, r.AgentKills), func() error {
			r.mac.agent.Kill()
			if err := r.mac.agent.Start(); err != nil {
				return err
			}
			return errors.Join(r.adopted(ctx, seen), r.settle(ctx), r.same(ctx, before))
		})
	}
	return r.clear(ctx)
}

// runnerKills kills a runner, and both runners with the agent.
func runnerKills(ctx context.Context, r *run) error {
	for n := range r.RunnerKills {
		before, err := r.two(ctx)
		if err != nil {
			return err
		}
		all := n%2 == 1
		r.fault("kill -9 of runners", func() error {
			dead := map[string]bool{}
			if all {
				r.mac.agent.Kill()
			}
			for name, pid := range before {
				r.mac.killRunners(pid)
				dead[name] = true
				if !all {
					break
				}
			}
			if all {
				if err := r.mac.agent.Start(); err != nil {
					return err
				}
			}
			for name := range dead {
				i, err := r.ends(ctx, name)
				if err != nil {
					return err
				}
				if i.Status.Phase != instancev1alpha1.MacOSInstanceFailed || !strings.Contains(i.Status.Message, "killed") {
					return fmt.Errorf("%s is %s: %s", name, i.Status.Phase, i.Status.Message)
				}
				delete(before, name)
			}
			return errors.Join(r.settle(ctx), r.same(ctx, before))
		})
		if err := r.clear(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Ways in which processes end at a place.
const (
	endAgent  = "agent"
	endRunner = "runner"
	endBoth   = "agent and runner"
	endPower  = "power"
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

// reach runs an instance until a process has reached a place, on the way up or
// on the way down, and reports whether one has: some places depend on timing.
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

// end ends the processes of a mode. The process that was hit continues in no mode.
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

// diskFull fills the disk at each phase of a life, by writes that fail and, for a
// root user, by a file system that is full.
func diskFull(ctx context.Context, r *run) error {
	steps := []struct {
		name string
		do   func() error
	}{
		{"before a start", func() error {
			name, err := r.create(ctx)
			if err != nil {
				return err
			}
			// It waits, or it fails with a message; and it does not run.
			if err := wait(ctx, func() error {
				i, err := r.get(ctx, name)
				if err == nil && (i.Status.Message == "" || i.Status.Phase == instancev1alpha1.MacOSInstanceRunning) {
					err = fmt.Errorf("%s is %s: %s", name, i.Status.Phase, i.Status.Message)
				}
				return err
			}); err != nil {
				return err
			}
			time.Sleep(200 * time.Millisecond)
			r.mac.unset("full")
			return r.settle(ctx)
		}},
		{"under a running VM that stops", func() error {
			r.mac.unset("full")
			i, err := r.start(ctx)
			if err != nil {
				return err
			}
			if err := r.mac.set("full", ""); err != nil {
				return err
			}
			if err := r.delete(ctx, i.Name); err != nil {
				return err
			}
			// Its slot must be free at once: this frees space on the full disk.
			return wait(ctx, func() error {
				if left := r.mac.leftovers(); len(left) > 0 {
					return fmt.Errorf("left: %v", left)
				}
				return nil
			})
		}},
		{"under a running VM, and the agent is killed", func() error {
			r.mac.unset("full")
			if _, err := r.start(ctx); err != nil {
				return err
			}
			before := r.pids(ctx)
			if err := r.mac.set("full", ""); err != nil {
				return err
			}
			seen, err := r.seen(ctx, before)
			if err != nil {
				return err
			}
			r.mac.agent.Kill()
			return errors.Join(r.mac.agent.Start(), r.adopted(ctx, seen), r.settle(ctx), r.same(ctx, before))
		}},
		{"under a running VM that crashes", func() error {
			r.mac.unset("full")
			i, err := r.start(ctx)
			if err != nil {
				return err
			}
			if err := r.mac.set("full", ""); err != nil {
				return err
			}
			r.mac.killRunners(r.pids(ctx)[i.Name])
			if i, err = r.ends(ctx, i.Name); err == nil && i.Status.Phase != instancev1alpha1.MacOSInstanceFailed {
				err = fmt.Errorf("%s is %s: %s", i.Name, i.Status.Phase, i.Status.Message)
			}
			return errors.Join(err, r.settle(ctx))
		}},
	}
	for _, step := range steps {
		r.fault("disk full "+step.name, func() error {
			if err := r.mac.set("full", ""); err != nil {
				return err
			}
			defer r.mac.unset("full")
			return step.do()
		})
		if err := r.clear(ctx); err != nil {
			return err
		}
	}
	if os.Geteuid() == 0 && r.Places == 0 {
		return r.smallDisk(ctx)
	}
	return nil
}

// smallDisk uses a separate, full file system for the slots.
func (r *run) smallDisk(ctx context.Context) error {
	dir := filepath.Join(r.mac.state(), "slots")
	r.mac.agent.Kill()
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,mode=0700")); err != nil {
		fmt.Fprintf(r.Out, "no file system can be mounted here (%v): full file systems are not tried\n", err)
		return r.mac.agent.Start()
	}
	defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
	if err := r.mac.agent.Start(); err != nil {
		return err
	}
	// The agent empties its slots when it starts, which would remove the filler too.
	if _, err := r.start(ctx); err != nil {
		return err
	}
	if err := r.clear(ctx); err != nil {
		return err
	}
	filler := filepath.Join(dir, "filler")
	for _, left := range []int64{0, 4 << 10, 8 << 10, 12 << 10, 16 << 10, 24 << 10, 32 << 10, 40 << 10, 48 << 10} {
		r.fault(fmt.Sprintf("a file system with %d bytes left", left), func() error {
			size := int64(256<<10) - left
			if err := os.WriteFile(filler, make([]byte, size-8<<10), 0o600); err != nil && !errors.Is(err, syscall.ENOSPC) {
				return err
			}
			name, err := r.create(ctx)
			if err != nil {
				return err
			}
			_ = waitFor(ctx, time.Second, func() error {
				i, err := r.get(ctx, name)
				if err == nil && i.Status.Phase != instancev1alpha1.MacOSInstanceRunning {
					err = errors.New("not yet")
				}
				return err
			})
			if err := os.Remove(filler); err != nil {
				return err
			}
			return errors.Join(r.settle(ctx), r.clear(ctx), r.settle(ctx))
		})
	}
	if err := r.clear(ctx); err != nil {
		return err
	}
	r.mac.agent.Kill()
	if err := syscall.Unmount(dir, 0); err != nil {
		return err
	}
	return r.mac.agent.Start()
}

// orphans plants virtual machines that belong to no instance.
func orphans(ctx context.Context, r *run) error {
	plant := func(slot int, change func(*contract.Spec)) error {
		dir := r.mac.slot(slot)
		spec := &contract.Spec{
			InstanceUID: string(uuid.NewUUID()), Namespace: tenant, Name: "nobodys", CPU: 1, MemoryBytes: 1 << 30,
			MachineID: sim.NewMachineID(), MACAddress: "02:00:00:00:00:99",
		}
		change(spec)
		if err := errors.Join(os.MkdirAll(dir.DiskDir(), 0o700), os.WriteFile(dir.DiskPath(), []byte("disk"), 0o600), contract.WriteJSON(dir.SpecPath(), spec)); err != nil {
			return err
		}
		return r.mac.startRunner(dir)
	}
	r.fault("a virtual machine without an instance", func() error {
		var unknown string
		r.mac.agent.Kill()
		if err := plant(0, func(s *contract.Spec) { unknown = s.InstanceUID }); err != nil {
			return err
		}
		if err := wait(ctx, func() error {
			if n := len(r.mac.vms(ctx)); n != 1 {
				return fmt.Errorf("%d run", n)
			}
			return nil
		}); err != nil {
			return err
		}
		if err := errors.Join(r.mac.agent.Start(), r.quarantined(ctx, rackv1alpha1.ReasonUnknownInstance)); err != nil {
			return err
		}
		// It continues to run, also with an agent that has just started, until an administrator
		// decides. The Mac is already in quarantine, so only the new agent's log shows when that
		// agent has looked at the virtual machine.
		r.mac.agent.Kill()
		looked := r.leftAlone(unknown)
		err := errors.Join(r.mac.agent.Start(), wait(ctx, func() error {
			if r.leftAlone(unknown) <= looked {
				return errors.New("the new agent has not left the unknown virtual machine alone")
			}
			return nil
		}), r.quarantined(ctx, rackv1alpha1.ReasonUnknownInstance))
		if n := len(r.mac.vms(ctx)); n != 1 {
			err = errors.Join(err, fmt.Errorf("%d virtual machines run, wanted the unknown one", n))
		}
		return errors.Join(err, r.decide(ctx, unknown), r.recorded(ctx, "UnknownInstance"), r.unquarantine(ctx), r.clear(ctx), r.settle(ctx))
	})
	i, err := r.start(ctx)
	if err != nil {
		return err
	}
	r.fault("a copy of a running virtual machine", func() error {
		before := r.pids(ctx)
		used := r.mac.vms(ctx)[0].slot
		r.mac.agent.Kill()
		if err := plant(1-used, func(s *contract.Spec) {
			s.InstanceUID, s.Name, s.MachineID, s.MACAddress = string(i.UID), i.Name, i.Status.MachineID, i.Status.MACAddress
		}); err != nil {
			return err
		}
		err := errors.Join(r.mac.agent.Start(), r.recorded(ctx, "DuplicateIdentity"), r.settle(ctx))
		if len(r.pids(ctx)) != 1 || len(before) != 1 {
			err = errors.Join(err, fmt.Errorf("%v ran, now %v", before, r.pids(ctx)))
		}
		return err
	})
	return r.clear(ctx)
}

// stopLimit bounds the shutdown of an agent, even if it waits for the API.
const stopLimit = 6 * time.Second

// outage cuts the Mac off from the API.
func outage(ctx context.Context, r *run) error {
	before, err := r.two(ctx)
	if err != nil {
		return err
	}
	for _, how := range []string{"silent", "refusing"} {
		if how == "silent" && r.Places != 0 {
			continue
		}
		r.fault("the API "+how+", an agent that is shut down", func() (err error) {
			mend := func() error { r.mac.link.setCut(false); return nil }
			if how == "silent" {
				r.mac.link.setCut(true)
			} else {
				mend = r.mac.link.refuse()
			}
			defer func() { err = errors.Join(err, mend()) }()
			for _, state := range []string{"ran", "had not reached the API yet"} {
				time.Sleep(r.Outage / 2)
				took := r.mac.stopAgent()
				if took > stopLimit {
					return fmt.Errorf("an agent that %s took %s", state, took)
				}
				if err := r.mac.agent.Start(); err != nil {
					return err
				}
			}
			return errors.Join(mend(), r.settle(ctx), r.same(ctx, before))
		})
	}
	r.fault("the API out of reach, the agent and a runner killed", func() error {
		r.mac.link.setCut(true)
		defer r.mac.link.setCut(false)
		r.mac.agent.Kill()
		gone := ""
		for name, pid := range before {
			gone = name
			r.mac.killRunners(pid)
			break
		}
		delete(before, gone)
		if err := r.mac.agent.Start(); err != nil {
			return err
		}
		time.Sleep(r.Outage / 2)
		r.mac.link.setCut(false)
		i, err := r.ends(ctx, gone)
		if err != nil {
			return err
		}
		if i.Status.Phase != instancev1alpha1.MacOSInstanceFailed {
			return fmt.Errorf("%s is %s: %s", gone, i.Status.Phase, i.Status.Message)
		}
		return errors.Join(r.settle(ctx), r.same(ctx, before))
	})
	return r.clear(ctx)
}

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

// hungRunner uses a runner that ignores requests.
func hungRunner(ctx context.Context, r *run) error {
	if !r.Patient {
		return nil
	}
	before, err := r.two(ctx)
	if err != nil {
		return err
	}
	r.fault("a runner that hangs while it is to stop", func() error {
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

// scrubs ends the agent at each place of a scrub, and checks what is left of the
// tenant, and that the Mac can be leased again.
func scrubs(ctx context.Context, r *run) error {
	all := []string{"", "scrub: begins", "scrub: erased", "scrub: report: before", "scrub: report: after", "wipe: spec gone", "wipe: removed disk", "write state.json: renamed"}
	if err := r.clear(ctx); err != nil {
		return err
	}
	for n, place := range all {
		for m, mode := range []string{endAgent, endPower} {
			if place == "" && mode == endPower || r.Scrubs != 0 && n*2+m != 3 {
				continue
			}
			r.fault(fmt.Sprintf("%s at %q while the Mac is scrubbed", mode, place), func() error { return r.scrub(ctx, place, mode) })
		}
	}
	return r.ledger(ctx)
}

func (r *run) scrub(ctx context.Context, place, mode string) error {
	if _, err := r.start(ctx); err != nil {
		return err
	}
	// Plant leftovers of interrupted acts, and unknown files.
	stray := filepath.Join(r.mac.state(), "slots", "copy-of-a-disk")
	if err := os.WriteFile(stray, []byte("secret"), 0o600); err != nil {
		return err
	}
	if place != "" {
		if err := r.mac.set("arm", place); err != nil {
			return err
		}
		defer r.mac.disarm()
	}
	old := r.lease
	leases := r.admin.RackV1alpha1().MacNodeLeases(tenant)
	if err := leases.Delete(ctx, old, metav1.DeleteOptions{}); err != nil {
		return err
	}
	ended := make(chan error, 1)
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if place == "" {
			ended <- nil
			return
		}
		ended <- wait(over, func() error {
			pid, hit := r.mac.hit()
			if !hit {
				return fmt.Errorf("no process reaches %q", place)
			}
			if err := r.end(pid, mode); err != nil {
				return err
			}
			r.mac.disarm()
			return r.mac.agent.Start()
		})
	}()
	if err := wait(ctx, func() error {
		lease, err := leases.Get(ctx, old, metav1.GetOptions{})
		if err == nil && lease.Status.Phase != rackv1alpha1.MacNodeLeaseHeld {
			err = fmt.Errorf("lease %s is %s", old, lease.Status.Phase)
		}
		return err
	}); err != nil {
		return err
	}
	r.tb.Advance(25 * time.Hour)
	if err := r.mac.set("clock", r.tb.Clock.Offset().String()); err != nil {
		return err
	}
	if err := <-ended; err != nil {
		return err
	}
	var available error
	if err := wait(ctx, func() error {
		node, err := r.node(ctx)
		if err == nil && node.Status.LeaseRef != nil {
			err = fmt.Errorf("the Mac is %s: quarantine %+v, scrub %+v", node.Status.Phase, node.Status.Quarantine, node.Status.Scrub)
		} else if err == nil && node.Status.Phase != rackv1alpha1.MacNodeAvailable {
			err = fmt.Errorf("the Mac is %s: quarantine %+v", node.Status.Phase, node.Status.Quarantine)
		}
		// From the first moment at which another tenant can lease the Mac, no data is left.
		if err == nil {
			if left := r.mac.leftovers(); len(left) > 0 {
				available = fmt.Errorf("the Mac is Available, and has %v", left)
			}
		}
		return err
	}); err != nil {
		return err
	}
	node, err := r.node(ctx)
	if err != nil {
		return err
	}
	if report := node.Status.Scrub; report == nil || len(report.Remaining) > 0 || !strings.Contains(strings.Join(report.Removed, "\n"), "copy-of-a-disk") ||
		!strings.Contains(strings.Join(report.Removed, "\n"), "disk/disk.img") {
		available = errors.Join(available, fmt.Errorf("the report of the scrub does not say what was removed: %+v", report))
	}
	return errors.Join(available, r.bind(ctx))
}

func waitFor(ctx context.Context, limit time.Duration, is func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := is()
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(poll)
	}
}
