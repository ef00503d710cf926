package slots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/vm/contract"
)

func (s *slot) poke() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// monitor follows the runner of the slot through its watch. An empty slot needs no monitoring.
func (s *slot) monitor(ctx context.Context) {
	for {
		switch s.get().Phase {
		case Attached:
			s.follow(ctx)
		case Launching:
			s.awaitRunner(ctx)
		case Unreachable:
			select {
			case <-ctx.Done():
			case <-s.manager.config.Clock.After(s.manager.config.ProbeInterval):
			}
		default:
			select {
			case <-ctx.Done():
			case <-s.kick:
				continue
			}
		}
		if ctx.Err() != nil {
			return
		}
		s.look(ctx)
	}
}

// follow returns when the runner's watch has ended or the runner no longer responds.
func (s *slot) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	spec := s.get().Spec
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		err := s.client.Watch(ctx, func(state contract.State) {
			// The last state is not shown: the VM counts as stopped once the lock is free.
			if state.VM != contract.VMStopped {
				s.set(Status{Phase: Attached, Spec: spec, State: &state})
			}
		})
		klog.V(4).InfoS("Watch of runner ended", "slot", s.number, "err", err)
	}()
	defer func() {
		cancel()
		<-watched
	}()
	probe := s.manager.config.Clock.NewTicker(s.manager.config.ProbeInterval)
	defer probe.Stop()
	for {
		select {
		case <-watched:
			return
		case <-probe.C():
			if _, err := s.ask(ctx, s.manager.config.AnswerTimeout); err != nil {
				return
			}
		}
	}
}

// awaitRunner returns when the launched runner responds, ends, or exceeds AnswerTimeout.
func (s *slot) awaitRunner(ctx context.Context) {
	deadline := s.manager.config.Clock.After(s.manager.config.AnswerTimeout)
	for {
		if _, err := s.ask(ctx, s.manager.config.AnswerTimeout); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case err := <-s.getEnded():
			if err == nil {
				err = errors.New("the runner ended without running the VM")
			}
			s.fail(fmt.Errorf("%w: see %s", err, filepath.Join(string(s.dir), runnerLog)))
			return
		case <-deadline:
			return
		case <-s.manager.config.Clock.After(20 * time.Millisecond):
		}
	}
}

func (s *slot) ask(ctx context.Context, timeout time.Duration) (*contract.State, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.client.State(ctx)
}

// look updates the status of the slot, unless the agent is filling it.
func (s *slot) look(ctx context.Context) {
	if s.get().Phase == Preparing {
		return
	}
	if status, ok := s.inspect(ctx); ok {
		s.set(status)
	}
}

// inspect determines the status of the slot from the lock, the socket and the files. A dead runner
// has released its lock; a live one has AnswerTimeout to respond. ok is false if ctx has ended
// before.
func (s *slot) inspect(ctx context.Context) (status Status, ok bool) {
	deadline := s.manager.config.Clock.Now().Add(s.manager.config.AnswerTimeout)
	for {
		release, err := s.take(0)
		if err == nil {
			defer release()
			return s.unlocked(ctx), true
		}
		spec, readErr := s.readSpec()
		// The runner reports the VM that it runs; until it does, the known spec counts.
		held := s.known(spec, readErr)
		state, askErr := s.ask(ctx, max(deadline.Sub(s.manager.config.Clock.Now()), time.Millisecond))
		switch {
		case ctx.Err() != nil:
			return Status{}, false
		case !errors.Is(err, contract.ErrLocked):
			return Status{Phase: Unreachable, Spec: held, Err: err}, true
		case readErr != nil && !errors.Is(readErr, contract.ErrGarbled):
			return Status{Phase: Unreachable, Spec: held, Err: readErr}, true
		case askErr == nil && state.VM == contract.VMStopped:
			// The runner is about to release the lock.
		case askErr == nil && spec == nil && state.InstanceUID != "":
			// The runner's report replaces the missing spec.
			return Status{Phase: Attached, State: state, Spec: &contract.Spec{
				InstanceUID: state.InstanceUID, Namespace: state.Namespace, Name: state.Name, MachineID: state.MachineID, MACAddress: state.MACAddress,
			}}, true
		case askErr == nil && spec != nil && spec.InstanceUID == state.InstanceUID:
			return Status{Phase: Attached, Spec: spec, State: state}, true
		case askErr == nil:
			return Status{Phase: Unreachable, Spec: spec, Err: fmt.Errorf("the runner (pid %d) runs instance %s, which does not belong to this slot", state.PID, state.InstanceUID)}, true
		}
		if !s.manager.config.Clock.Now().Before(deadline) {
			return Status{Phase: Unreachable, Spec: held, Err: fmt.Errorf("the slot is locked and its runner does not respond: %w", errors.Join(askErr, readErr))}, true
		}
		select {
		case <-ctx.Done():
			return Status{}, false
		case <-s.manager.config.Clock.After(20 * time.Millisecond):
		}
	}
}

