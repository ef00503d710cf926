package macosinstance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/image/macosimage"
	"macrack.io/macrack/pkg/registry/rack/macnode"
	"macrack.io/macrack/pkg/registry/rack/macnodelease"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/registry/tenancy"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// Resource is the resource of MacOSInstances.
var Resource = instance.Resource("macosinstances")

// Kinds of index keys for values that are unique among instances. Their values are the instances as
// namespace/name.
const (
	IndexMachineID  = "machine-id"
	IndexMACAddress = "mac-address"
)

// NewPlanner returns the planner of instances: a lease has two slots, an instance must fit on the
// Mac, machine IDs and MAC addresses are unique in the fleet, each start and stop is recorded, and
// the lease belongs to the current owner of the namespace.
func NewPlanner(clock clock.PassiveClock, ownership *tenancy.Ownership) txn.Planner {
	p := &planner{clock, ownership}
	return func(ctx context.Context, tx *txn.Tx, oldObj, newObj runtime.Object) error {
		old, _ := oldObj.(*instance.MacOSInstance)
		new, _ := newObj.(*instance.MacOSInstance)
		var err error
		switch {
		case old == nil:
			err = p.create(ctx, tx, new)
		case new == nil:
			return p.delete(old)
		default:
			err = p.update(ctx, tx, old, new)
		}
		if err == nil {
			deriveConditions(new, p.clock.Now())
		}
		return err
	}
}

type planner struct {
	clock     clock.PassiveClock
	ownership *tenancy.Ownership
}

// create gives a new instance a slot of its lease.
func (p *planner) create(ctx context.Context, tx *txn.Tx, new *instance.MacOSInstance) error {
	lease := &rack.MacNodeLease{}
	if err := tx.Get(ctx, macnodelease.Resource, new.Namespace, new.Spec.LeaseName, lease); apierrors.IsNotFound(err) {
		if assumesBound(ctx) {
			_, err := p.catalogue(ctx, tx, new, nil)
			return err
		}
		return p.reject(new, nil, rules.ReasonNoSuchLease, fmt.Errorf("%s: namespace %q has no lease %q, and an instance runs only on a lease of its own namespace; see: kubectl get macnodeleases",
			rules.OneTenantPerChassis, new.Namespace, new.Spec.LeaseName))
	} else if err != nil {
		return err
	}
	if err := p.ownership.AssignInstance(ctx, new, lease); err != nil { // first: the other refusals describe the lease
		return err
	}
	var floor time.Time
	now := p.clock.Now()
	new.CreationTimestamp = metav1.NewTime(now) // by the clock of the floor
	if lease.Status.EarliestReleaseAt != nil {
		floor = lease.Status.EarliestReleaseAt.Time
		var err error
		if now, err = ledger.Now(ctx, tx, p.clock, lease.Status.SerialNumber); err != nil {
			return err
		}
	}
	if err := rules.CheckAcceptsInstance(lease.Name, string(lease.Status.Phase), floor, now); err != nil && (!isPending(lease) || !assumesBound(ctx)) {
		reason := rules.ReasonLeaseNotUsable
		if isPending(lease) {
			reason = rules.ReasonLeasePending
		}
		return p.reject(new, lease, reason, err)
	}
	var taken []string
	for _, slot := range lease.Status.Instances {
		taken = append(taken, slot.Name)
	}
	if err := rules.CheckSlot(lease.Name, taken); err != nil {
		return p.reject(new, lease, "NoFreeSlot", err)
	}
	class, err := p.catalogue(ctx, tx, new, lease)
	if err != nil {
		return err
	}
	macClass := &rack.MacNodeClass{}
	if err := tx.Get(ctx, rack.Resource("macnodeclasses"), "", lease.Spec.ClassName, macClass); apierrors.IsNotFound(err) {
		return p.reject(new, lease, rules.ReasonNoSuchMacClass, fmt.Errorf("the class %q of the lease's Mac is no longer in the catalogue, so the free resources are unknown; ask an administrator to restore it", lease.Spec.ClassName))
	} else if err != nil {
		return err
	}
	asked := rack.MachineResources(class.Spec.Resources)
	used := rules.Resources{}
	for _, slot := range lease.Status.Instances {
		used = used.Add(amounts(slot.Resources))
	}
	if err := rules.CheckFit(macClass.Name, amounts(macClass.Spec.Capacity), amounts(macClass.Spec.HostReserved), used, amounts(asked)); err != nil {
		return p.reject(new, lease, rules.ReasonDoesNotFit, err)
	}
	owner := leaseReference(lease.Name, lease.UID)
	for _, ref := range new.OwnerReferences {
		if ref.UID != lease.UID && !sameLease(ref, owner) {
			return p.reject(new, lease, rules.ReasonForeignOwner, fmt.Errorf("an instance is owned by its lease alone, not by %s %q; omit ownerReferences", ref.Kind, ref.Name))
		}
	}
	new.OwnerReferences = []metav1.OwnerReference{owner}
	new.Status.NodeName = lease.Status.NodeName
	new.Status.SerialNumber = lease.Status.SerialNumber
	if mac := meta.FindStatusCondition(lease.Status.Conditions, rack.MacNodeLeaseConditionMacReady); mac != nil {
		meta.SetStatusCondition(&new.Status.Conditions, *mac)
	}
	lease.Status.Instances = append(lease.Status.Instances, rack.LeaseSlot{Name: new.Name, UID: new.UID, Resources: asked})
	if err := tx.CreateKey(macosimage.IndexUse, macosimage.UseID(new.Spec.ImageName, new.UID), []byte(new.Namespace+"/"+new.Name)); err != nil {
		return err
	}
	return tx.Update(ctx, macnodelease.Resource, lease)
}

