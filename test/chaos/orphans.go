package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"k8s.io/apimachinery/pkg/util/uuid"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
)

// orphans plants virtual machines that belong to no instance.
func orphans(ctx context.Context, r *run) error {
	plant := func(slot int, change func(*contract.Spec)) error {
		dir := r.mac.slot(slot)
		spec := &contract.Spec{
			InstanceUID: string(uuid.NewUUID()), Namespace: tenant, Name: "orphan", CPU: 1, MemoryBytes: 1 << 30,
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
