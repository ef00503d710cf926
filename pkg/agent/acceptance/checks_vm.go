package acceptance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// outsideSlot is the directory of a virtual machine outside of the slots. A simulator needs a
	// number.
	outsideSlot = "2"
	// slack is the number of descriptors by which a runner may differ.
	slack = 5
	// longOutput is the size of the output of one command, in bytes.
	longOutput = 1 << 20
)

func checkBoot(ctx context.Context, b *bench) error {
	began := b.Clock.Now()
	v, err := b.start(ctx, "boot", nil)
	if err != nil {
		return err
	}
	b.took("start", began)
	s, err := v.wait(ctx, b.BootTimeout, "respond", func(s slots.Status) bool { return s.Phase == slots.Attached && s.State.GuestReady })
	if err != nil {
		return err
	}
	b.took("guest responds", began)
	b.measure("guest agent", "%s", s.State.GuestAgent)
	s, err = v.wait(ctx, b.BootTimeout, "report an address", func(s slots.Status) bool { return s.Phase == slots.Attached && s.State.Address != nil })
	if err == nil {
		b.measure("address", "from %s", s.State.Address.Source)
	}
	return err
}

// pair starts two virtual machines whose guests respond.
func (b *bench) pair(ctx context.Context) (pair [rules.MaxVMsPerMac]*vm, err error) {
	for i := range pair {
		if pair[i], err = b.ready(ctx, fmt.Sprintf("vm-%d", i)); err != nil {
			return pair, err
		}
	}
	return pair, nil
}

func checkIdentity(ctx context.Context, b *bench) error {
	pair, err := b.pair(ctx)
	if err != nil {
		return err
	}
	var addresses []string
	isolated := false
	for _, v := range pair {
		s, err := v.wait(ctx, b.BootTimeout, "report an address", func(s slots.Status) bool { return s.Phase == slots.Attached && s.State.Address != nil })
		if err != nil {
			return err
		}
		if s.State.MachineID != v.spec.MachineID || s.State.MACAddress != v.spec.MACAddress {
			return fmt.Errorf("virtual machine %s has another identity than its spec", v.spec.Name)
		}
		addresses = append(addresses, s.State.Address.Value)
		isolated = isolated || s.State.Isolated
		if b.Doctor == nil {
			continue // a simulated guest has the interfaces of this host
		}
		out, err := v.succeed(ctx, "/sbin/ifconfig")
		if err != nil {
			return err
		}
		if !strings.Contains(strings.ToLower(out), v.spec.MACAddress) {
			return fmt.Errorf("no interface of guest %s has the MAC address %s", v.spec.Name, v.spec.MACAddress)
		}
	}
	// Isolated guests have the same address, each in a network of its own.
	if !isolated && addresses[0] == addresses[1] {
		return fmt.Errorf("both guests have the address %s", addresses[0])
	}
	return nil
}

func checkThirdVM(ctx context.Context, b *bench) error {
	pair, err := b.pair(ctx)
	if err != nil {
		return err
	}
	spec, err := b.spec(ctx, "third")
	if err != nil {
		return err
	}
	if err := b.slots.Prepare(spec, b.fill); err == nil {
		return errors.New("a third virtual machine was prepared")
	} else if !errors.Is(err, slots.ErrNoFreeSlot) {
		return err
	}
	result, err := b.outside(ctx, spec)
	if err != nil {
		return err
	}
	b.measure("refusal", "%s", describe(result))
	// A nil *contract.Error must not become an error that is not nil.
	if result.Error == nil || !contract.IsLimitExceeded(result.Error) {
		return fmt.Errorf("the third virtual machine ended as %s, not with the kernel's refusal", describe(result))
	}
	for _, v := range pair {
		if _, err := v.succeed(ctx, "true"); err != nil {
			return fmt.Errorf("after the refusal: %w", err)
		}
	}
	return nil
}

// outside runs a virtual machine outside of the slots, and returns its result.
func (b *bench) outside(ctx context.Context, spec *contract.Spec) (*contract.Result, error) {
	dir := contract.SlotDir(filepath.Join(b.Dir, "outside", outsideSlot))
	defer func() { _ = os.RemoveAll(filepath.Dir(string(dir))) }()
	if err := os.MkdirAll(dir.DiskDir(), 0o700); err != nil {
		return nil, err
	}
	if err := b.fill(dir); err != nil {
		return nil, err
	}
	if err := contract.WriteJSON(dir.SpecPath(), spec); err != nil {
		return nil, err
	}
	if _, err := b.Launcher.Launch(dir); err != nil {
		return nil, err
	}
	client := contract.NewClient(dir)
	deadline := b.Clock.Now().Add(startTimeout)
	for {
		result, err := dir.ReadResult()
		if err != nil || result != nil {
			return result, err
		}
		if state, err := client.State(ctx); err == nil && state.VM == contract.VMRunning || b.Clock.Now().After(deadline) {
			_, _ = client.Kill(ctx)
			return nil, errors.New("a third virtual machine runs, or its start has not ended")
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-b.Clock.After(pollInterval):
		}
	}
}