func amounts(r rack.MachineResources) rules.Resources {
	return rules.Resources{CPU: r.CPU.Value(), Memory: r.Memory.Value(), Storage: r.Storage.Value()}
}

// catalogue checks the image of an instance and returns its class. The lease may be nil.
func (p *planner) catalogue(ctx context.Context, tx *txn.Tx, new *instance.MacOSInstance, lease *rack.MacNodeLease) (*instance.InstanceClass, error) {
	img := &image.MacOSImage{}
	if err := tx.Get(ctx, macosimage.Resource, "", new.Spec.ImageName, img); apierrors.IsNotFound(err) {
		return nil, p.reject(new, lease, rules.ReasonNoSuchImage, fmt.Errorf("there is no image %q; see: kubectl get macosimages", new.Spec.ImageName))
	} else if err != nil {
		return nil, err
	}
	if !macosimage.Usable(img, new.Namespace) {
		return nil, p.reject(new, lease, rules.ReasonImageNotReady, fmt.Errorf("image %q is %s, not Ready; see: kubectl describe macosimage %s", img.Name, img.Status.Phase, img.Name))
	}
	class := &instance.InstanceClass{}
	if err := tx.Get(ctx, instance.Resource("instanceclasses"), "", new.Spec.ClassName, class); apierrors.IsNotFound(err) {
		return nil, p.reject(new, lease, rules.ReasonNoSuchClass, fmt.Errorf("there is no instance class %q; see: kubectl get instanceclasses", new.Spec.ClassName))
	} else if err != nil {
		return nil, err
	}
	return class, nil
}