// readSpec reads the spec. A spec that does not identify a VM is ErrGarbled.
func (s *slot) readSpec() (*contract.Spec, error) {
	spec, err := s.dir.ReadSpec()
	if err != nil || spec == nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", contract.ErrGarbled, s.dir.SpecPath(), err)
	}
	return spec, nil
}

// known returns spec, or the last known spec if the file is unreadable or missing: a runner keeps
// its VM, whatever happens to the file.
func (s *slot) known(spec *contract.Spec, err error) *contract.Spec {
	if status := s.get(); (err != nil || spec == nil) && status.owned() && status.Spec != nil {
		return status.Spec
	}
	return spec
}

// unlocked returns the status of a slot without a runner. The lock is held.
func (s *slot) unlocked(ctx context.Context) Status {
	spec, err := s.readSpec()
	if known := s.known(spec, err); known != spec && (err == nil || errors.Is(err, contract.ErrGarbled)) {
		spec, err = known, nil
	}
	// A runner closes its socket before it releases the lock. If a process accepts the connection,
	// the runner holds a lock on another file.
	if conn, dialErr := s.dir.Dial(ctx); dialErr == nil {
		_ = conn.Close()
		return Status{Phase: Unreachable, Spec: spec, Err: errors.New("a process serves the slot's socket without the slot's lock")}
	}
	switch {
	case errors.Is(err, contract.ErrGarbled):
		return Status{Phase: Corrupt, Err: err}
	case err != nil:
		return Status{Phase: Unreachable, Err: err}
	case spec == nil:
		return Status{Phase: Free}
	}
	result, err := s.dir.ReadResult()
	if err == nil && result != nil && (result.Reason == "" || result.InstanceUID != spec.InstanceUID) {
		err = fmt.Errorf("%w: %s does not belong to instance %s", contract.ErrGarbled, s.dir.ResultPath(), spec.InstanceUID)
	}
	switch {
	case errors.Is(err, contract.ErrGarbled):
		return s.vanished(spec, err)
	case err != nil:
		return Status{Phase: Unreachable, Spec: spec, Err: err}
	case result != nil:
		return Status{Phase: Exited, Spec: spec, Result: result}
	}
	if _, err := os.Lstat(s.dir.StartedPath()); errors.Is(err, fs.ErrNotExist) {
		return Status{Phase: Prepared, Spec: spec, Err: s.get().Err}
	} else if err != nil {
		return Status{Phase: Unreachable, Spec: spec, Err: err}
	}
	return s.vanished(spec, nil)
}

// vanished returns the status of a slot whose runner is gone without a result. The VM may have run
// as soon as the runner held the slot.
func (s *slot) vanished(spec *contract.Spec, cause error) Status {
	result := &contract.Result{InstanceUID: spec.InstanceUID, Reason: contract.ExitVanished, EndedAt: s.manager.config.Clock.Now()}
	if cause != nil {
		result.Error = &contract.Error{Domain: "macrack.io/slots", Message: cause.Error()}
	}
	if started, err := s.dir.ReadStarted(); err == nil && started != nil && !started.At.IsZero() {
		result.StartedAt = &started.At
	}
	return Status{Phase: Exited, Spec: spec, Result: result}
}
