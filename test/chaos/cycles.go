package chaos

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
)

// cycles starts and stops virtual machines many times, and looks for leaks: first in the slots
// alone, then through the whole control plane.
func cycles(ctx context.Context, r *run) error {
	r.fault(fmt.Sprintf("%d cycles of slots", r.Cycles), func() error { return r.slotCycles(ctx) })
	r.fault(fmt.Sprintf("%d cycles of instances", r.APICycles), func() error { return r.instanceCycles(ctx) })
	return nil
}

// slotCycles runs a Mac's slots in this process, with runners of their own.
func (r *run) slotCycles(ctx context.Context) error {
	dir, err := os.MkdirTemp("/tmp", "slots-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	host := sim.HostDir(filepath.Join(dir, "host"))
	if err := errors.Join(host.Init("SIM", "boot"), host.SetGuest(contract.Simulation{})); err != nil {
		return err
	}
	changed := [rules.MaxVMsPerMac]chan struct{}{}
	for i := range changed {
		changed[i] = make(chan struct{}, 1)
	}
	m, err := slots.Open(slots.Config{
		Dir: filepath.Join(dir, "slots"), Clock: clock.RealClock{}, AnswerTimeout: time.Minute,
		Launcher: &slots.Process{Binary: filepath.Join(r.Binaries, "macrack-vm"), Args: []string{"--backend=sim", "--sim-host-dir=" + string(host)}},
		OnChange: func() {
			for _, c := range changed {
				select {
				case c <- struct{}{}:
				default:
				}
			}
		},
	})
	if err != nil {
		return err
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.Run(running)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	half := func(n int) error {
		errs := make(chan error, rules.MaxVMsPerMac)
		for worker := range rules.MaxVMsPerMac {
			go func() {
				var err error
				for cycle := worker; cycle < n && err == nil; cycle += rules.MaxVMsPerMac {
					err = slotCycle(ctx, m, fmt.Sprintf("%d-%d", n, cycle), changed[worker])
				}
				errs <- err
			}()
		}
		var all error
		for range rules.MaxVMsPerMac {
			all = errors.Join(all, <-errs)
		}
		return all
	}
	if err := half(r.Cycles / 10); err != nil {
		return err
	}
	before := ownUsage()
	if err := half(r.Cycles - r.Cycles/10); err != nil {
		return err
	}
	if err := grown(before, ownUsage()); err != nil {
		return err
	}
	left, err := m.Leftovers()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left: %v", left)
	}
	for _, s := range m.Statuses() {
		if s.Phase != slots.Free {
			err = errors.Join(err, fmt.Errorf("slot %d is %s", s.Slot, s.Phase))
		}
	}
	return err
}

func slotCycle(ctx context.Context, m *slots.Manager, uid string, changed <-chan struct{}) error {
	sum := crc32.ChecksumIEEE([]byte(uid))
	address := fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum))
	spec := &contract.Spec{InstanceUID: uid, Namespace: tenant, Name: uid, MachineID: "id-" + uid, MACAddress: address, CPU: 1, MemoryBytes: 1}
	until := func(is func(slots.Status) bool) error {
		deadline := time.After(patience)
		for {
			s, ok := m.Find(uid)
			if ok && is(s) {
				return nil
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			case <-deadline:
				return fmt.Errorf("slot of %s is stuck: %+v", uid, s)
			}
		}
	}
	if err := m.Prepare(spec, func(dir contract.SlotDir) error { return os.WriteFile(dir.DiskPath(), []byte("disk"), 0o600) }); err != nil {
		return err
	}
	if err := m.Launch(uid); err != nil {
		return err
	}
	if err := until(func(s slots.Status) bool { return s.Phase == slots.Attached && s.State.VM == contract.VMRunning }); err != nil {
		return err
	}
	if err := m.Stop(ctx, uid, time.Minute); err != nil {
		return err
	}
	if err := until(func(s slots.Status) bool { return s.Phase == slots.Exited }); err != nil {
		return err
	}
	return m.Erase(uid)
}

func ownUsage() usage {
	for range 3 {
		runtime.GC()
		time.Sleep(50 * time.Millisecond)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fds, _ := os.ReadDir("/proc/self/fd")
	return usage{len(fds), runtime.NumGoroutine(), m.HeapAlloc}
}

// Connections to the API and the like may come and go by chance.
const (
	spareFDs        = 30
	spareGoroutines = 100
	spareHeap       = 16 << 20
)

func grown(before, after usage) error {
	if after.fds > before.fds+spareFDs || after.goroutines > before.goroutines+spareGoroutines || after.heap > before.heap+spareHeap {
		return fmt.Errorf("before: %d files, %d goroutines, %d bytes; after: %d files, %d goroutines, %d bytes",
			before.fds, before.goroutines, before.heap, after.fds, after.goroutines, after.heap)
	}
	return nil
}

// instanceCycles creates and deletes instances, and measures the agent's process.
func (r *run) instanceCycles(ctx context.Context) error {
	cycle := func(n int) error {
		for range n {
			i, err := r.start(ctx)
			if err != nil {
				return err
			}
			if err := r.delete(ctx, i.Name); err != nil {
				return err
			}
		}
		return r.clear(ctx)
	}
	if err := cycle(1 + r.APICycles/10); err != nil {
		return err
	}
	before, err := r.mac.agentUsage(ctx)
	if err != nil {
		return err
	}
	if err := cycle(r.APICycles); err != nil {
		return err
	}
	after, err := r.mac.agentUsage(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "agent after %s more cycles: %d files (%+d), %d goroutines (%+d), heap %d KiB (%+d)\n", strconv.Itoa(r.APICycles),
		after.fds, after.fds-before.fds, after.goroutines, after.goroutines-before.goroutines, after.heap>>10, (int64(after.heap)-int64(before.heap))>>10)
	return errors.Join(grown(before, after), r.settle(ctx))
}