func (p *planner) update(ctx context.Context, tx *txn.Tx, old, new *instance.MacOSInstance) error {
	// The garbage collector must delete an instance with its lease, and the pod with its instance,
	// so clients cannot change the owner or orphan the pod.
	new.OwnerReferences = old.OwnerReferences
	if slices.Contains(old.Finalizers, rules.FinalizerVM) {
		new.Finalizers = slices.DeleteFunc(new.Finalizers, func(f string) bool { return f == metav1.FinalizerOrphanDependents })
	}
	if slices.Contains(old.Finalizers, rules.FinalizerVM) && !slices.Contains(new.Finalizers, rules.FinalizerVM) && !rules.InstanceEnded(old.Status.Phase) {
		return apierrors.NewForbidden(Resource, new.Name, fmt.Errorf("the finalizer %s keeps the instance until its virtual machine has stopped, and it is %s; delete the instance and wait", rules.FinalizerVM, old.Status.Phase))
	}
	if old.DeletionTimestamp == nil && new.DeletionTimestamp != nil {
		requestStop(new, instance.StopRequest{At: metav1.NewTime(p.clock.Now()), By: requestuser.Username(ctx), Reason: "Deleted", GracePeriodSeconds: int64(rules.DefaultStopGrace.Seconds())})
	}
	if rules.InstanceEnded(old.Status.Phase) {
		if new.Status.MachineID != old.Status.MachineID || new.Status.MACAddress != old.Status.MACAddress {
			return apierrors.NewConflict(Resource, new.Name, fmt.Errorf("it has ended (%s) and does not start again", old.Status.Phase))
		}
		return nil
	}
	if old.Status.StopRequest != nil && new.Status.Phase == instance.MacOSInstanceStopping && new.Status.Message == stopMessage(old) {
		new.Status.Message = stopMessage(new) // the Mac may have gone offline or come back online
	}
	if rules.InstanceEnded(new.Status.Phase) { // a finished instance releases its identity
		new.Status.MachineID, new.Status.MACAddress = old.Status.MachineID, old.Status.MACAddress
	}
	if err := p.claimIdentity(ctx, tx, old, new); err != nil {
		return err
	}
	if rules.InstanceEnded(new.Status.Phase) {
		return p.end(ctx, tx, old, new)
	}
	if new.Status.Phase == instance.MacOSInstanceRunning && new.Status.StartedAt == nil {
		new.Status.StartedAt = ptr.To(metav1.NewTime(p.clock.Now()))
	}
	if !counts(old) && hasIdentity(new) && (!hasIdentity(old) || requestuser.IsAgent(ctx)) {
		return p.grant(ctx, tx, old, new)
	}
	return nil
}

// grant grants the start of the virtual machine of an instance. From here on it counts as running,
// which is recorded before its agent may launch it.
func (p *planner) grant(ctx context.Context, tx *txn.Tx, old, new *instance.MacOSInstance) error {
	// An instance that got its identity from a version without grants may already be running. It is
	// counted regardless of its state.
	if !hasIdentity(old) {
		if new.Status.StopRequest != nil || new.DeletionTimestamp != nil {
			return apierrors.NewConflict(Resource, new.Name, errors.New("the instance is stopping, so its virtual machine may not start"))
		}
		if new.Status.Phase != instance.MacOSInstanceStarting || new.Status.StartedAt != nil {
			return p.reject(new, nil, "StartNotGranted", fmt.Errorf("a virtual machine may start only after its start was granted: report a machine ID and a MAC address in phase %s first, and launch it once that is accepted",
				instance.MacOSInstanceStarting))
		}
	}
	new.Status.StartGrantedAt = ptr.To(metav1.NewTime(p.clock.Now()))
	return p.count(ctx, tx, new, 1, ledger.NewInstanceStarted)
}

// delete refuses to delete an instance before its virtual machine has stopped.
func (p *planner) delete(old *instance.MacOSInstance) error {
	if !rules.InstanceEnded(old.Status.Phase) {
		return apierrors.NewForbidden(Resource, old.Name, fmt.Errorf("its virtual machine has not stopped, it is %s", old.Status.Phase))
	}
	return nil
}

