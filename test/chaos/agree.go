package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// settle waits until the API agrees with the system. It fails if that does not happen, or if a rule
// was ever broken.
func (w *world) settle(ctx context.Context) error {
	if err := wait(ctx, func() error { return w.agree(ctx) }); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.most > rules.MaxVMsPerMac {
		return fmt.Errorf("%d virtual machines ran at the same time", w.most)
	}
	if slices.Contains(w.mac.trace(), "kernel: refused") {
		return errors.New("the start of a third virtual machine was refused by the kernel")
	}
	return nil
}

// agree compares the API with the system.
func (w *world) agree(ctx context.Context) error {
	instances, err := w.all(ctx)
	if err != nil {
		return err
	}
	node, err := w.node(ctx)
	if err != nil {
		return err
	}
	vms := map[types.UID]vm{}
	for _, v := range w.mac.vms(ctx) {
		if other, twice := vms[types.UID(v.InstanceUID)]; twice {
			return fmt.Errorf("instance %s runs in slots %d and %d", v.Name, other.slot, v.slot)
		}
		vms[types.UID(v.InstanceUID)] = v
	}
	kernel, err := w.mac.host.RunningVMs()
	if err != nil {
		return err
	}
	live := map[types.UID]bool{}
	running := 0
	for _, i := range instances {
		if err := w.identity(&i); err != nil {
			return err
		}
		v, runs := vms[i.UID]
		switch {
		case rules.InstanceEnded(i.Status.Phase):
			if runs {
				return fmt.Errorf("%s is %s, and runs (pid %d)", i.Name, i.Status.Phase, v.PID)
			}
			continue
		case runs && i.Status.StartGrantedAt == nil:
			return fmt.Errorf("instance %q is running without a granted start", i.Name)
		case i.Status.Phase != instancev1alpha1.MacOSInstanceRunning:
			return fmt.Errorf("%s is %s: %s", i.Name, i.Status.Phase, i.Status.Message)
		case !runs:
			return fmt.Errorf("%s is Running, and no virtual machine answers", i.Name)
		case v.MachineID != i.Status.MachineID || v.MACAddress != i.Status.MACAddress:
			return fmt.Errorf("%s has machine ID %s and MAC address %s, its virtual machine %s and %s", i.Name, i.Status.MachineID, i.Status.MACAddress, v.MachineID, v.MACAddress)
		}
		running++
		live[i.UID] = true
	}
	pids := w.mac.runners()
	if len(vms) != running || kernel != running || int(node.Status.RunningVMs) != running || len(pids) != running {
		return fmt.Errorf("%d instances run, %d virtual machines answer, the kernel has %d, processes %v, the MacNode has %d", running, len(vms), kernel, pids, node.Status.RunningVMs)
	}
	lease, err := w.admin.RackV1alpha1().MacNodeLeases(tenant).Get(ctx, w.lease, metav1.GetOptions{})
	if err != nil {
		return err
	}
	held := map[types.UID]bool{}
	for _, slot := range lease.Status.Instances {
		held[slot.UID] = true
	}
	if !maps.Equal(held, live) {
		return fmt.Errorf("the lease has slots for %v, and %v run", held, live)
	}
	return nil
}

// identity checks that no two instances have ever had the same identity.
func (w *world) identity(i *instancev1alpha1.MacOSInstance) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range []string{i.Status.MachineID, i.Status.MACAddress} {
		if id == "" {
			continue
		}
		if other, known := w.identities[id]; known && other != i.UID {
			return fmt.Errorf("%s has the identity %s of another instance", i.Name, id)
		}
		w.identities[id] = i.UID
	}
	return nil
}

// pids returns the processes of the virtual machines, by instance.
func (w *world) pids(ctx context.Context) map[string]int {
	pids := map[string]int{}
	for _, v := range w.mac.vms(ctx) {
		pids[v.Name] = v.PID
	}
	return pids
}

// ledger checks that each virtual machine with a granted start has one start and one end in the
// ledger.
func (w *world) ledger(ctx context.Context) error {
	records, err := w.admin.RackV1alpha1().AuditRecords(tenant).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	starts, stops := map[types.UID]int{}, map[types.UID]int{}
	for _, record := range records.Items {
		switch record.Type {
		case rackv1alpha1.InstanceStarted:
			starts[record.Instance.UID]++
		case rackv1alpha1.InstanceStopped:
			stops[record.Instance.UID]++
		}
	}
	for uid, n := range starts {
		if n != 1 || stops[uid] != 1 {
			return fmt.Errorf("the ledger has %[2]d starts and %[3]d ends of instance %[1]s", uid, n, stops[uid])
		}
	}
	if len(stops) != len(starts) {
		return fmt.Errorf("the ledger has starts of %d instances, and ends of %d", len(starts), len(stops))
	}
	return nil
}

// recorded returns the reasons of the rejections in the ledger.
func (w *world) recorded(ctx context.Context, reason string) error {
	return wait(ctx, func() error {
		records, err := w.admin.RackV1alpha1().AuditRecords(tenant).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var reasons []string
		for _, record := range records.Items {
			reasons = append(reasons, record.Details.Reason)
		}
		if !slices.Contains(reasons, reason) {
			return fmt.Errorf("the ledger has no rejection for %s", reason)
		}
		return nil
	})
}

// attached counts the agent's adoptions of virtual machines.
func (w *world) attached(uid types.UID) int {
	n := 0
	for _, place := range w.mac.trace() {
		if strings.TrimPrefix(place, "attached ") == string(uid) {
			n++
		}
	}
	return n
}

// leftAlone returns how many agents have logged that they leave a virtual machine without an
// instance alone.
func (w *world) leftAlone(uid string) int {
	log, _ := os.ReadFile(w.mac.log())
	n := 0
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "has no instance; VM kept") && strings.Contains(line, uid) {
			n++
		}
	}
	return n
}