func checkExec(ctx context.Context, b *bench) error {
	v, err := b.ready(ctx, "exec")
	if err != nil {
		return err
	}
	for _, test := range []struct {
		script, out string
		codes       []int
	}{
		{"echo out; echo err >&2", "out\n", []int{0}},
		{"exit 7", "", []int{7}},
		{"kill -9 $$", "", []int{137, 255}}, // 255 of older agents of tart
	} {
		out, code, err := v.exec(ctx, "/bin/sh", "-c", test.script)
		if err != nil {
			return fmt.Errorf("%s: %w", test.script, err)
		}
		if out != test.out || !slices.Contains(test.codes, code) {
			return fmt.Errorf("%s: exit code %d and output %q, want %v and %q", test.script, code, out, test.codes, test.out)
		}
	}
	began := b.Clock.Now()
	out, code, err := v.exec(ctx, "/bin/sh", "-c", fmt.Sprintf("head -c %d /dev/zero", longOutput))
	b.took("1 MiB of output", began)
	if err == nil && (code != 0 || len(out) != longOutput) {
		err = fmt.Errorf("%d bytes of output and exit code %d, want %d and 0", len(out), code, longOutput)
	}
	return err
}

func checkSetup(ctx context.Context, b *bench) error {
	const key = "ssh-ed25519 AAAA acceptance"
	v, err := b.start(ctx, "setup", func(s *contract.Spec) {
		s.SSHAuthorizedKeys, s.StartupScript = []string{key}, "echo hello; exit 3"
	})
	if err != nil {
		return err
	}
	s, err := v.wait(ctx, b.BootTimeout+startTimeout, "run its startup script", func(s slots.Status) bool {
		return s.Phase == slots.Attached && s.State.StartupScript != nil
	})
	if err != nil {
		return err
	}
	if r := s.State.StartupScript; r.ExitCode != 3 || r.OutputTail != "hello\n" {
		return fmt.Errorf("exit code %d and output %q, want 3 and \"hello\\n\"", r.ExitCode, r.OutputTail)
	}
	out, _, err := v.exec(ctx, "/bin/sh", "-c", "grep -cx '"+key+"' ~/.ssh/authorized_keys")
	if err == nil && strings.TrimSpace(out) != "1" {
		err = fmt.Errorf("authorized_keys has the key %s times, want once", strings.TrimSpace(out))
	}
	return err
}

func checkDescriptors(ctx context.Context, b *bench) error {
	pair, err := b.pair(ctx)
	if err != nil {
		return err
	}
	s, _ := b.slots.Find(pair[0].uid())
	pid := s.State.PID
	if _, _, err := pair[0].exec(ctx, "true"); err != nil {
		return err
	}
	before, err := descriptors(ctx, pid)
	if err != nil {
		return err
	}
	long := make(chan error, 1)
	go func() {
		_, code, err := pair[1].exec(ctx, "/bin/sh", "-c", "sleep 5; exit 5")
		if err == nil && code != 5 {
			err = fmt.Errorf("exit code %d, want 5", code)
		}
		long <- err
	}()
	if err := pair[0].inParallel(ctx, b.Commands); err != nil {
		return err
	}
	if err := <-long; err != nil {
		return fmt.Errorf("the command in the other guest: %w", err)
	}
	after, err := descriptors(ctx, pid)
	b.measure("descriptors", "%d before, %d after %d commands", before, after, b.Commands)
	if err == nil && after > before+slack {
		err = fmt.Errorf("the runner had %d descriptors, and has %d", before, after)
	}
	return err
}

// inParallel runs commands, eight at a time: a runner limits its connections.
func (v *vm) inParallel(ctx context.Context, commands int) error {
	var group sync.WaitGroup
	errs := make(chan error, commands)
	tokens := make(chan struct{}, 8)
	for range commands {
		tokens <- struct{}{}
		group.Go(func() {
			defer func() { <-tokens }()
			if _, err := v.succeed(ctx, "true"); err != nil {
				errs <- err
			}
		})
	}
	group.Wait()
	if len(errs) > 0 {
		return fmt.Errorf("%d of %d commands failed, such as: %w", len(errs), commands, <-errs)
	}
	return nil
}

// descriptors counts the open files of a process.
func descriptors(ctx context.Context, pid int) (int, error) {
	if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
		return len(entries), nil
	}
	out, err := exec.CommandContext(ctx, "/usr/sbin/lsof", "-n", "-P", "-p", strconv.Itoa(pid)).Output()
	return strings.Count(string(out), "\n"), err
}
