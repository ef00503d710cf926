package controllerrestriction

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/registry/requestuser"
)

func TestAdmission(t *testing.T) {
	now := metav1.Now()
	node := func(change func(*rack.MacNodeStatus)) *rack.MacNode {
		n := &rack.MacNode{Status: rack.MacNodeStatus{
			BootID:     "1",
			Quarantine: &rack.Quarantine{Reason: "KernelQuotaStuck"},
			Conditions: []metav1.Condition{{Type: rack.MacNodeReady, Status: metav1.ConditionFalse}, {Type: rack.MacNodeSlotsHealthy, Status: metav1.ConditionFalse}},
		}}
		change(&n.Status)
		return n
	}
	inst := func(change func(*instance.MacOSInstanceStatus)) *instance.MacOSInstance {
		i := &instance.MacOSInstance{Status: instance.MacOSInstanceStatus{NodeName: "mac-1", Phase: instance.MacOSInstancePending}}
		change(&i.Status)
		return i
	}
	oldNode, oldInstance := node(func(*rack.MacNodeStatus) {}), inst(func(*instance.MacOSInstanceStatus) {})
	for name, tt := range map[string]struct {
		user        string
		subresource string
		old, new    runtime.Object
		refused     string
	}{
		"Ready":             {old: oldNode, new: node(func(s *rack.MacNodeStatus) { s.Conditions[0].Status = metav1.ConditionTrue })},
		"not Ready anymore": {old: oldNode, new: node(func(s *rack.MacNodeStatus) { s.Conditions = s.Conditions[1:] })},
		"healthy":           {old: oldNode, new: node(func(s *rack.MacNodeStatus) { s.Conditions[1].Status = metav1.ConditionTrue }), refused: "only the condition Ready"},
		"rebooted":          {old: oldNode, new: node(func(s *rack.MacNodeStatus) { s.BootID = "2" }), refused: "only the condition Ready"},
		"out of quarantine": {old: oldNode, new: node(func(s *rack.MacNodeStatus) { s.Quarantine = nil }), refused: "only the condition Ready"},
		"scrubbed":          {old: oldNode, new: node(func(s *rack.MacNodeStatus) { s.Scrub = &rack.ScrubReport{LeaseUID: "1"} }), refused: "only the condition Ready"},
		"an administrator":  {user: "admin", old: oldNode, new: node(func(s *rack.MacNodeStatus) { s.Quarantine = nil })},
		"a spec":            {subresource: "-", old: oldNode, new: node(func(s *rack.MacNodeStatus) { s.BootID = "2" })},

		"its placeholder": {old: oldInstance, new: inst(func(s *instance.MacOSInstanceStatus) { s.PodName = "one-vm" })},
		"scheduled":       {old: oldInstance, new: inst(func(s *instance.MacOSInstanceStatus) { s.Phase = instance.MacOSInstanceScheduled })},
		"stopped":         {old: oldInstance, new: inst(func(s *instance.MacOSInstanceStatus) { s.Phase = instance.MacOSInstanceStopped })},
		"running":         {old: oldInstance, new: inst(func(s *instance.MacOSInstanceStatus) { s.Phase = instance.MacOSInstanceRunning }), refused: "becomes Running only when the agent"},
		"failed":          {old: oldInstance, new: inst(func(s *instance.MacOSInstanceStatus) { s.Phase = instance.MacOSInstanceFailed }), refused: "becomes Failed only when the agent"},
		"an identity":     {old: oldInstance, new: inst(func(s *instance.MacOSInstanceStatus) { s.MachineID = "bQ==" }), refused: "only the agent of Mac"},
		"an address":      {old: oldInstance, new: inst(func(s *instance.MacOSInstanceStatus) { s.MACAddress = "02:00:00:00:00:01" }), refused: "only the agent of Mac"},
		"a start":         {old: oldInstance, new: inst(func(s *instance.MacOSInstanceStatus) { s.StartedAt = &now }), refused: "only the agent of Mac"},
	} {
		t.Run(name, func(t *testing.T) {
			who := &user.DefaultInfo{Name: requestuser.Controllers}
			if tt.user != "" {
				who.Name = tt.user
			}
			subresource := "status"
			if tt.subresource != "" {
				subresource = ""
			}
			a := admission.NewAttributesRecord(tt.new, tt.old, schema.GroupVersionKind{}, "", "x", schema.GroupVersionResource{}, subresource, admission.Update, nil, false, who)
			err := New(clock.RealClock{}).Validate(t.Context(), a, nil)
			if tt.refused == "" {
				assert.NoError(t, err)
				return
			}
			assert.True(t, apierrors.IsForbidden(err), "%v", err)
			assert.ErrorContains(t, err, tt.refused)
		})
	}
}

func TestDeletion(t *testing.T) {
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	ended := func(phase instance.MacOSInstancePhase, ago time.Duration, ttl *int32) *instance.MacOSInstance {
		return &instance.MacOSInstance{
			Spec:   instance.MacOSInstanceSpec{TTLSecondsAfterFinished: ttl},
			Status: instance.MacOSInstanceStatus{Phase: phase, StoppedAt: ptr.To(metav1.NewTime(noon.Add(-ago)))},
		}
	}
	leased := func(ago, expireAfter time.Duration) *rack.MacNodeLease {
		lease := &rack.MacNodeLease{Status: rack.MacNodeLeaseStatus{Phase: rack.MacNodeLeaseBound, BoundAt: ptr.To(metav1.NewTime(noon.Add(-ago)))}}
		if expireAfter != 0 {
			lease.Spec.ExpireAfter = scalar.NewDuration(expireAfter)
		}
		return lease
	}
	for name, tt := range map[string]struct {
		user    string
		old     runtime.Object
		refused bool
	}{
		"expired":          {old: ended(instance.MacOSInstanceStopped, time.Minute, ptr.To[int32](60))},
		"failed, expired":  {old: ended(instance.MacOSInstanceFailed, 0, ptr.To[int32](0))},
		"not yet":          {old: ended(instance.MacOSInstanceStopped, 59*time.Second, ptr.To[int32](60)), refused: true},
		"kept":             {old: ended(instance.MacOSInstanceStopped, time.Hour, nil), refused: true},
		"running":          {old: &instance.MacOSInstance{Spec: instance.MacOSInstanceSpec{TTLSecondsAfterFinished: ptr.To[int32](0)}, Status: instance.MacOSInstanceStatus{Phase: instance.MacOSInstanceRunning}}, refused: true},
		"an administrator": {user: "admin", old: ended(instance.MacOSInstanceStopped, 0, nil)},

		"an expired lease":             {old: leased(48*time.Hour, 48*time.Hour)},
		"a lease, not yet":             {old: leased(48*time.Hour-time.Second, 48*time.Hour), refused: true},
		"a lease without a limit":      {old: leased(48*time.Hour, 0), refused: true},
		"a lease that waits":           {old: &rack.MacNodeLease{}, refused: true},
		"a lease, by an administrator": {user: "admin", old: leased(time.Hour, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			who := &user.DefaultInfo{Name: requestuser.Controllers}
			if tt.user != "" {
				who.Name = tt.user
			}
			a := admission.NewAttributesRecord(nil, tt.old, schema.GroupVersionKind{}, "acme", "x", schema.GroupVersionResource{}, "", admission.Delete, nil, false, who)
			err := New(clocktesting.NewFakePassiveClock(noon)).Validate(t.Context(), a, nil)
			assert.Equal(t, tt.refused, apierrors.IsForbidden(err), "%v", err)
		})
	}
}
