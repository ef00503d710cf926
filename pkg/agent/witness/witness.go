// Package witness keeps the last record of the chain of the Mac, its lease and its instances on the
// disk of the Mac. So a server that has lost history cannot make the agent forget a lease or end
// its virtual machines.
package witness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/apiclient"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// ErrUnconfirmed is the error of an action that needs a server with the history of the Mac.
var ErrUnconfirmed = errors.New("the server has not confirmed that it has all records that this Mac has seen")

// confirmTimeout bounds the time in which the server must confirm its history.
const confirmTimeout = 5 * time.Second

// headPause is the least time between two writes of a witness of which only the head has changed.
// Requests of other tenants that are refused move the head, too.
const headPause = 5 * time.Second

// Config configures a Keeper.
type Config struct {
	File *File
	// SerialNumber is that of the hardware.
	SerialNumber string
	MacNode      *objects.MacNode
	Instances    *objects.Instances
	Slots        *slots.Manager
	Queue        *queue.Queue[queue.Key]
	Clock        clock.PassiveClock
}

// Keeper keeps the witness of the Mac.
type Keeper struct {
	Config

	writtenAt time.Time // guarded by File

	mu sync.Mutex
	// starting are the instances that are about to get a slot.
	starting map[types.UID]bool
}

// New returns a Keeper.
func New(config Config) *Keeper { return &Keeper{Config: config, starting: map[types.UID]bool{}} }

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
	return k.facts(k.File.get(), macNode).Confirmed()
}

// facts returns the facts of a kept witness and a MacNode, both of which may be nil.
func (k *Keeper) facts(kept *stored, macNode *rackv1alpha1.MacNode) rules.WitnessFacts {
	var facts rules.WitnessFacts
	if kept != nil {
		facts.Seen = position(kept.Head)
	}
	if macNode == nil || !k.isOf(kept, macNode) {
		return facts
	}
	if l := macNode.Status.Ledger; l != nil {
		facts.Head, facts.Lost = position(l.Head), l.Loss != nil
		if l.Accepted != nil {
			facts.Accepted = position(*l.Accepted)
		}
	}
	if w := macNode.Status.Witness; w != nil {
		facts.Reported = position(w.Head)
	}
	if q := macNode.Status.Quarantine; q != nil && rules.LostHistory(q.Reason) {
		facts.Lost = true
	}
	return facts
}

// isOf reports whether a MacNode and a kept witness, which may be nil, are those of this hardware.
// An administrator who creates a MacNode again may mistype its serial number.
func (k *Keeper) isOf(kept *stored, macNode *rackv1alpha1.MacNode) bool {
	return macNode.Spec.SerialNumber == k.SerialNumber && (kept == nil || kept.SerialNumber == k.SerialNumber)
}

func position(p rackv1alpha1.ChainPosition) rules.ChainPosition {
	return rules.ChainPosition{Sequence: p.Sequence, Hash: p.Hash}
}

// Keep writes the head and the lease of a confirmed MacNode to the disk, and returns the witness to
// report. It returns nil for the MacNode of other hardware. The starting instances may not be in
// the cache yet.
func (k *Keeper) Keep(macNode *rackv1alpha1.MacNode, starting ...*instancev1alpha1.MacOSInstance) (*rackv1alpha1.MacNodeWitness, error) {
	var witness *rackv1alpha1.MacNodeWitness
	err := k.File.change(func(kept *stored) (*stored, error) {
		witness = nil
		if !k.isOf(kept, macNode) {
			klog.ErrorS(nil, "Witness of other hardware; not reported", "node", macNode.Name, "serialNumber", k.SerialNumber, "expected", macNode.Spec.SerialNumber)
			return nil, nil
		}
		witness = &rackv1alpha1.MacNodeWitness{}
		if kept != nil {
			witness = &kept.MacNodeWitness
		}
		facts := k.facts(kept, macNode)
		if !facts.Confirmed() {
			return nil, nil
		}
		next := rackv1alpha1.MacNodeWitness{Head: witness.Head, LeaseRef: macNode.Status.LeaseRef, EarliestReleaseAt: macNode.Status.EarliestReleaseAt}
		if facts.Advances() {
			next.Head = macNode.Status.Ledger.Head
		}
		if next.LeaseRef != nil {
			next.Caches = macNode.Status.Caches
			var err error
			if next.Instances, err = k.instances(next.LeaseRef, witness.Instances, starting); err != nil {
				return nil, err
			}
		}
		if equality.Semantic.DeepEqual(*witness, next) {
			return nil, nil
		}
		if wait := k.headWait(*witness, next); wait > 0 {
			k.Queue.AddAfter(queue.MacNode(), wait)
			return nil, nil
		}
		k.writtenAt = k.Clock.Now()
		witness = next.DeepCopy()
		return &stored{k.SerialNumber, next}, nil
	})
	return witness, err
}

