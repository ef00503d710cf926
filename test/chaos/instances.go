package chaos

import (
	"context"
	"fmt"

	"macrack.io/macrack/pkg/rules"
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
