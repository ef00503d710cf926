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
	"macrack.io/macrack/pkg/registry/identity"
	"macrack.io/macrack/pkg/registry/image/macosimage"
	"macrack.io/macrack/pkg/registry/rack/macnode"
	"macrack.io/macrack/pkg/registry/rack/macnodelease"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// Resource is the resource of MacOSInstances.
var Resource = instance.Resource("macosinstances")

// Kinds of index keys for values that are unique among instances. Their values are the instances as namespace/name.
const (
	IndexMachineID  = "machine-id"
	IndexMACAddress = "mac-address"
)

// NewPlanner returns the planner of instances: a lease has two slots, an instance must fit on the Mac, machine IDs and MAC addresses are unique in the fleet, and each start and stop is recorded.
func NewPlanner(clock clock.PassiveClock) txn.Planner {
	p := &planner{clock}
	return func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
		was, _ := old.(*instance.MacOSInstance)
		is, _ := new.(*instance.MacOSInstance)
		var err error
		switch {
		case was == nil:
			err = p.create(ctx, tx, is)
		case is == nil:
			return p.delete(was)
		default:
			err = p.update(ctx, tx, was, is)
		}
		if err == nil {
			deriveConditions(is, p.clock.Now())
		}
		return err
	}
}

type planner struct{ clock clock.PassiveClock }

// create gives a new instance a slot of its lease.
func (p *planner) create(ctx context.Context, tx *txn.Tx, is *instance.MacOSInstance) error {
	lease := &rack.MacNodeLease{}
	if err := tx.Get(ctx, macnodelease.Resource, is.Namespace, is.Spec.LeaseName, lease); apierrors.IsNotFound(err) {
		if foreseen(ctx) {
			_, err := p.catalogue(ctx, tx, is, nil)
			return err
		}
		return p.reject(is, nil, rules.ReasonNoSuchLease, fmt.Errorf("%s: namespace %q has no lease %q, and an instance runs only on a lease of its own namespace; see: kubectl get macnodeleases",
			rules.OneTenantPerChassis, is.Namespace, is.Spec.LeaseName))
	} else if err != nil {
		return err
	}
	var floor time.Time
	now := p.clock.Now()
	is.CreationTimestamp = metav1.NewTime(now) // by the clock of the floor
	if lease.Status.EarliestReleaseAt != nil {
		floor = lease.Status.EarliestReleaseAt.Time
		var err error
		if now, err = ledger.Now(ctx, tx, p.clock, lease.Status.SerialNumber); err != nil {
			return err
		}
	}
	if err := rules.CheckAcceptsInstance(lease.Name, string(lease.Status.Phase), floor, now); err != nil && (!isPending(lease) || !foreseen(ctx)) {
		reason := rules.ReasonLeaseNotUsable
		if isPending(lease) {
			reason = rules.ReasonLeasePending
		}
		return p.reject(is, lease, reason, err)
	}
	var taken []string
	for _, slot := range lease.Status.Instances {
		taken = append(taken, slot.Name)
	}
	if err := rules.CheckSlot(lease.Name, taken); err != nil {
		return p.reject(is, lease, "NoFreeSlot", err)
	}
	class, err := p.catalogue(ctx, tx, is, lease)
	if err != nil {
		return err
	}
	macClass := &rack.MacNodeClass{}
	if err := tx.Get(ctx, rack.Resource("macnodeclasses"), "", lease.Spec.ClassName, macClass); apierrors.IsNotFound(err) {
		return p.reject(is, lease, rules.ReasonNoSuchMacClass, fmt.Errorf("the class %q of the lease's Mac is no longer in the catalogue, so the free resources are unknown; ask an administrator to restore it", lease.Spec.ClassName))
	} else if err != nil {
		return err
	}
	asked := rack.MachineResources(class.Spec.Resources)
	used := rules.Resources{}
	for _, slot := range lease.Status.Instances {
		used = used.Add(amounts(slot.Resources))
	}
	if err := rules.CheckFit(macClass.Name, amounts(macClass.Spec.Capacity), amounts(macClass.Spec.HostReserved), used, amounts(asked)); err != nil {
		return p.reject(is, lease, rules.ReasonDoesNotFit, err)
	}
	owner := leaseReference(lease.Name, lease.UID)
	for _, ref := range is.OwnerReferences {
		if ref.UID != lease.UID && !sameLease(ref, owner) {
			return p.reject(is, lease, rules.ReasonForeignOwner, fmt.Errorf("an instance is owned by its lease alone, not by %s %q; omit ownerReferences", ref.Kind, ref.Name))
		}
	}
	is.OwnerReferences = []metav1.OwnerReference{owner}
	is.Status.NodeName = lease.Status.NodeName
	is.Status.SerialNumber = lease.Status.SerialNumber
	if mac := meta.FindStatusCondition(lease.Status.Conditions, rack.MacNodeLeaseConditionMacReady); mac != nil {
		meta.SetStatusCondition(&is.Status.Conditions, *mac)
	}
	lease.Status.Instances = append(lease.Status.Instances, rack.LeaseSlot{Name: is.Name, UID: is.UID, Resources: asked})
	if err := tx.CreateKey(macosimage.IndexUse, macosimage.UseID(is.Spec.ImageName, is.UID), []byte(is.Namespace+"/"+is.Name)); err != nil {
		return err
	}
	return tx.Update(ctx, macnodelease.Resource, lease)
}