// headWait returns the time to wait before the witness changes to next. It is zero if the lease or
// an instance has changed, which a loss must not erase.
func (k *Keeper) headWait(kept, next rackv1alpha1.MacNodeWitness) time.Duration {
	next.Head = kept.Head
	passed := k.Clock.Since(k.writtenAt)
	if passed < 0 || !equality.Semantic.DeepEqual(kept, next) {
		return 0
	}
	return headPause - passed
}

// instances returns the instances of a lease whose start was granted and that have not ended: first
// the starting ones. A kept instance stays until the cache shows its end, or it has left its slot.
func (k *Keeper) instances(lease *rackv1alpha1.LeaseReference, kept []rackv1alpha1.WitnessedInstance, starting []*instancev1alpha1.MacOSInstance) ([]rackv1alpha1.WitnessedInstance, error) {
	cached, err := k.Instances.InNamespace(lease.Namespace)
	if err != nil {
		return nil, err
	}
	var list []rackv1alpha1.WitnessedInstance
	known := map[types.UID]bool{} // listed, or certainly not served
	add := func(i *instancev1alpha1.MacOSInstance) {
		id := rules.LeaseID{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID}
		switch {
		case known[i.UID]:
			return
		case rules.InstanceEnded(i.Status.Phase) || !rules.BelongsToLease(i, i.Spec.LeaseName, id):
		case i.Status.StartGrantedAt == nil || i.Status.MachineID == "" || i.Status.MACAddress == "":
			return // the cache may not have the grant yet
		default:
			list = append(list, rackv1alpha1.WitnessedInstance{
				Name: i.Name, UID: i.UID, ClassName: i.Spec.ClassName, ImageName: i.Spec.ImageName,
				MachineID: i.Status.MachineID, MACAddress: i.Status.MACAddress, StartGrantedAt: i.Status.StartGrantedAt,
			})
		}
		known[i.UID] = true
	}
	for _, i := range starting {
		add(i)
	}
	for _, i := range cached {
		newest, err := k.Instances.Newest(i.Namespace, i.Name)
		if err != nil {
			return nil, err
		}
		add(newest)
	}
	for _, i := range kept {
		if !known[i.UID] && k.holds(i.UID) {
			list = append(list, i)
		}
	}
	list = list[:min(len(list), rules.MaxVMsPerMac)]
	slices.SortFunc(list, func(a, b rackv1alpha1.WitnessedInstance) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return list, nil
}

// holds reports whether an instance is in a slot, or is about to be.
func (k *Keeper) holds(uid types.UID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, held := k.Slots.Find(string(uid))
	if held {
		delete(k.starting, uid)
	}
	return held || k.starting[uid]
}

// Confirm asks the server whether it has all records that this Mac has seen, and returns
// ErrUnconfirmed if not. The cache does not suffice for an action that cannot be undone: after a
// loss, kube-apiserver may delete pods before the cache has noticed the loss.
func (k *Keeper) Confirm(ctx context.Context) error {
	if kept := k.File.get(); kept == nil || kept.Head.Sequence == 0 {
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
	kept := k.File.get()
	if kept == nil || !k.isOf(kept, macNode) {
		return ErrUnconfirmed
	}
	next.Status.Witness = &kept.MacNodeWitness
	patch, err := apiclient.StatusPatch(macNode, next)
	if err != nil {
		return err
	}
	return k.MacNode.PatchStatus(ctx, patch)
}

// RecordStart writes to the disk that the Mac serves an instance, before its virtual machine is
// launched. It fails if the server does not have all records that this Mac has seen.
func (k *Keeper) RecordStart(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	macNode, err := k.live(ctx)
	if err != nil {
		klog.V(2).InfoS("Virtual machine not started", "instance", klog.KObj(instance), "err", err)
		return err
	}
	k.mu.Lock()
	k.starting[instance.UID] = true
	k.mu.Unlock()
	kept, err := k.Keep(macNode, instance)
	if err != nil {
		return err
	}
	if kept == nil || !slices.ContainsFunc(kept.Instances, func(i rackv1alpha1.WitnessedInstance) bool { return i.UID == instance.UID }) {
		return fmt.Errorf("the witness of the Mac does not have instance %s/%s yet", instance.Namespace, instance.Name)
	}
	return nil
}
