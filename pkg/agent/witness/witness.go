// Package witness keeps on the disk of the Mac what the Mac has seen of its chain of
// AuditRecords, and what it serves. A server that has lost history cannot thereby make the agent
// forget a lease or end its virtual machines.
package witness

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/agent/state"
	"macrack.io/macrack/pkg/apiclient"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/faults"
)

// ErrUnconfirmed is the error of an action that needs a server with the history of the Mac.
var ErrUnconfirmed = errors.New("the server has not confirmed that it has all records that this Mac has seen")

// confirmTimeout bounds the time in which the server must confirm its history.
const confirmTimeout = 5 * time.Second

// Config configures a Keeper.
type Config struct {
	State     *state.File
	MacNode   *objects.MacNode
	Instances *objects.Instances
	Slots     *slots.Manager
}

// Keeper keeps the witness of the Mac.
type Keeper struct{ Config }

// New returns a Keeper.
func New(config Config) *Keeper { return &Keeper{config} }

// Confirmed reports whether the server has all records that this Mac has seen, according to the
// cache. See Confirm.
func (k *Keeper) Confirmed() bool {
	macNode, err := k.MacNode.Cached()
	if err != nil {
		macNode = nil
	}
	return k.ConfirmedBy(macNode)
}

// ConfirmedBy reports whether a MacNode, which may be nil, proves that the server has all records
// that this Mac has seen.
func (k *Keeper) ConfirmedBy(macNode *rackv1alpha1.MacNode) bool {
	return k.facts(macNode).Confirmed()
}

func (k *Keeper) facts(macNode *rackv1alpha1.MacNode) rules.WitnessFacts {
	var facts rules.WitnessFacts
	if macNode == nil {
		if kept := k.State.Get().Witness; kept != nil {
			facts.Seen = position(kept.Head)
		}
		return facts
	}
	facts.Seen = position(k.kept(macNode).Head)
	if l := macNode.Status.Ledger; l != nil {
		facts.Head = position(l.Head)
		if l.Accepted != nil {
			facts.Accepted = position(*l.Accepted)
		}
	}
	if w := macNode.Status.Witness; w != nil {
		facts.Reported = position(w.Head)
	}
	if q := macNode.Status.Quarantine; q != nil {
		facts.Quarantine = q.Reason
	}
	return facts
}

func position(p rackv1alpha1.ChainPosition) rules.ChainPosition {
	return rules.ChainPosition{Sequence: p.Sequence, Hash: p.Hash}
}

// kept returns the witness on the disk. It is empty if the witness is of another serial number.
func (k *Keeper) kept(macNode *rackv1alpha1.MacNode) rackv1alpha1.MacNodeWitness {
	if kept := k.State.Get().Witness; kept != nil && kept.SerialNumber == macNode.Spec.SerialNumber {
		return kept.MacNodeWitness
	}
	return rackv1alpha1.MacNodeWitness{}
}

// Keep writes what a confirmed MacNode shows to the disk, and returns the witness to report. The
// other instances are those that the cache may not have yet.
func (k *Keeper) Keep(macNode *rackv1alpha1.MacNode, others ...*instancev1alpha1.MacOSInstance) (*rackv1alpha1.MacNodeWitness, error) {
	kept, facts := k.kept(macNode), k.facts(macNode)
	if !facts.Confirmed() {
		return &kept, nil
	}
	next := rackv1alpha1.MacNodeWitness{Head: kept.Head, LeaseRef: macNode.Status.LeaseRef, EarliestReleaseAt: macNode.Status.EarliestReleaseAt}
	if facts.Advances() {
		next.Head = macNode.Status.Ledger.Head
	}
	if next.LeaseRef != nil {
		var err error
		if next.Instances, err = k.instances(next.LeaseRef, kept.Instances, others); err != nil {
			return nil, err
		}
	}
	if equality.Semantic.DeepEqual(kept, next) {
		return &kept, nil
	}
	faults.At("witness: before")
	err := k.State.Change(func(d *state.Data) {
		d.Witness = &state.Witness{SerialNumber: macNode.Spec.SerialNumber, MacNodeWitness: *next.DeepCopy()}
	})
	faults.At("witness: after")
	return &next, err
}

// instances returns the instances of a lease whose start was granted and that have not ended. A
// kept instance that is in a slot stays, because the cache may be stale.
func (k *Keeper) instances(lease *rackv1alpha1.LeaseReference, kept []rackv1alpha1.WitnessedInstance, others []*instancev1alpha1.MacOSInstance) ([]rackv1alpha1.WitnessedInstance, error) {
	cached, err := k.Instances.InNamespace(lease.Namespace)
	if err != nil {
		return nil, err
	}
	var list []rackv1alpha1.WitnessedInstance
	known := map[string]bool{}
	for _, i := range append(slices.Clone(others), cached...) {
		if known[string(i.UID)] {
			continue
		}
		known[string(i.UID)] = true
		id := rules.LeaseID{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID}
		if i.Status.StartGrantedAt == nil || rules.InstanceEnded(i.Status.Phase) || !rules.BelongsToLease(i, i.Spec.LeaseName, id) {
			continue
		}
		list = append(list, rackv1alpha1.WitnessedInstance{
			Name: i.Name, UID: i.UID, ClassName: i.Spec.ClassName, ImageName: i.Spec.ImageName,
			MachineID: i.Status.MachineID, MACAddress: i.Status.MACAddress, StartGrantedAt: i.Status.StartGrantedAt,
		})
	}
	for _, i := range kept {
		if _, held := k.Slots.Find(string(i.UID)); held && !known[string(i.UID)] {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, func(a, b rackv1alpha1.WitnessedInstance) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return list[:min(len(list), rules.MaxVMsPerMac)], nil
}

// Confirm asks the server whether it has all records that this Mac has seen, and returns
// ErrUnconfirmed if not. The cache does not suffice for an action that cannot be undone: after a
// loss, kube-apiserver may delete pods before the cache has noticed the loss.
func (k *Keeper) Confirm(ctx context.Context) error {
	if k.ConfirmedBy(nil) {
		return nil // the Mac has seen no records
	}
	_, err := k.live(ctx)
	return err
}

// live returns the MacNode of a server that has all records that this Mac has seen.
func (k *Keeper) live(ctx context.Context) (*rackv1alpha1.MacNode, error) {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	macNode, err := k.MacNode.Live(ctx)
	if err == nil && !k.ConfirmedBy(macNode) {
		// The witness may be newer than the report of it.
		if err = k.report(ctx, macNode); err == nil {
			macNode, err = k.MacNode.Live(ctx)
		}
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, ErrUnconfirmed
	case err != nil:
		return nil, err
	case !k.ConfirmedBy(macNode):
		return nil, ErrUnconfirmed
	}
	return macNode, nil
}

// report writes the witness to the MacNode.
func (k *Keeper) report(ctx context.Context, macNode *rackv1alpha1.MacNode) error {
	next := macNode.DeepCopy()
	kept := k.kept(macNode)
	next.Status.Witness = &kept
	patch, err := apiclient.StatusPatch(macNode, next)
	if err != nil {
		return err
	}
	return k.MacNode.PatchStatus(ctx, patch)
}

// Before writes to the disk that the Mac serves an instance, before its virtual machine is
// launched. It fails if the server does not have all records that this Mac has seen.
func (k *Keeper) Before(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	macNode, err := k.live(ctx)
	if err != nil {
		klog.V(2).InfoS("Virtual machine not started", "instance", klog.KObj(instance), "err", err)
		return err
	}
	_, err = k.Keep(macNode, instance)
	return err
}