// claimIdentity claims a machine ID and a MAC address for an instance, unless another instance in
// the fleet has them.
func (p *planner) claimIdentity(ctx context.Context, tx *txn.Tx, old, new *instance.MacOSInstance) error {
	for _, id := range []struct{ kind, what, old, new string }{
		{IndexMachineID, "machine ID", old.Status.MachineID, new.Status.MachineID},
		{IndexMACAddress, "MAC address", old.Status.MACAddress, new.Status.MACAddress},
	} {
		if id.old == id.new {
			continue
		}
		if id.old != "" {
			return apierrors.NewForbidden(Resource, new.Name, fmt.Errorf("its %s is %s and never changes", id.what, id.old))
		}
		_, taken, err := tx.GetKey(ctx, id.kind, id.new)
		if err != nil {
			return err
		}
		if taken {
			return apierrors.NewConflict(Resource, new.Name, fmt.Errorf("the %s %s belongs to another instance and must be unique in the fleet; generate a new one", id.what, id.new))
		}
		if err := tx.CreateKey(id.kind, id.new, []byte(new.Namespace+"/"+new.Name)); err != nil {
			return err
		}
	}
	return nil
}

// end frees the slot and the index keys of an instance that ends.
func (p *planner) end(ctx context.Context, tx *txn.Tx, old, new *instance.MacOSInstance) error {
	if new.Status.MachineID != "" && !requestuser.IsAgent(ctx) && !requestuser.IsAdministrator(ctx) {
		return apierrors.NewForbidden(Resource, new.Name, fmt.Errorf("only the agent of Mac %q knows whether the virtual machine has stopped; ask for it with the subresource stop", new.Status.NodeName))
	}
	if new.Status.StoppedAt == nil {
		new.Status.StoppedAt = ptr.To(metav1.NewTime(p.clock.Now()))
	}
	new.Status.IPAddress = nil
	lease := &rack.MacNodeLease{}
	if err := tx.Get(ctx, macnodelease.Resource, new.Namespace, new.Spec.LeaseName, lease); err != nil {
		return err
	}
	mine := func(slot rack.LeaseSlot) bool { return slot.UID == new.UID }
	if !slices.ContainsFunc(lease.Status.Instances, mine) {
		return apierrors.NewInternalError(fmt.Errorf("instance %s/%s has no slot of lease %q", new.Namespace, new.Name, lease.Name))
	}
	lease.Status.Instances = slices.DeleteFunc(lease.Status.Instances, mine)
	if err := tx.Update(ctx, macnodelease.Resource, lease); err != nil {
		return err
	}
	for _, key := range [][2]string{
		{IndexMachineID, new.Status.MachineID},
		{IndexMACAddress, new.Status.MACAddress},
		{macosimage.IndexUse, macosimage.UseID(new.Spec.ImageName, new.UID)},
	} {
		if key[1] == "" {
			continue
		}
		if _, exists, err := tx.GetKey(ctx, key[0], key[1]); err != nil {
			return err
		} else if exists {
			if err := tx.DeleteKey(key[0], key[1]); err != nil {
				return err
			}
		}
	}
	if !counts(old) {
		return nil
	}
	return p.count(ctx, tx, new, -1, ledger.NewInstanceStopped)
}

