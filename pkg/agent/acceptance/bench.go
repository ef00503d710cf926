package acceptance

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/clients"
)

const (
	// startTimeout bounds the time until the hypervisor runs a virtual machine, and endTimeout the
	// time until its runner has ended.
	startTimeout = 2 * time.Minute
	endTimeout   = time.Minute
	// pollInterval is the interval of looks at a slot.
	pollInterval = 50 * time.Millisecond
	// maxLog bounds the log in a result, in bytes.
	maxLog = 16 << 10
)

// bench is what a check works with. It ends all virtual machines of the check.
type bench struct {
	Config
	title string
	// pending are the measurements of an earlier run in which the check was Pending; nil otherwise.
	pending  map[string]string
	measured map[string]string
	slots    *slots.Manager
	close    context.CancelFunc
	log      string
}

// do runs a check with empty slots, and erases the slots at the end.
func (b *bench) do(ctx context.Context, check func(context.Context, *bench) error) error {
	if err := b.open(); err != nil {
		return err
	}
	err := b.clear() // an interrupted run may have left virtual machines
	if err == nil {
		err = check(ctx, b)
	}
	b.keepLog()
	clearErr := b.clear()
	b.close()
	if err != nil {
		return err
	}
	return clearErr
}

// open opens the slots, as an agent does that starts.
func (b *bench) open() error {
	manager, err := slots.Open(slots.Config{Dir: filepath.Join(b.Dir, "slots"), Launcher: b.Launcher, Clock: b.Clock, ProbeInterval: time.Second})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.slots, b.close = manager, cancel
	go manager.Run(ctx)
	return nil
}

func (b *bench) measure(name, format string, args ...any) {
	b.measured[name] = fmt.Sprintf(format, args...)
}

// took measures the time since began, and returns it.
func (b *bench) took(name string, began time.Time) time.Duration {
	took := b.Clock.Since(began)
	b.measure(name, "%s", took.Round(time.Millisecond))
	return took
}

// spec returns a new virtual machine.
func (b *bench) spec(ctx context.Context, name string) (*contract.Spec, error) {
	id, err := b.NewMachineID(ctx)
	if err != nil {
		return nil, err
	}
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac)        // never fails
	mac[0] = mac[0]&^0b01 | 0b10 // unicast, locally administered
	return &contract.Spec{
		InstanceUID: name + "-" + rand.Text()[:8], Namespace: "acceptance", Name: name, MachineID: id, MACAddress: mac.String(),
		CPU: b.CPU, MemoryBytes: b.Memory, HardwareModel: b.Image.HardwareModel,
	}, nil
}

// fill clones the image into a slot.
func (b *bench) fill(dir contract.SlotDir) error {
	method, err := disk.Clone(b.Image.Disk, dir.DiskPath(), b.DiskSize)
	if err != nil {
		return err
	}
	b.measure("clone", "%s", method)
	if _, err = disk.Clone(b.Image.Aux, dir.AuxPath(), 0); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// vm is a virtual machine of a check.
type vm struct {
	bench *bench
	spec  *contract.Spec
}

// start starts a virtual machine, and returns once the hypervisor runs it.
func (b *bench) start(ctx context.Context, name string, change func(*contract.Spec)) (*vm, error) {
	spec, err := b.spec(ctx, name)
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(spec)
	}
	if err := b.slots.Prepare(spec, b.fill); err != nil {
		return nil, err
	}
	if err := b.slots.Launch(spec.InstanceUID); err != nil {
		return nil, err
	}
	v := &vm{b, spec}
	_, err = v.wait(ctx, startTimeout, "run", func(s slots.Status) bool {
		return s.Phase == slots.Attached && s.State.VM == contract.VMRunning
	})
	return v, err
}

