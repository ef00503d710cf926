// Package why is the command that explains what a lease, an instance or a Mac waits for.
package why

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/rules"
)

// An Explanation is the data of an explanation, as -o json prints it.
type Explanation struct {
	metav1.TypeMeta `json:",inline"`
	// Time is the time of the explanation.
	Time   string `json:"time"`
	Object Object `json:"object"`
	// Phase is the phase of the object.
	Phase string `json:"phase"`
	// Blocking is the condition that keeps the object from its goal; absent if nothing does.
	Blocking *Blocking `json:"blocking,omitempty"`
	// Facts describe the object, one sentence each.
	Facts []string `json:"facts,omitempty"`
	// Next are the steps that help.
	Next []Step `json:"next,omitempty"`
	// Events and Records are the last ones about the object, oldest first.
	Events  []Event  `json:"events,omitempty"`
	Records []Record `json:"records,omitempty"`
	// Notices state what is not shown.
	Notices []string `json:"notices,omitempty"`
}

// An Object identifies the explained object.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Blocking is a condition that is not met.
type Blocking struct {
	Type    string                 `json:"type"`
	Status  metav1.ConditionStatus `json:"status"`
	Reason  string                 `json:"reason,omitempty"`
	Message string                 `json:"message,omitempty"`
	// Since is the time of the last change of the status.
	Since string `json:"since"`

	since time.Time
}

// A Step is a command to type, and its purpose.
type Step struct {
	Purpose string `json:"purpose"`
	Command string `json:"command"`
}

// An Event is an Event of the object.
type Event struct {
	Time    string `json:"time"`
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	Count   int32  `json:"count"`
}

