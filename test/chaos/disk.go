package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

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
