package macnode

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/warning"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// quarantine begins or ends a quarantine, and returns its record. A loss of history, if any, takes
// precedence.
func (p *planner) quarantine(ctx context.Context, tx *txn.Tx, old, new *rack.MacNode, found comparison) (*rack.AuditRecord, error) {
	switch {
	case found.History != rules.HistoryIntact:
		return p.beginLoss(ctx, tx, old, new, found)
	case lostHistory(old):
		return p.continueLoss(ctx, tx, old, new)
	}
	return p.quarantineHealth(ctx, old, new), nil
}

// quarantineHealth begins or ends a quarantine that does not concern the ledger.
func (p *planner) quarantineHealth(ctx context.Context, old, new *rack.MacNode) *rack.AuditRecord {
	cause := quarantineCause(new)
	asserted := !requestuser.IsAgent(ctx) && new.Status.Scrub != nil && !equality.Semantic.DeepEqual(old.Status.Scrub, new.Status.Scrub)
	switch {
	case asserted && old.Status.Quarantine == nil:
		// An offline Mac may still run its virtual machines, and may come back online.
		new.Status.Quarantine = &rack.Quarantine{
			Reason: rack.ReasonScrubAsserted, Since: metav1.NewTime(p.clock.Now()), BootID: old.Status.BootID,
			Message: fmt.Sprintf("%s reports that the Mac is scrubbed, but its agent does not; reboot the Mac, or inspect it and end the quarantine", requestuser.Username(ctx)),
		}
		return ledger.NewNodeQuarantined(new)
	case asserted:
		new.Status.Quarantine = old.Status.Quarantine
		return nil
	case old.Status.Quarantine == nil && cause != nil:
		reason := cause.Reason
		if rules.LostHistory(reason) {
			reason = "Unhealthy" // an agent does not report a loss as a condition
		}
		new.Status.Quarantine = &rack.Quarantine{Reason: reason, Message: cause.Message, Since: metav1.NewTime(p.clock.Now()), BootID: new.Status.BootID}
		return ledger.NewNodeQuarantined(new)
	case old.Status.Quarantine == nil:
		if new.Status.Quarantine != nil && !requestuser.IsAgent(ctx) {
			warning.AddWarning(ctx, "", "status.quarantine was not set: it follows from the conditions SlotsHealthy and Scrubbed; set spec.maintenance to keep new leases off the Mac")
		}
		new.Status.Quarantine = nil
		return nil
	case requestuser.IsAgent(ctx):
		new.Status.Quarantine = old.Status.Quarantine
		rebooted := new.Status.BootID != "" && new.Status.BootID != old.Status.Quarantine.BootID
		if cause != nil || !rebooted {
			return nil
		}
		new.Status.Quarantine = nil
		return ledger.NewNodeRecovered(new, "Rebooted", fmt.Sprintf("the Mac has rebooted since it was quarantined (%s): its agent reports a new boot ID", old.Status.Quarantine.Reason))
	case new.Status.Quarantine == nil:
		// Any user other than an agent who can write the status is an administrator.
		resetConditions(new, p.clock.Now())
		return ledger.NewNodeRecovered(new, "Administrator", fmt.Sprintf("an administrator ended the quarantine (%s)", old.Status.Quarantine.Reason))
	default:
		// The administrator decides which unknown virtual machines are stopped. The rest of the
		// quarantine is kept.
		end := new.Status.Quarantine.EndInstances
		new.Status.Quarantine = old.Status.Quarantine.DeepCopy()
		new.Status.Quarantine.EndInstances = end
		return nil
	}
}

// resetConditions resets the conditions that require a quarantine. They remain until the agent's
// next report; otherwise the quarantine would begin again.
func resetConditions(node *rack.MacNode, now time.Time) {
	for _, t := range []string{rack.MacNodeSlotsHealthy, rack.MacNodeScrubbed} {
		if c := meta.FindStatusCondition(node.Status.Conditions, t); c != nil && c.Status == metav1.ConditionFalse {
			meta.SetStatusCondition(&node.Status.Conditions, metav1.Condition{
				Type: t, Status: metav1.ConditionUnknown, Reason: "QuarantineCleared", Message: "an administrator ended the quarantine",
				LastTransitionTime: metav1.NewTime(now),
			})
		}
	}
}

// quarantineCause returns the condition that requires a quarantine of the Mac, or nil.
func quarantineCause(node *rack.MacNode) *metav1.Condition {
	if c := meta.FindStatusCondition(node.Status.Conditions, rack.MacNodeSlotsHealthy); c != nil && c.Status == metav1.ConditionFalse {
		return c
	}
	if c := meta.FindStatusCondition(node.Status.Conditions, rack.MacNodeScrubbed); c != nil && c.Status == metav1.ConditionFalse && c.Reason == rack.ReasonScrubFailed {
		return c
	}
	return nil
}