func amounts(r rack.MachineResources) rules.Resources {
	return rules.Resources{CPU: r.CPU.Value(), Memory: r.Memory.Value(), Storage: r.Storage.Value()}
}

// catalogue checks the image of an instance and returns its class. The lease may be nil.
func (p *planner) catalogue(ctx context.Context, tx *txn.Tx, is *instance.MacOSInstance, lease *rack.MacNodeLease) (*instance.InstanceClass, error) {
	img := &image.MacOSImage{}
	if err := tx.Get(ctx, macosimage.Resource, "", is.Spec.ImageName, img); apierrors.IsNotFound(err) {
		return nil, p.reject(is, lease, rules.ReasonNoSuchImage, fmt.Errorf("there is no image %q; see: kubectl get macosimages", is.Spec.ImageName))
	} else if err != nil {
		return nil, err
	}
	if !macosimage.Usable(img, is.Namespace) {
		return nil, p.reject(is, lease, rules.ReasonImageNotReady, fmt.Errorf("image %q is %s, not Ready; see: kubectl describe macosimage %s", img.Name, img.Status.Phase, img.Name))
	}
	class := &instance.InstanceClass{}
	if err := tx.Get(ctx, instance.Resource("instanceclasses"), "", is.Spec.ClassName, class); apierrors.IsNotFound(err) {
		return nil, p.reject(is, lease, rules.ReasonNoSuchClass, fmt.Errorf("there is no instance class %q; see: kubectl get instanceclasses", is.Spec.ClassName))
	} else if err != nil {
		return nil, err
	}
	return class, nil
}

func (p *planner) update(ctx context.Context, tx *txn.Tx, was, is *instance.MacOSInstance) error {
	// The garbage collector must delete an instance with its lease, and the pod with its instance, so clients cannot change the owner or orphan the pod.
	is.OwnerReferences = was.OwnerReferences
	if slices.Contains(was.Finalizers, rules.FinalizerVM) {
		is.Finalizers = slices.DeleteFunc(is.Finalizers, func(f string) bool { return f == metav1.FinalizerOrphanDependents })
	}
	if slices.Contains(was.Finalizers, rules.FinalizerVM) && !slices.Contains(is.Finalizers, rules.FinalizerVM) && !rules.InstanceEnded(was.Status.Phase) {
		return apierrors.NewForbidden(Resource, is.Name, fmt.Errorf("the finalizer %s keeps the instance until its virtual machine has stopped, and it is %s; delete the instance and wait", rules.FinalizerVM, was.Status.Phase))
	}
	if was.DeletionTimestamp == nil && is.DeletionTimestamp != nil {
		requestStop(is, instance.StopRequest{At: metav1.NewTime(p.clock.Now()), By: identity.Username(ctx), Reason: "Deleted", GracePeriodSeconds: int64(rules.DefaultStopGrace.Seconds())})
	}
	if rules.InstanceEnded(was.Status.Phase) {
		if is.Status.MachineID != was.Status.MachineID || is.Status.MACAddress != was.Status.MACAddress {
			return apierrors.NewConflict(Resource, is.Name, fmt.Errorf("it has ended (%s) and does not start again", was.Status.Phase))
		}
		return nil
	}
	if was.Status.StopRequest != nil && is.Status.Phase == instance.MacOSInstanceStopping && is.Status.Message == stopMessage(was) {
		is.Status.Message = stopMessage(is) // the Mac may have gone offline or come back online
	}
	if rules.InstanceEnded(is.Status.Phase) { // a finished instance releases its identity
		is.Status.MachineID, is.Status.MACAddress = was.Status.MachineID, was.Status.MACAddress
	}
	if err := p.claimIdentity(ctx, tx, was, is); err != nil {
		return err
	}
	if rules.InstanceEnded(is.Status.Phase) {
		return p.end(ctx, tx, was, is)
	}
	if is.Status.Phase == instance.MacOSInstanceRunning && is.Status.StartedAt == nil {
		is.Status.StartedAt = ptr.To(metav1.NewTime(p.clock.Now()))
	}
	if !counts(was) && hasIdentity(is) && (!hasIdentity(was) || identity.IsAgent(ctx)) {
		return p.grant(ctx, tx, was, is)
	}
	return nil
}