// A Record is a record of the ledger.
type Record struct {
	Time  string `json:"time"`
	Type  string `json:"type"`
	Actor string `json:"actor,omitempty"`
	// Reason and Message are those of a rejection, a stop or a quarantine.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

func newExplanation(object Object, phase string, now time.Time) *Explanation {
	return &Explanation{
		TypeMeta: metav1.TypeMeta{APIVersion: cmdutil.APIVersion, Kind: "Explanation"},
		Time:     cmdutil.Time(now), Object: object, Phase: phase,
	}
}

func (e *Explanation) fact(format string, args ...any) {
	e.Facts = append(e.Facts, fmt.Sprintf(format, args...))
}

func (e *Explanation) next(purpose, format string, args ...any) {
	e.Next = append(e.Next, Step{Purpose: purpose, Command: fmt.Sprintf(format, args...)})
}

// block sets the first of the conditions that is not True as the blocking one. Absent conditions
// are not known and do not block.
func (e *Explanation) block(conditions []metav1.Condition, names ...string) {
	for _, name := range names {
		if c := meta.FindStatusCondition(conditions, name); c != nil && c.Status != metav1.ConditionTrue {
			e.Blocking = &Blocking{
				Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message,
				Since: cmdutil.Time(c.LastTransitionTime.Time), since: c.LastTransitionTime.Time,
			}
			return
		}
	}
}

// reason returns the reason of the blocking condition of a type; empty if another one blocks.
func (e *Explanation) reason(name string) string {
	if e.Blocking == nil || e.Blocking.Type != name {
		return ""
	}
	return e.Blocking.Reason
}

func explainLease(lease *rackv1alpha1.MacNodeLease, now time.Time) *Explanation {
	phase := cmp.Or(lease.Status.Phase, rackv1alpha1.MacNodeLeasePending)
	e := newExplanation(Object{"MacNodeLease", lease.Namespace, lease.Name}, string(phase), now)
	switch phase {
	case rackv1alpha1.MacNodeLeaseReleasing:
		e.block(lease.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionReleased, rackv1alpha1.MacNodeLeaseConditionMacReady)
	case rackv1alpha1.MacNodeLeaseReleased:
		e.fact("The Mac was released. The object remains until its finalizers are removed: %q.", lease.Finalizers)
	default:
		e.block(lease.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionBound, rackv1alpha1.MacNodeLeaseConditionMacReady)
	}
	floor := rules.LeaseFloor(lease.Status.BoundAt, lease.Spec.MinimumDuration.Value(), lease.Status.EarliestReleaseAt)
	switch {
	case floor.IsZero():
		e.fact("It has no Mac yet, so it costs nothing and can be deleted.")
	case phase == rackv1alpha1.MacNodeLeaseHeld:
		e.fact("It was deleted before its floor. It keeps Mac %s until %s (%s), then MacRack releases it.", lease.Status.SerialNumber, cmdutil.Time(floor), in(floor, now))
	case !rules.FloorPassed(now, floor):
		e.fact("It has Mac %s until %s at least (%s).", lease.Status.SerialNumber, cmdutil.Time(floor), in(floor, now))
	default:
		e.fact("It has Mac %s. Its floor passed at %s, so a deletion releases the Mac.", lease.Status.SerialNumber, cmdutil.Time(floor))
	}
	if expiry := rules.LeaseExpiry(lease.Status.BoundAt, lease.Spec.ExpireAfter.Value(), floor); !expiry.IsZero() && lease.DeletionTimestamp == nil {
		e.fact("It deletes itself at %s (%s).", cmdutil.Time(expiry), in(expiry, now))
	}
	e.fact("%d of %d slots are taken.", len(lease.Status.Instances), rules.MaxVMsPerMac)
	nextForLease(e, lease)
	return e
}

func explainInstance(i *instancev1alpha1.MacOSInstance, now time.Time) *Explanation {
	phase := cmp.Or(i.Status.Phase, instancev1alpha1.MacOSInstancePending)
	e := newExplanation(Object{"MacOSInstance", i.Namespace, i.Name}, string(phase), now)
	switch {
	case rules.InstanceEnded(phase), phase == instancev1alpha1.MacOSInstanceStopping:
		e.block(i.Status.Conditions, instancev1alpha1.MacOSInstanceReady)
	default:
		e.block(i.Status.Conditions, instancev1alpha1.MacOSInstanceMacReady, instancev1alpha1.MacOSInstanceScheduledCondition,
			instancev1alpha1.MacOSInstanceEnvironmentReady, instancev1alpha1.MacOSInstanceImageReady, instancev1alpha1.MacOSInstanceGuestReady,
			instancev1alpha1.MacOSInstanceReady)
	}
	if i.Status.Message != "" && (e.Blocking == nil || e.Blocking.Message != i.Status.Message) {
		e.fact("Its status says: %s", i.Status.Message)
	}
	if r := i.Status.StopRequest; r != nil {
		e.fact("%s requested its stop at %s: %s.", cmp.Or(r.By, "MacRack"), cmdutil.Time(r.At.Time), r.Reason)
	}
	if at := rules.InstanceDeadline(i.Status.StartedAt, i.Status.StartGrantedAt, i.Spec.ActiveDeadlineSeconds); !at.IsZero() && !rules.InstanceEnded(phase) {
		e.fact("It is shut down at %s (%s), its deadline.", cmdutil.Time(at), in(at, now))
	}
	if s := i.Status.Startup; s != nil {
		e.fact("Its startup script ended with exit code %d.", s.ExitCode)
	}
	nextForInstance(e, i)
	return e
}

func explainMac(mac *rackv1alpha1.MacNode, now time.Time) *Explanation {
	phase := cmp.Or(mac.Status.Phase, rackv1alpha1.MacNodePending)
	e := newExplanation(Object{Kind: "MacNode", Name: mac.Name}, string(phase), now)
	conditions := []string{rackv1alpha1.MacNodeReady, rackv1alpha1.MacNodeSlotsHealthy, rackv1alpha1.MacNodeStorageHealthy}
	if phase == rackv1alpha1.MacNodeReleasing {
		conditions = append(conditions, rackv1alpha1.MacNodeScrubbed)
	}
	e.block(mac.Status.Conditions, conditions...)
	if q := mac.Status.Quarantine; q != nil {
		e.Blocking = &Blocking{
			Type: rackv1alpha1.MacNodeStalled, Status: metav1.ConditionTrue, Reason: q.Reason, Message: q.Message,
			Since: cmdutil.Time(q.Since.Time), since: q.Since.Time,
		}
	}
	if mac.Spec.Maintenance {
		e.fact("An administrator keeps it out of the pool (spec.maintenance).")
	}
	if ref := mac.Status.LeaseRef; ref != nil {
		e.fact("It belongs to lease %s/%s.", ref.Namespace, ref.Name)
		if at := mac.Status.EarliestReleaseAt; at != nil {
			e.fact("The floor of the lease is %s (%s).", cmdutil.Time(at.Time), in(at.Time, now))
		}
	}
	e.fact("%d of %d virtual machines count as running.", mac.Status.RunningVMs, rules.MaxVMsPerMac)
	nextForMac(e, mac)
	return e
}

// in returns the distance of a time from now.
func in(t, now time.Time) string {
	if t.Before(now) {
		return cmdutil.Span(now.Sub(t)) + " ago"
	}
	return "in " + cmdutil.Span(t.Sub(now))
}
