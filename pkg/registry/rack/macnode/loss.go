package macnode

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// lostHistory reports whether a Mac is in quarantine because it has seen records that the server
// does not have. A server of an earlier version may have dropped the loss from the status.
func lostHistory(node *rack.MacNode) bool {
	q := node.Status.Quarantine
	return ledgerOf(node).Loss != nil || q != nil && rules.LostHistory(q.Reason)
}

// WitnessHash returns the hash of a witness.
func WitnessHash(witness *rack.MacNodeWitness) (string, error) {
	data, err := json.Marshal(witness)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// beginLoss puts a Mac in quarantine because it has seen records that the server does not have. Its
// virtual machines continue to run. The witness is kept as it is: later reports do not change it.
func (p *planner) beginLoss(ctx context.Context, tx *txn.Tx, old, node *rack.MacNode, found comparison) (*rack.AuditRecord, error) {
	state := ledgerOf(node)
	loss := &rack.LedgerLoss{Witness: *node.Status.Witness.DeepCopy(), LastRecordAt: state.LastRecordAt, Quarantine: old.Status.Quarantine}
	var end []string
	switch earlier := state.Loss; {
	case earlier != nil:
		if err := removeClaims(ctx, tx, node); err != nil {
			return nil, err
		}
		loss.LastRecordAt, loss.Quarantine = earlier.LastRecordAt, earlier.Quarantine
	case lostHistory(old):
		loss.Quarantine = nil
	case loss.LastRecordAt == nil && old.Status.Hardware != nil && found.History == rules.LedgerBehind && found.head.Sequence > 0:
		loss.LastRecordAt = ptr.To(metav1.NewTime(found.head.Time.Truncate(time.Second)))
	}
	if old.Status.Quarantine != nil {
		end = old.Status.Quarantine.EndInstances
	}
	state.Loss, state.LastRecordAt = loss, nil
	node.Status.Ledger = &state
	if err := addClaims(ctx, tx, node); err != nil {
		return nil, err
	}
	seen := positionOf(&loss.Witness)
	node.Status.Quarantine = &rack.Quarantine{
		Reason:  string(found.History),
		Message: found.Describe(node.Spec.SerialNumber, seen, rules.ChainPosition{Sequence: found.head.Sequence, Hash: found.head.Hash}),
		Since:   metav1.NewTime(p.clock.Now()), BootID: node.Status.BootID, EndInstances: end,
	}
	record := ledger.NewNodeQuarantined(node)
	record.Details.WitnessedSequence, record.Details.WitnessedHash = seen.Sequence, seen.Hash
	record.Details.LostAfter = loss.LastRecordAt
	return record, nil
}

// continueLoss changes a Mac in quarantine for lost history. An administrator ends the quarantine
// if the server has what the Mac serves. Meanwhile, a quarantine for another reason begins and ends
// in status.ledger.loss.
func (p *planner) continueLoss(ctx context.Context, tx *txn.Tx, old, new *rack.MacNode) (*rack.AuditRecord, error) {
	requested := new.Status.Quarantine
	new.Status.Quarantine = old.Status.Quarantine
	state := ledgerOf(new)
	switch {
	case !requestuser.IsAgent(ctx) && requested == nil:
		return p.endLoss(ctx, tx, new)
	case !requestuser.IsAgent(ctx):
		new.Status.Quarantine = old.Status.Quarantine.DeepCopy()
		new.Status.Quarantine.EndInstances = requested.EndInstances
	}
	if state.Loss == nil {
		return nil, nil
	}
	other, changed := *old, *new
	other.Status.Quarantine, changed.Status.Quarantine = state.Loss.Quarantine, state.Loss.Quarantine
	record := p.quarantineHealth(ctx, &other, &changed)
	loss := *state.Loss
	loss.Quarantine = changed.Status.Quarantine
	state.Loss = &loss
	new.Status.Ledger = &state
	return record, nil
}

// endLoss ends the quarantine at the request of an administrator.
func (p *planner) endLoss(ctx context.Context, tx *txn.Tx, node *rack.MacNode) (*rack.AuditRecord, error) {
	q := node.Status.Quarantine
	refuse := func(err error) error {
		return apierrors.NewConflict(Resource, node.Name, fmt.Errorf("the quarantine (%s) cannot end: %w", q.Reason, err))
	}
	if err := CheckWitnessed(node); err != nil {
		return nil, refuse(err)
	}
	missing, err := missing(ctx, tx, node)
	if err != nil {
		return nil, err
	}
	if missing != "" {
		return nil, refuse(fmt.Errorf("the Mac serves %s, which the server does not have; restore it with macrack-ledger restore", missing))
	}
	return AcceptLoss(ctx, tx, node, "Administrator", fmt.Sprintf("an administrator ended the quarantine (%s): %s", q.Reason, q.Message))
}

// CheckWitnessed refuses to end the loss of a Mac before its agent has reported a witness.
func CheckWitnessed(node *rack.MacNode) error {
	if state := ledgerOf(node); state.Loss == nil || state.Unconfirmed {
		return errors.New("the agent of the Mac has not reported its witness to this API server yet; wait for its report")
	}
	return nil
}

// AcceptLoss ends the quarantine of a Mac that has seen records that the server does not have, and
// returns the record of it. From then on, the Mac accepts the chain of the server. A quarantine for
// another reason continues.
func AcceptLoss(ctx context.Context, tx *txn.Tx, node *rack.MacNode, reason, message string) (*rack.AuditRecord, error) {
	if err := removeClaims(ctx, tx, node); err != nil {
		return nil, err
	}
	state := ledgerOf(node)
	witness := state.Loss.Witness
	node.Status.Witness, node.Status.Quarantine = witness.DeepCopy(), state.Loss.Quarantine
	state.Accepted, state.Loss = &witness.Head, nil
	node.Status.Ledger = &state
	if q := node.Status.Quarantine; q != nil {
		message += fmt.Sprintf("; the quarantine (%s) continues", q.Reason)
	}
	return endOfLoss(node, &witness, reason, message), nil
}

// endOfLoss returns the record of the end of a loss.
func endOfLoss(node *rack.MacNode, witness *rack.MacNodeWitness, reason, message string) *rack.AuditRecord {
	record := ledger.NewNodeRecovered(node, reason, message)
	record.Details.WitnessedSequence, record.Details.WitnessedHash = witness.Head.Sequence, witness.Head.Hash
	return record
}

// missing describes what a Mac serves according to its witness and the server does not have. It
// returns an empty string if nothing is missing.
func missing(ctx context.Context, tx *txn.Tx, node *rack.MacNode) (string, error) {
	w := &ledgerOf(node).Loss.Witness
	if w.LeaseRef == nil {
		return "", nil
	}
	ref := node.Status.LeaseRef
	if ref == nil || ref.UID != w.LeaseRef.UID {
		return fmt.Sprintf("lease %s/%s (UID %s)", w.LeaseRef.Namespace, w.LeaseRef.Name, w.LeaseRef.UID), nil
	}
	if floor := node.Status.EarliestReleaseAt; w.EarliestReleaseAt != nil && (floor == nil || floor.Before(w.EarliestReleaseAt)) {
		return fmt.Sprintf("the floor of lease %s/%s", ref.Namespace, ref.Name), nil
	}
	for _, witnessed := range w.Instances {
		i := &instance.MacOSInstance{}
		err := tx.Get(ctx, instance.Resource("macosinstances"), ref.Namespace, witnessed.Name, i)
		if err != nil && !apierrors.IsNotFound(err) {
			return "", err
		}
		if s := i.Status; err != nil || i.UID != witnessed.UID || s.StartGrantedAt == nil || s.MachineID != witnessed.MachineID || s.MACAddress != witnessed.MACAddress {
			return fmt.Sprintf("instance %s/%s (UID %s)", ref.Namespace, witnessed.Name, witnessed.UID), nil
		}
	}
	return "", nil
}