// grant grants the start of the virtual machine of an instance. From here on it counts as running, which is recorded before its agent may launch it.
func (p *planner) grant(ctx context.Context, tx *txn.Tx, was, is *instance.MacOSInstance) error {
	// An instance that got its identity from a version without grants may already be running. It is counted regardless of its state.
	if !hasIdentity(was) {
		if is.Status.StopRequest != nil || is.DeletionTimestamp != nil {
			return apierrors.NewConflict(Resource, is.Name, errors.New("the instance is stopping, so its virtual machine may not start"))
		}
		if is.Status.Phase != instance.MacOSInstanceStarting || is.Status.StartedAt != nil {
			return p.reject(is, nil, "StartNotGranted", fmt.Errorf("a virtual machine may start only after its start was granted: report a machine ID and a MAC address in phase %s first, and launch it once that is accepted",
				instance.MacOSInstanceStarting))
		}
	}
	is.Status.StartGrantedAt = ptr.To(metav1.NewTime(p.clock.Now()))
	return p.count(ctx, tx, is, 1, ledger.NewInstanceStarted)
}

// delete refuses to delete an instance before its virtual machine has stopped.
func (p *planner) delete(was *instance.MacOSInstance) error {
	if !rules.InstanceEnded(was.Status.Phase) {
		return apierrors.NewForbidden(Resource, was.Name, fmt.Errorf("its virtual machine has not stopped, it is %s", was.Status.Phase))
	}
	return nil
}

// claimIdentity claims a machine ID and a MAC address for an instance, unless another instance in the fleet has them.
func (p *planner) claimIdentity(ctx context.Context, tx *txn.Tx, was, is *instance.MacOSInstance) error {
	for _, id := range []struct{ kind, what, was, is string }{
		{IndexMachineID, "machine ID", was.Status.MachineID, is.Status.MachineID},
		{IndexMACAddress, "MAC address", was.Status.MACAddress, is.Status.MACAddress},
	} {
		if id.was == id.is {
			continue
		}
		if id.was != "" {
			return apierrors.NewForbidden(Resource, is.Name, fmt.Errorf("its %s is %s and never changes", id.what, id.was))
		}
		_, taken, err := tx.GetKey(ctx, id.kind, id.is)
		if err != nil {
			return err
		}
		if taken {
			return apierrors.NewConflict(Resource, is.Name, fmt.Errorf("the %s %s belongs to another instance and must be unique in the fleet; generate a new one", id.what, id.is))
		}
		if err := tx.CreateKey(id.kind, id.is, []byte(is.Namespace+"/"+is.Name)); err != nil {
			return err
		}
	}
	return nil
}

