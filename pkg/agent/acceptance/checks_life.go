package acceptance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/vm/contract"
)

func checkStop(ctx context.Context, b *bench) error {
	v, err := b.ready(ctx, "stop")
	if err != nil {
		return err
	}
	began := b.Clock.Now()
	if err := b.slots.Stop(ctx, v.uid(), b.Grace); err != nil {
		return err
	}
	result, err := v.ended(ctx, b.Grace+endTimeout)
	if err != nil {
		return err
	}
	b.took("shutdown", began)
	if result.Reason != contract.ExitStopped {
		return fmt.Errorf("the virtual machine ended as %s, want %s", describe(result), contract.ExitStopped)
	}
	dir, err := b.slots.Dir(v.uid())
	if err != nil {
		return err
	}
	lock, err := dir.TryLock()
	if err != nil {
		return fmt.Errorf("the stop was reported while the runner still ran: %w", err)
	}
	lock.Unlock()
	return nil
}

func checkGuestShutdown(ctx context.Context, b *bench) error {
	if b.Doctor == nil {
		return &errSkip{"a simulated guest cannot shut itself down"}
	}
	v, err := b.ready(ctx, "shutdown")
	if err != nil {
		return err
	}
	began := b.Clock.Now()
	_, _, _ = v.exec(ctx, "/bin/sh", "-c", "sudo -n /sbin/shutdown -h now") // the connection may be lost
	result, err := v.ended(ctx, b.Grace)
	if err != nil {
		return err
	}
	b.took("shutdown", began)
	if result.Reason != contract.ExitGuestShutdown {
		return fmt.Errorf("the virtual machine ended as %s, want %s", describe(result), contract.ExitGuestShutdown)
	}
	return nil
}

func checkKills(ctx context.Context, b *bench) error {
	for i := range b.Repeat {
		b.measure("kills", "%d", 2*i)
		pair, err := b.pair(ctx)
		if err != nil {
			return fmt.Errorf("after %d kills: %w", 2*i, err)
		}
		for _, v := range pair {
			s, ok := b.slots.Find(v.uid())
			if !ok {
				return slots.ErrNotHere
			}
			if s.State != nil && s.State.PID == os.Getpid() {
				return &errSkip{"the runners are part of this process"}
			}
			if err := b.slots.KillRunner(ctx, s.Slot); err != nil {
				return err
			}
			if _, err := v.ended(ctx, endTimeout); err != nil {
				return err
			}
			if err := b.slots.Erase(v.uid()); err != nil {
				return err
			}
		}
	}
	b.measure("kills", "%d", 2*b.Repeat)
	_, err := b.pair(ctx)
	return err
}

// same returns an error unless the virtual machine still runs in the same process.
func (v *vm) same(ctx context.Context, before *contract.State) error {
	s, err := v.wait(ctx, startTimeout, "be adopted", func(s slots.Status) bool { return s.Phase == slots.Attached })
	if err != nil {
		return err
	}
	if s.State.PID != before.PID || s.State.StartedAt == nil || !s.State.StartedAt.Equal(*before.StartedAt) {
		return fmt.Errorf("virtual machine %s was restarted", v.spec.Name)
	}
	_, err = v.succeed(ctx, "true")
	return err
}

// stateOf returns the state of a virtual machine that runs.
func (v *vm) stateOf() (*contract.State, error) {
	s, ok := v.bench.slots.Find(v.uid())
	if !ok || s.State == nil || s.State.StartedAt == nil {
		return nil, slots.ErrNotHere
	}
	return s.State, nil
}

func checkRestarts(ctx context.Context, b *bench) error {
	v, err := b.ready(ctx, "restart")
	if err != nil {
		return err
	}
	before, err := v.stateOf()
	if err != nil {
		return err
	}
	for i := range b.Repeat {
		b.close()
		if err := b.open(); err != nil {
			return err
		}
		if err := v.same(ctx, before); err != nil {
			return fmt.Errorf("after %d restarts: %w", i+1, err)
		}
	}
	b.measure("restarts", "%d", b.Repeat)
	return nil
}

func checkSocket(ctx context.Context, b *bench) error {
	v, err := b.start(ctx, "socket", nil)
	if err != nil {
		return err
	}
	dir, err := b.slots.Dir(v.uid())
	if err != nil {
		return err
	}
	info, err := os.Lstat(dir.SocketPath())
	if err != nil {
		return err
	}
	b.measure("path", "%d bytes, mode %s", len(dir.SocketPath()), info.Mode())
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s has mode %s, so other users have access", dir.SocketPath(), info.Mode())
	}
	return nil
}

func checkErase(ctx context.Context, b *bench) error {
	v, err := b.ready(ctx, "erase")
	if err != nil {
		return err
	}
	if _, err := v.succeed(ctx, "/bin/sh", "-c", "echo secret > ~/secret"); err != nil {
		return err
	}
	if err := b.slots.Kill(ctx, v.uid()); err != nil {
		return err
	}
	if _, err := v.ended(ctx, endTimeout); err != nil {
		return err
	}
	began := b.Clock.Now()
	if err := b.slots.Erase(v.uid()); err != nil {
		return err
	}
	b.took("erase", began)
	left, err := b.slots.Leftovers()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("files are left in %s: %v", filepath.Join(b.Dir, "slots"), left)
	}
	return err
}

func checkSleep(ctx context.Context, b *bench) error {
	return b.meanwhile(ctx, "sleep", "Run \"pmset sleepnow\", and wake this Mac after a minute. Then answer yes.")
}

func checkUpgrade(ctx context.Context, b *bench) error {
	return b.meanwhile(ctx, "upgrade", "Install the package again, as an upgrade. Then answer yes.")
}

// meanwhile checks that a virtual machine outlives what a person does.
func (b *bench) meanwhile(ctx context.Context, name, request string) error {
	if b.Ask == nil {
		return &errLater{request}
	}
	v, err := b.ready(ctx, name)
	if err != nil {
		return err
	}
	before, err := v.stateOf()
	if err != nil {
		return err
	}
	switch answer := b.ask(ctx, request); answer.Outcome {
	case Pass:
		return v.same(ctx, before)
	case Fail:
		return errors.New(answer.Note)
	case Skip:
		return &errSkip{answer.Note}
	default:
		return &errLater{request}
	}
}

func checkReboot(ctx context.Context, b *bench) error {
	info, err := b.Host.Info()
	if err != nil {
		return err
	}
	b.measure("bootID", "%s", info.BootID)
	before := b.pending["bootID"]
	if before == "" || before == info.BootID {
		return &errPending{"run sudo reboot, do nothing else, and run the acceptance again in the session that macOS opens"}
	}
	_, err = b.ready(ctx, "reboot")
	return err
}
