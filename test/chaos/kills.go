package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

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
