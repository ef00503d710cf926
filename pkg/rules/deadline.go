package rules

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxInstanceSeconds is the maximum of the deadline of an instance and of the time that it is kept
// after its end: the maximum duration of a lease.
const MaxInstanceSeconds = int64(MaxLeaseDuration / time.Second)

// ReasonDeadlineExceeded is the reason of the stop of an instance that has reached its deadline.
const ReasonDeadlineExceeded = "DeadlineExceeded"

// InstanceDeadline returns the time at which an instance with a deadline in seconds must stop. It
// is the zero time without a deadline, and before the start. The agent reports the start by the
// clock of its Mac, and the API server grants it by its own. The later time counts, so that a Mac
// with a slow clock does not shorten the deadline.
func InstanceDeadline(startedAt, grantedAt *metav1.Time, seconds *int64) time.Time {
	if seconds == nil || startedAt == nil {
		return time.Time{}
	}
	start := startedAt.Time
	if grantedAt != nil && grantedAt.After(start) {
		start = grantedAt.Time
	}
	return start.Add(bounded(*seconds))
}

// InstanceExpiry returns the time at which an instance that has ended is deleted. It is the zero
// time for an instance that is kept.
func InstanceExpiry(stoppedAt *metav1.Time, seconds *int32) time.Time {
	if seconds == nil || stoppedAt == nil {
		return time.Time{}
	}
	return stoppedAt.Add(bounded(int64(*seconds)))
}

// IsDue reports whether a time has come. The zero time never comes.
func IsDue(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }

// StoppedByDeadline reports whether an instance with a deadline in seconds was stopped because of
// it. The reason of its stop request is empty without a request.
func StoppedByDeadline(seconds *int64, stopReason string) bool {
	return seconds != nil && stopReason == ReasonDeadlineExceeded
}

// DescribeDeadline describes the end of an instance at its deadline.
func DescribeDeadline(seconds int64) string {
	return fmt.Sprintf("%s: the virtual machine ran for %d seconds (spec.activeDeadlineSeconds)", ReasonDeadlineExceeded, seconds)
}

func bounded(seconds int64) time.Duration {
	return time.Duration(min(max(seconds, 0), MaxInstanceSeconds)) * time.Second
}