// ready starts a virtual machine, and returns once its guest responds.
func (b *bench) ready(ctx context.Context, name string) (*vm, error) {
	v, err := b.start(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	_, err = v.wait(ctx, b.BootTimeout, "respond", func(s slots.Status) bool { return s.Phase == slots.Attached && s.State.GuestReady })
	return v, err
}

func (v *vm) uid() string { return v.spec.InstanceUID }

// wait waits until the slot is in a state. An end that is not waited for is an error.
func (v *vm) wait(ctx context.Context, timeout time.Duration, verb string, is func(slots.Status) bool) (slots.Status, error) {
	deadline := v.bench.Clock.Now().Add(timeout)
	for {
		s, ok := v.bench.slots.Find(v.uid())
		switch {
		case !ok:
			return s, fmt.Errorf("virtual machine %s is in no slot", v.spec.Name)
		case is(s):
			return s, nil
		case s.Phase == slots.Exited:
			return s, fmt.Errorf("virtual machine %s ended: %s", v.spec.Name, describe(s.Result))
		case v.bench.Clock.Now().After(deadline):
			return s, fmt.Errorf("virtual machine %s did not %s within %s; its slot is %s", v.spec.Name, verb, timeout, s.Phase)
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-v.bench.Clock.After(pollInterval):
		}
	}
}

func describe(r *contract.Result) string {
	if r == nil {
		return "unknown"
	}
	if r.Error != nil {
		return fmt.Sprintf("%s (%v)", r.Reason, r.Error)
	}
	return string(r.Reason)
}

// ended waits for the end of the virtual machine.
func (v *vm) ended(ctx context.Context, timeout time.Duration) (*contract.Result, error) {
	s, err := v.wait(ctx, timeout, "end", func(s slots.Status) bool { return s.Phase == slots.Exited })
	return s.Result, err
}

// exec runs a command in the guest, and returns its output.
func (v *vm) exec(ctx context.Context, args ...string) (string, int, error) {
	s, ok := v.bench.slots.Find(v.uid())
	if !ok || s.State == nil {
		return "", 0, slots.ErrNotHere
	}
	kind := s.State.GuestAgent
	client, err := clients.New(kind, func(ctx context.Context) (net.Conn, error) {
		return v.bench.slots.Connect(ctx, v.uid(), clients.Port(kind))
	})
	if err != nil {
		return "", 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	var out bytes.Buffer
	code, err := client.Exec(ctx, guest.Command{Args: args, Stdout: &out})
	return out.String(), code, err
}

// succeed runs a command in the guest that must exit with 0, and returns its output.
func (v *vm) succeed(ctx context.Context, args ...string) (string, error) {
	out, code, err := v.exec(ctx, args...)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		return out, fmt.Errorf("%v in guest %s: %w", args, v.spec.Name, err)
	}
	return out, nil
}

// keepLog keeps the end of the logs of the virtual machines.
func (b *bench) keepLog() {
	for _, s := range b.slots.Statuses() {
		if s.Spec == nil {
			continue
		}
		dir := filepath.Join(b.Dir, "slots", fmt.Sprint(s.Slot))
		for _, name := range []string{"runner.log", "console.log"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err == nil {
				b.log += fmt.Sprintf("== %s of %s\n%s\n", name, s.Spec.Name, data[max(0, len(data)-maxLog/4):])
			}
		}
	}
}

// clear ends all virtual machines and erases their slots.
func (b *bench) clear() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	for _, s := range b.slots.Statuses() {
		if s.UID() == "" {
			continue
		}
		if s.Phase == slots.Attached || s.Phase == slots.Launching || s.Phase == slots.Unreachable {
			if b.slots.Kill(ctx, s.UID()) != nil {
				_ = b.slots.KillRunner(ctx, s.Slot)
			}
			if _, err := (&vm{b, s.Spec}).ended(ctx, endTimeout); err != nil {
				return err
			}
		}
		if err := b.slots.Erase(s.UID()); err != nil {
			return err
		}
	}
	left, err := b.slots.Leftovers()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("files are left in the slots: %v", left)
	}
	return err
}
