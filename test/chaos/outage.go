package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

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
