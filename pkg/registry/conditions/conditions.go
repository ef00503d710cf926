// Package conditions sets the conditions Ready, Reconciling and Stalled, from which generic tools
// determine whether an object matches its spec, as defined by kstatus (sigs.k8s.io/cli-utils). The
// registry derives them from the rest of the object in each write, so that they are never stale.
package conditions

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/rack/validation"
	"macrack.io/macrack/pkg/registry/genericstrategy"
)

// Types of conditions.
const (
	Ready       = "Ready"
	Reconciling = "Reconciling"
	Stalled     = "Stalled"
)

// A Summary is the summary of the conditions of an object.
type Summary struct {
	// Ready is the status of the condition Ready.
	Ready metav1.ConditionStatus
	// Abnormal is Reconciling or Stalled, or empty for an object that is Ready or finished.
	Abnormal string
	// Reason and Message are those of all conditions derived from the summary.
	Reason, Message string
}

// Set sets Ready and the abnormal condition of the summary, and removes the other abnormal
// condition.
func (s Summary) Set(conditions *[]metav1.Condition, now time.Time) {
	Set(conditions, now, Ready, s.Ready, s.Reason, s.Message)
	for _, name := range []string{Reconciling, Stalled} {
		if name == s.Abnormal {
			Set(conditions, now, name, metav1.ConditionTrue, s.Reason, s.Message)
		} else {
			meta.RemoveStatusCondition(conditions, name)
		}
	}
}

// Set sets the condition of a type. Its transition time is now if its status changes.
func Set(conditions *[]metav1.Condition, now time.Time, name string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: name, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now),
	})
}

// Get returns the condition of a type, or the zero value.
func Get(conditions []metav1.Condition, name string) metav1.Condition {
	return ptr.Deref(meta.FindStatusCondition(conditions, name), metav1.Condition{})
}

// Fit cuts the longest messages so that the conditions pass validation.
func Fit(conditions []metav1.Condition) {
	limit := validation.MaxConditionsSize
	var messages []*string
	for i := range conditions {
		c := &conditions[i]
		c.Message = genericstrategy.Cut(c.Message, validation.MaxMessage)
		withoutMessage := *c
		withoutMessage.Message = ""
		limit -= withoutMessage.Size() + lengthOverhead
		messages = append(messages, &c.Message)
	}
	genericstrategy.Fit(max(limit, 0), messages...)
}

// lengthOverhead is the maximum number of bytes by which the stored lengths of a condition and of
// its message grow with the message.
const lengthOverhead = 4

// Observe sets the observed generation of all conditions. It is for kinds whose conditions do not
// depend on mutable fields of the spec, or are derived in the same write.
func Observe(conditions []metav1.Condition, generation int64) {
	for i := range conditions {
		conditions[i].ObservedGeneration = generation
	}
}
