package macnodelease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/conditions/conditionstest"
)

func TestDeriveConditions(t *testing.T) {
	noon := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	at := func(h int) *metav1.Time { return ptr.To(metav1.NewTime(noon.Add(time.Duration(h) * time.Hour))) }
	condition := func(name string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: name, Status: status, Reason: reason, Message: message, ObservedGeneration: 1}
	}
	waits := func(reason string) metav1.Condition { return condition("Bound", metav1.ConditionFalse, reason, "why") }
	releases := func(reason string) metav1.Condition {
		return condition("Released", metav1.ConditionFalse, reason, "waits")
	}
	// The conditions of the lease before the change in the case.
	stale := []metav1.Condition{
		condition("Bound", metav1.ConditionTrue, "Bound", "Mac S-1 is leased until 2026-08-02T11:00:00Z at least"),
		condition("Ready", metav1.ConditionTrue, "Bound", "Mac S-1 is leased until 2026-08-02T11:00:00Z at least"),
	}
	for _, tt := range []struct {
		name       string
		phase      rack.MacNodeLeasePhase
		deleted    bool
		conditions []metav1.Condition
		want       []string
		kstatus    string
	}{
		{"new", "Pending", false, nil,
			[]string{"Ready=False Pending: waiting for a Mac", "Reconciling=True Pending: waiting for a Mac"}, "InProgress"},
		{"waits", "Pending", false, []metav1.Condition{waits("NoMacAvailable")},
			[]string{"Bound=False NoMacAvailable: why", "Ready=False NoMacAvailable: why", "Reconciling=True NoMacAvailable: why"}, "InProgress"},
		{"waits for one Mac", "Pending", false, []metav1.Condition{waits("MacNotAvailable")},
			[]string{"Bound=False MacNotAvailable: why", "Ready=False MacNotAvailable: why", "Reconciling=True MacNotAvailable: why"}, "InProgress"},
		{"a class that is gone", "Pending", false, []metav1.Condition{waits("UnknownClass")},
			[]string{"Bound=False UnknownClass: why", "Ready=False UnknownClass: why", "Stalled=True UnknownClass: why"}, "Failed"},
		{"a class without Macs", "Pending", false, []metav1.Condition{waits("EmptyClass"), condition("Reconciling", metav1.ConditionTrue, "NoMacAvailable", "before")},
			[]string{"Bound=False EmptyClass: why", "Ready=False EmptyClass: why", "Stalled=True EmptyClass: why"}, "Failed"},
		{"a Mac was added to the class", "Pending", false, []metav1.Condition{waits("NoMacAvailable"), condition("Stalled", metav1.ConditionTrue, "EmptyClass", "before")},
			[]string{"Bound=False NoMacAvailable: why", "Ready=False NoMacAvailable: why", "Reconciling=True NoMacAvailable: why"}, "InProgress"},

		{"bound, before leases told of their Mac", "Bound", false, []metav1.Condition{waits("NoMacAvailable")},
			[]string{"Bound=True Bound: Mac S-1 is leased until 2026-08-03T11:00:00Z at least", "Ready=True Bound: Mac S-1 is leased until 2026-08-03T11:00:00Z at least"}, "Current"},
		{"lengthened", "Bound", false, append(stale, condition("MacReady", metav1.ConditionTrue, "Ready", "fine")),
			[]string{"Bound=True Bound: Mac S-1 is leased until 2026-08-03T11:00:00Z at least", "MacReady=True Ready: fine", "Ready=True Bound: Mac S-1 is leased until 2026-08-03T11:00:00Z at least"}, "Current"},
		{"the Mac is away", "Bound", false, append(stale, condition("MacReady", metav1.ConditionFalse, "Offline", "away")),
			[]string{"Bound=True Bound: Mac S-1 is leased until 2026-08-03T11:00:00Z at least", "MacReady=False Offline: away", "Ready=False Offline: away", "Reconciling=True Offline: away"}, "InProgress"},
		{"the Mac is in quarantine", "Bound", false, append(stale, condition("MacReady", metav1.ConditionFalse, "KernelQuotaStuck", "stuck")),
			[]string{"Bound=True Bound: Mac S-1 is leased until 2026-08-03T11:00:00Z at least", "MacReady=False KernelQuotaStuck: stuck", "Ready=False KernelQuotaStuck: stuck", "Stalled=True KernelQuotaStuck: stuck"}, "Failed"},
		{"held", "Held", true, stale,
			[]string{"Bound=True Held: lease deleted; Mac S-1 is released at 2026-08-03T11:00:00Z", "Ready=True Held: lease deleted; Mac S-1 is released at 2026-08-03T11:00:00Z"}, "Terminating"},
		{"held, the Mac is away", "Held", true, append(stale, condition("MacReady", metav1.ConditionFalse, "Offline", "away")),
			[]string{"Bound=True Held: lease deleted; Mac S-1 is released at 2026-08-03T11:00:00Z", "MacReady=False Offline: away", "Ready=False Offline: away", "Reconciling=True Offline: away"}, "Terminating"},
		{"releasing", "Releasing", true, stale,
			[]string{"Bound=True Releasing: Mac S-1 is being released", "Ready=False Releasing: Mac S-1 is being released", "Reconciling=True Releasing: Mac S-1 is being released"}, "Terminating"},
		{"releasing, and waits", "Releasing", true, append(stale, releases("Scrubbing")),
			[]string{"Bound=True Releasing: Mac S-1 is being released", "Ready=False Scrubbing: waits", "Reconciling=True Scrubbing: waits", "Released=False Scrubbing: waits"}, "Terminating"},
		{"releasing, and does not get on", "Releasing", true, append(stale, releases("ScrubFailed")),
			[]string{"Bound=True Releasing: Mac S-1 is being released", "Ready=False ScrubFailed: waits", "Released=False ScrubFailed: waits", "Stalled=True ScrubFailed: waits"}, "Terminating"},
		{"released, and kept by a finalizer of others", "Released", true, append(stale, releases("Scrubbing"), condition("MacReady", metav1.ConditionTrue, "Ready", "fine")),
			[]string{"Bound=False Released: Mac S-1 was released at 2026-08-03T12:00:00Z", "Ready=False Released: Mac S-1 was released at 2026-08-03T12:00:00Z", "Released=True Released: Mac S-1 was released at 2026-08-03T12:00:00Z"}, "Terminating"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lease := &rack.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Name: "a", Generation: 2}, Status: rack.MacNodeLeaseStatus{Phase: tt.phase, Conditions: append([]metav1.Condition{}, tt.conditions...)}}
			if tt.phase != "Pending" {
				lease.Status.SerialNumber, lease.Status.BoundAt, lease.Status.EarliestReleaseAt = "S-1", at(-1), at(47)
			}
			if tt.phase == "Released" {
				lease.Status.ReleasedAt = at(48)
			}
			if tt.deleted {
				lease.DeletionTimestamp = at(0)
			}
			DeriveConditions(lease, noon)
			assert.Equal(t, tt.want, conditionstest.Lines(lease.Status.Conditions))
			for _, c := range lease.Status.Conditions {
				assert.EqualValues(t, 2, c.ObservedGeneration, c.Type)
			}
			assert.Equal(t, tt.kstatus, conditionstest.KStatus(t, lease.ObjectMeta, lease.Status.Conditions))

			again := lease.DeepCopy()
			DeriveConditions(again, noon.Add(time.Hour))
			assert.Equal(t, lease, again, "what has not changed is not written again")
		})
	}
}