// end frees the slot and the index keys of an instance that ends.
func (p *planner) end(ctx context.Context, tx *txn.Tx, was, is *instance.MacOSInstance) error {
	if is.Status.MachineID != "" && !identity.IsAgent(ctx) && !identity.IsAdministrator(ctx) {
		return apierrors.NewForbidden(Resource, is.Name, fmt.Errorf("only the agent of Mac %q knows whether the virtual machine has stopped; ask for it with the subresource stop", is.Status.NodeName))
	}
	if is.Status.StoppedAt == nil {
		is.Status.StoppedAt = ptr.To(metav1.NewTime(p.clock.Now()))
	}
	is.Status.IPAddress = nil
	lease := &rack.MacNodeLease{}
	if err := tx.Get(ctx, macnodelease.Resource, is.Namespace, is.Spec.LeaseName, lease); err != nil {
		return err
	}
	mine := func(slot rack.LeaseSlot) bool { return slot.UID == is.UID }
	if !slices.ContainsFunc(lease.Status.Instances, mine) {
		return apierrors.NewInternalError(fmt.Errorf("instance %s/%s has no slot of lease %q", is.Namespace, is.Name, lease.Name))
	}
	lease.Status.Instances = slices.DeleteFunc(lease.Status.Instances, mine)
	if err := tx.Update(ctx, macnodelease.Resource, lease); err != nil {
		return err
	}
	for _, key := range [][2]string{
		{IndexMachineID, is.Status.MachineID},
		{IndexMACAddress, is.Status.MACAddress},
		{macosimage.IndexUse, macosimage.UseID(is.Spec.ImageName, is.UID)},
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
	if !counts(was) {
		return nil
	}
	return p.count(ctx, tx, is, -1, ledger.NewInstanceStopped)
}

// count changes the number of running virtual machines of the instance's Mac, and records it.
func (p *planner) count(ctx context.Context, tx *txn.Tx, is *instance.MacOSInstance, by int32, record func(*instance.MacOSInstance, *rack.MacNodeLease, int32) *rack.AuditRecord) error {
	lease := &rack.MacNodeLease{}
	if err := tx.Get(ctx, macnodelease.Resource, is.Namespace, is.Spec.LeaseName, lease); err != nil {
		return err
	}
	node := &rack.MacNode{}
	if err := tx.Get(ctx, macnode.Resource, "", is.Status.NodeName, node); err != nil {
		return err
	}
	if ref := node.Status.LeaseRef; ref == nil || ref.UID != lease.UID {
		return p.reject(is, lease, "MacIsNotLeased", fmt.Errorf("%s: Mac %q does not belong to the instance's lease", rules.OneTenantPerChassis, node.Name))
	}
	if by > 0 && is.Status.StartedAt == nil {
		if q := node.Status.Quarantine; q != nil {
			return p.reject(is, lease, "MacQuarantined", fmt.Errorf("Mac %q is in quarantine (%s) and starts no virtual machine; it ends with a reboot, or an administrator ends it", node.Name, q.Reason))
		}
		if node.Status.ReleasingSince != nil {
			return p.reject(is, lease, "MacReleasing", fmt.Errorf("Mac %q is being released and starts no virtual machine", node.Name))
		}
	}
	node.Status.RunningVMs += by
	if by < 0 {
		// A virtual machine runs only in a slot, and this one has left its own. An older API server may have counted one twice.
		others := slices.DeleteFunc(slices.Clone(lease.Status.Instances), func(slot rack.LeaseSlot) bool { return slot.UID == is.UID })
		node.Status.RunningVMs = min(node.Status.RunningVMs, int32(len(others)))
	}
	if err := rules.CheckRunning(node.Name, node.Status.RunningVMs); err != nil {
		return p.reject(is, lease, "ThirdVM", err)
	}
	if err := tx.Update(ctx, macnode.Resource, node); err != nil {
		return err
	}
	return ledger.Append(ctx, tx, p.clock, record(is, lease, node.Status.RunningVMs))
}

// reject returns a recorded refusal of an instance.
func (p *planner) reject(is *instance.MacOSInstance, lease *rack.MacNodeLease, reason string, cause error) error {
	return rejection.Forbidden(Resource, is.Name, cause, ledger.NewInstanceRejected(is, lease, rack.LayerRegistry, reason, cause.Error()))
}

// requestStop requests an instance to stop, unless it has ended. An instance that no agent has started is Stopped at once.
func requestStop(is *instance.MacOSInstance, request instance.StopRequest) {
	if rules.InstanceEnded(is.Status.Phase) || is.Status.StopRequest != nil {
		return
	}
	is.Status.StopRequest = &request
	if is.Status.Phase == instance.MacOSInstancePending && is.Status.PodName == "" {
		is.Status.Phase = instance.MacOSInstanceStopped
		is.Status.Message = "it was stopped before it was started"
		return
	}
	is.Status.Phase = instance.MacOSInstanceStopping
	is.Status.Message = stopMessage(is)
}

// stopMessage returns the message of a stopping instance: the user who requested it, and the state of the Mac if it is offline.
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

// hasIdentity reports whether an instance has a machine ID and a MAC address, which its virtual machine needs to start.
func hasIdentity(i *instance.MacOSInstance) bool {
	return i.Status.MachineID != "" && i.Status.MACAddress != ""
}

// counts reports whether the virtual machine of an instance counts as running on its Mac: from the grant of its start until its end. An instance from a version without grants counts if it has started.
func counts(i *instance.MacOSInstance) bool {
	return (i.Status.StartGrantedAt != nil || i.Status.StartedAt != nil) && !rules.InstanceEnded(i.Status.Phase)
}

// sameLease reports whether two references name the same lease, regardless of the UID: a restored instance has a reference to its former lease.
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
