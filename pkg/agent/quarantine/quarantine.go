// Package quarantine reports in the condition SlotsHealthy whether the slots of the Mac can be
// trusted. The registry decides about the quarantine. A Mac with an untrusted slot starts no
// virtual machine. The package handles the virtual machines that do not match the API, unreadable
// slots, and reboots.
package quarantine

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/rejections"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/agent/state"
	"macrack.io/macrack/pkg/agent/teardown"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// uncheckedPause is the time between checks of a virtual machine whose instance is not in the
// cache.
const uncheckedPause = 200 * time.Millisecond

// sessionPatience is how long the login session may be missing: after a boot, automatic login takes
// a while.
const sessionPatience = 5 * time.Minute

// Config configures a Quarantine.
type Config struct {
	State      *state.File
	Host       host.Host
	Slots      *slots.Manager
	MacNode    *objects.MacNode
	Mismatches *Mismatches
	Stopper    *teardown.Stopper
	Rejections *rejections.Recorder
	Queue      *queue.Queue[queue.Key]
	Clock      clock.PassiveClock
	// EnqueueAll queues all objects of the Mac.
	EnqueueAll func()
}

// Quarantine reports whether the slots can be trusted.
type Quarantine struct {
	Config

	mu sync.Mutex
	// loggedOut is when the login session was first missing; zero while there is one.
	loggedOut time.Time
}

// New returns a Quarantine.
func New(config Config) *Quarantine { return &Quarantine{Config: config} }

// Blocks reports whether a quarantine forbids new virtual machines.
func (q *Quarantine) Blocks(macNode *rackv1alpha1.MacNode) bool {
	return q.State.Get().Unhealthy != nil || macNode.Status.Quarantine != nil || q.Mismatches.Unknown() != ""
}

// KernelQuotaStuck stores that the kernel refuses virtual machines within the limit. Only a reboot
// resets its quota.
func (q *Quarantine) KernelQuotaStuck(message string) error {
	return q.distrust(rackv1alpha1.ReasonKernelQuotaStuck, message)
}

// KeychainLocked stores that virtual machines do not start because the login keychain is locked.
func (q *Quarantine) KeychainLocked(message string) error {
	return q.distrust(rackv1alpha1.ReasonKeychainLocked, message)
}

// NoLoginSession returns an error while virtual machines cannot start because the agent's user is
// not logged in.
func (q *Quarantine) NoLoginSession() error {
	_, err := q.loginSession()
	return err
}

// loginSession returns an error without a login session, and how long the session has been missing.
func (q *Quarantine) loginSession() (missing time.Duration, err error) {
	if checker, ok := q.Host.(host.SessionChecker); ok {
		err = checker.LoginSession()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case err == nil:
		q.loggedOut = time.Time{}
		return 0, nil
	case q.loggedOut.IsZero():
		q.loggedOut = q.Clock.Now()
	}
	return q.Clock.Since(q.loggedOut), err
}

func (q *Quarantine) distrust(reason, message string) error {
	info, err := q.Host.Info()
	if err != nil {
		return err
	}
	if err := q.State.Change(func(d *state.Data) {
		if d.Unhealthy == nil {
			d.Unhealthy = &state.Unhealthy{Reason: reason, Message: message, BootID: info.BootID}
		}
	}); err != nil {
		return err
	}
	q.Queue.Add(queue.MacNode())
	return nil
}

// Recover marks the slots as trusted again after a reboot of the Mac, or after an administrator has
// ended the quarantine. It reads only the cache: the agent's own last write expires, and its expiry
// would look like an ended quarantine.
func (q *Quarantine) Recover(info host.Info) error {
	macNode, err := q.MacNode.Cached()
	if err != nil {
		return err
	}
	u := q.State.Get().Unhealthy
	if u == nil {
		return nil
	}
	quarantined := macNode.Status.Quarantine != nil
	switch {
	case u.BootID != info.BootID, u.Quarantined && !quarantined:
		klog.InfoS("Slots trusted again", "reason", u.Reason, "rebooted", u.BootID != info.BootID)
		if err := q.State.Change(func(d *state.Data) { d.Unhealthy = nil }); err != nil {
			return err
		}
		q.EnqueueAll() // instances wait for it
	case quarantined && !u.Quarantined:
		return q.State.Change(func(d *state.Data) { d.Unhealthy.Quarantined = true })
	}
	return nil
}

// SetSlotsHealthy sets the condition SlotsHealthy. The registry quarantines the Mac while it is
// False. The last cause in the function takes precedence.
func (q *Quarantine) SetSlotsHealthy(macNode *rackv1alpha1.MacNode, info host.Info) {
	status, reason, message := metav1.ConditionTrue, "SlotsObtainable", ""
	unhealthy := func(r, m string) { status, reason, message = metav1.ConditionFalse, r, m }
	for _, slot := range q.Slots.Statuses() {
		if slot.Phase == slots.Unreachable {
			unhealthy(rackv1alpha1.ReasonCannotReattach, fmt.Sprintf("slot %d: %v", slot.Slot, slot.Err))
		}
	}
	if report := macNode.Status.Scrub; report != nil && len(report.Remaining) > 0 {
		unhealthy(rackv1alpha1.ReasonScrubFailed, fmt.Sprintf("%d files of the last tenant remain", len(report.Remaining)))
	}
	if missing, err := q.loginSession(); err != nil && missing >= sessionPatience {
		unhealthy(rackv1alpha1.ReasonNoLoginSession, err.Error())
	}
	if u := q.State.Get().Unhealthy; u != nil {
		unhealthy(u.Reason, u.Message)
	}
	if unknown := q.Mismatches.Unknown(); unknown != "" {
		unhealthy(rackv1alpha1.ReasonUnknownInstance, unknown)
	}
	if info.SerialNumber != macNode.Spec.SerialNumber {
		unhealthy(rackv1alpha1.ReasonSerialMismatch, fmt.Sprintf("the Mac has serial number %s, the MacNode has %s", info.SerialNumber, macNode.Spec.SerialNumber))
	}
	if _, found := q.Mismatches.Unchecked(); found && status == metav1.ConditionTrue {
		// An agent that has just started does not vouch for a virtual machine whose instance it has
		// not looked up yet.
		q.Queue.AddAfter(queue.MacNode(), uncheckedPause)
		return
	}
	q.MacNode.SetCondition(macNode, rackv1alpha1.MacNodeSlotsHealthy, status, reason, message)
}

// EraseCorrupt erases unreadable slots in which nothing runs. If one held an instance, that
// instance's next reconciliation reports its VM as missing.
func (q *Quarantine) EraseCorrupt(ctx context.Context, macNode *rackv1alpha1.MacNode) error {
	for _, slot := range q.Slots.Statuses() {
		if slot.Phase != slots.Corrupt {
			continue
		}
		klog.ErrorS(slot.Err, "Erasing slot with unreadable files", "slot", slot.Slot)
		if lease := macNode.Status.LeaseRef; lease != nil {
			message := fmt.Sprintf("slot %d held unreadable files; no virtual machine ran there, and the slot was erased: %v", slot.Slot, slot.Err)
			if err := q.Rejections.Record(ctx, rackv1alpha1.LayerAgent, lease.Namespace, nil, rejections.ReasonGarbledSlot, message); rejections.IsTransient(err) {
				return err
			}
		}
		if err := q.Stopper.Erase(slot); err != nil {
			return err
		}
		q.EnqueueAll() // the slot may have held an instance
	}
	return nil
}
