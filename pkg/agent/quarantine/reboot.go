package quarantine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/slots"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// defaultMaxReboots is the limit within rebootWindow, if the RackConfig sets none. A Mac that
	// needs more has a fault that a reboot does not fix, and waits for an administrator.
	defaultMaxReboots = 3
	rebootWindow      = 24 * time.Hour

	// maxHistory bounds the stored history. It is the maximum of the limit.
	maxHistory = 24

	rebootsFile = "reboots.json"
)

// curable are the causes of a quarantine that a reboot ends: the kernel's count of virtual machines
// starts at zero, and unobserved virtual machines have ended.
var curable = []string{rackv1alpha1.ReasonKernelQuotaStuck, rackv1alpha1.ReasonScrubAsserted}

// reboot is a reboot that the agent requested.
type reboot struct {
	At metav1.Time `json:"at"`
	// Quarantine is the start of the quarantine that the reboot was to end.
	Quarantine metav1.Time `json:"quarantine"`
}

// RebootConfig configures a Rebooter.
type RebootConfig struct {
	Host      host.Host
	Slots     *slots.Manager
	Instances *objects.Instances
	Queue     *queue.Queue[queue.Key]
	Clock     clock.PassiveClock
	// StateDir holds the history of the reboots.
	StateDir string
	// PlacementLock is read-locked while a VM is placed in a slot, and write-locked during a scrub
	// or a reboot.
	PlacementLock *sync.RWMutex
}

// Rebooter reboots the Mac to end a quarantine.
type Rebooter struct {
	RebootConfig
	whenEmpty  atomic.Bool
	maxReboots atomic.Int32
}

// NewRebooter returns a Rebooter that never reboots, until SetPolicy.
func NewRebooter(config RebootConfig) *Rebooter { return &Rebooter{RebootConfig: config} }

// SetPolicy sets the RackConfig's policy for quarantined Macs.
func (r *Rebooter) SetPolicy(config configv1alpha1.QuarantineConfig) {
	r.whenEmpty.Store(config.Reboot == configv1alpha1.RebootWhenEmpty)
	r.maxReboots.Store(cmp.Or(config.MaximumRebootsPerDay, defaultMaxReboots))
}

// RebootIfCurable reboots a quarantined Mac that runs no virtual machine, if the RackConfig permits
// it and a reboot can end the quarantine. The API must have the Mac's current state first.
func (r *Rebooter) RebootIfCurable(ctx context.Context, macNode *rackv1alpha1.MacNode, info host.Info) error {
	q := macNode.Status.Quarantine
	rebooter, can := r.Host.(host.Rebooter)
	if !can || !r.whenEmpty.Load() || q == nil || q.BootID != info.BootID || !slices.Contains(curable, q.Reason) {
		return nil
	}
	// No virtual machine may be placed in a slot meanwhile.
	r.PlacementLock.Lock()
	defer r.PlacementLock.Unlock()
	for _, slot := range r.Slots.Statuses() {
		if slot.Phase != slots.Free {
			return nil // a change of the slot queues it again
		}
	}
	// An instance that has run and holds no slot must be reported first. Instances that have not
	// been launched can wait.
	all, err := r.Instances.All()
	if err != nil {
		return err
	}
	waiting := int32(0)
	for _, instance := range all {
		if s := instance.Status; r.Instances.Here(instance) && s.StartGrantedAt != nil && s.StartedAt == nil && !rules.InstanceEnded(instance.Status.Phase) {
			waiting++
		}
	}
	if macNode.Status.RunningVMs > waiting {
		return nil
	}
	path := filepath.Join(r.StateDir, rebootsFile)
	history, err := readReboots(path)
	if err != nil {
		return err
	}
	now := metav1.NewTime(r.Clock.Now())
	most := int(r.maxReboots.Load())
	if why := refuseReboot(history, most, q.Since, now); why != "" {
		klog.V(2).InfoS("Mac quarantined and not rebooted", "reason", q.Reason, "why", why)
		return nil
	}
	// The history is written first: a Mac that fails in between has used up the reboot.
	history = append(history, reboot{At: now, Quarantine: q.Since})
	if err := contract.WriteJSON(path, history[max(0, len(history)-maxHistory):]); err != nil {
		return err
	}
	klog.InfoS("Rebooting quarantined Mac without virtual machines", "reason", q.Reason, "since", q.Since)
	if err := rebooter.Reboot(ctx); err != nil {
		return fmt.Errorf("reboot: %w", err)
	}
	r.Queue.Add(queue.MacNode())
	return nil
}

// refuseReboot limits reboots to one for each quarantine and to most in rebootWindow. A time in the
// future is from before the clock was set back.
func refuseReboot(history []reboot, most int, since, now metav1.Time) string {
	recent := 0
	for _, r := range history {
		if r.Quarantine.Unix() == since.Unix() {
			return "a reboot did not end the quarantine; an administrator must inspect the Mac"
		}
		if now.Sub(r.At.Time) < rebootWindow {
			recent++
		}
	}
	if recent >= most {
		return fmt.Sprintf("the Mac was rebooted %d times within %s; an administrator must inspect it", recent, rebootWindow)
	}
	return ""
}

// readReboots fails on an unreadable file: without the history there is no limit.
func readReboots(path string) ([]reboot, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var history []reboot
	if err := json.Unmarshal(data, &history); err != nil {
		return nil, fmt.Errorf("the Mac is not rebooted because %s cannot be read; inspect the Mac, then remove the file: %w", path, err)
	}
	return history, nil
}
