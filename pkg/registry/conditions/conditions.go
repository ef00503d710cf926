// Package conditions sets the conditions from which generic tools tell whether an object is as its spec asks: Ready,
// Reconciling and Stalled, as kstatus (sigs.k8s.io/cli-utils) defines them. The registry derives them from the rest of
// the object in each write, so that a reader never sees them stale.
package conditions

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack/validation"
	"macrack.io/macrack/pkg/registry/strategies"
)

// Types of conditions.
const (
	Ready       = "Ready"
	Reconciling = "Reconciling"
	Stalled     = "Stalled"
)

// A Summary is what the conditions of an object amount to.
type Summary struct {
	// Ready is the status of the condition Ready.
	Ready metav1.ConditionStatus
	// Abnormal is Reconciling or Stalled, or empty for an object that is Ready or at its end.
	Abnormal string
	// Reason and Message are those of all conditions that follow from the summary.
	Reason, Message string
}

// Set sets Ready to what the summary says, and of Reconciling and Stalled the one that it names; the other is removed.
func (s Summary) Set(conditions *[]metav1.Condition, now time.Time) {
	set := func(name string, status metav1.ConditionStatus) {
		meta.SetStatusCondition(conditions, metav1.Condition{
			Type: name, Status: status, Reason: s.Reason, Message: s.Message, LastTransitionTime: metav1.NewTime(now),
		})
	}
	set(Ready, s.Ready)
	for _, name := range []string{Reconciling, Stalled} {
		if name == s.Abnormal {
			set(name, metav1.ConditionTrue)
		} else {
			meta.RemoveStatusCondition(conditions, name)
		}
	}
}

// Fit cuts the longest messages so that the conditions are as small as validation asks.
func Fit(conditions []metav1.Condition) {
	limit := validation.MaxConditionsSize
	var messages []*string
	for i := range conditions {
		c := &conditions[i]
		c.Message = strategies.Cut(c.Message, validation.MaxMessage)
		withoutMessage := *c
		withoutMessage.Message = ""
		limit -= withoutMessage.Size() + lengthOverhead
		messages = append(messages, &c.Message)
	}
	strategies.Fit(max(limit, 0), messages...)
}

// lengthOverhead is the maximum number of bytes by which the stored lengths of a condition and of its message grow with the message.
const lengthOverhead = 4

// Observe marks all conditions as those of a generation. It is for kinds whose conditions depend on nothing of the spec
// that can change, or are derived in the same write.
func Observe(conditions []metav1.Condition, generation int64) {
	for i := range conditions {
		conditions[i].ObservedGeneration = generation
	}
}