// count changes the number of running virtual machines of the instance's Mac, and records it.
func (p *planner) count(ctx context.Context, tx *txn.Tx, new *instance.MacOSInstance, by int32, record func(*instance.MacOSInstance, *rack.MacNodeLease, int32) *rack.AuditRecord) error {
	lease := &rack.MacNodeLease{}
	if err := tx.Get(ctx, macnodelease.Resource, new.Namespace, new.Spec.LeaseName, lease); err != nil {
		return err
	}
	node := &rack.MacNode{}
	if err := tx.Get(ctx, macnode.Resource, "", new.Status.NodeName, node); err != nil {
		return err
	}
	if ref := node.Status.LeaseRef; ref == nil || ref.UID != lease.UID {
		return p.reject(new, lease, "MacIsNotLeased", fmt.Errorf("%s: Mac %q does not belong to the instance's lease", rules.OneTenantPerChassis, node.Name))
	}
	if by > 0 && new.Status.StartedAt == nil {
		if q := node.Status.Quarantine; q != nil {
			return p.reject(new, lease, "MacQuarantined", fmt.Errorf("Mac %q is in quarantine (%s) and starts no virtual machine; it ends with a reboot, or an administrator ends it", node.Name, q.Reason))
		}
		if node.Status.ReleasingSince != nil {
			return p.reject(new, lease, "MacReleasing", fmt.Errorf("Mac %q is being released and starts no virtual machine", node.Name))
		}
	}
	node.Status.RunningVMs += by
	if by < 0 {
		// A virtual machine runs only in a slot, and this one has left its own. An older API server
		// may have counted one twice.
		others := slices.DeleteFunc(slices.Clone(lease.Status.Instances), func(slot rack.LeaseSlot) bool { return slot.UID == new.UID })
		node.Status.RunningVMs = min(node.Status.RunningVMs, int32(len(others)))
	}
	if err := rules.CheckRunning(node.Name, node.Status.RunningVMs); err != nil {
		return p.reject(new, lease, "ThirdVM", err)
	}
	if err := tx.Update(ctx, macnode.Resource, node); err != nil {
		return err
	}
	return ledger.Append(ctx, tx, p.clock, record(new, lease, node.Status.RunningVMs))
}

// reject returns a recorded refusal of an instance.
func (p *planner) reject(new *instance.MacOSInstance, lease *rack.MacNodeLease, reason string, cause error) error {
	return rejection.Forbidden(Resource, new.Name, cause, ledger.NewInstanceRejected(new, lease, rack.LayerRegistry, reason, cause.Error()))
}

// requestStop requests an instance to stop, unless it has ended. An instance that no agent has
// started is Stopped at once.
func requestStop(new *instance.MacOSInstance, request instance.StopRequest) {
	if rules.InstanceEnded(new.Status.Phase) || new.Status.StopRequest != nil {
		return
	}
	new.Status.StopRequest = &request
	if new.Status.Phase == instance.MacOSInstancePending && new.Status.PodName == "" {
		new.Status.Phase = instance.MacOSInstanceStopped
		new.Status.Message = "it was stopped before it was started"
		return
	}
	new.Status.Phase = instance.MacOSInstanceStopping
	new.Status.Message = stopMessage(new)
}

// stopMessage returns the message of a stopping instance: the user who requested it, and the state
// of the Mac if it is offline.
func stopMessage(i *instance.MacOSInstance) string {
	request := i.Status.StopRequest
	if request == nil {
		return ""
	}
	message := fmt.Sprintf("asked to stop by %s (%s)", request.By, request.Reason)
	if mac := meta.FindStatusCondition(i.Status.Conditions, instance.MacOSInstanceMacReady); mac != nil && mac.Status == metav1.ConditionFalse && mac.Reason == rack.ReasonMacOffline {
		message += "; it stops when its Mac is back: " + mac.Message
	}
	return message
}

// hasIdentity reports whether an instance has a machine ID and a MAC address, which its virtual
// machine needs to start.
func hasIdentity(i *instance.MacOSInstance) bool {
	return i.Status.MachineID != "" && i.Status.MACAddress != ""
}

// counts reports whether the virtual machine of an instance counts as running on its Mac: from the
// grant of its start until its end. An instance from a version without grants counts if it has
// started.
func counts(i *instance.MacOSInstance) bool {
	return (i.Status.StartGrantedAt != nil || i.Status.StartedAt != nil) && !rules.InstanceEnded(i.Status.Phase)
}

// sameLease reports whether two references name the same lease, regardless of the UID: a restored
// instance has a reference to its former lease.
func sameLease(a, b metav1.OwnerReference) bool {
	return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name
}

func leaseReference(name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion:         rackv1alpha1.SchemeGroupVersion.String(),
		Kind:               "MacNodeLease",
		Name:               name,
		UID:                uid,
		BlockOwnerDeletion: ptr.To(true),
	}
}
