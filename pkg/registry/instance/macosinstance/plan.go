package macosinstance

import (
	"context"
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
			DeriveConditions(new, p.clock.Now())
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
	for _, cache := range new.Spec.Caches {
		if !slices.ContainsFunc(lease.Spec.Caches, func(c rack.LeaseCache) bool { return c.Name == cache.Name }) {
			return p.reject(new, lease, rules.ReasonNoSuchCache, fmt.Errorf("lease %q has no cache %q; use a cache of its spec.caches, or omit the cache", lease.Name, cache.Name))
		}
	}
	asked := rack.MachineResources(class.Spec.Resources)
	used := rules.Resources{Storage: macnodelease.CacheStorage(lease)}
	for _, slot := range lease.Status.Instances {
		used = used.Add(amounts(slot.Resources))
	}
	if err := rules.CheckFit(macClass.Name, amounts(macClass.Spec.Capacity), amounts(macClass.Spec.HostReserved), used, amounts(asked)); err != nil {
		return p.reject(new, lease, rules.ReasonDoesNotFit, err)
	}
	owner := LeaseReference(lease.Name, lease.UID)
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
	if img.Spec.Identity == image.ImageIdentityFromImage {
		// The index of machine IDs refuses the start of a second instance that is created at the
		// same time.
		if used, err := macosimage.InUse(ctx, tx, img.Name); err != nil {
			return nil, err
		} else if used {
			return nil, p.reject(new, lease, rules.ReasonImageIdentityInUse, fmt.Errorf("image %q boots only with its own machine identifier (spec.identity FromImage), which another instance in the fleet has; wait until that instance has ended, or use another image", img.Name))
		}
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
		if err := p.checkCollected(ctx, tx, old); err != nil {
			return err
		}
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
	now := ptr.To(metav1.NewTime(p.clock.Now()))
	if new.Status.Phase == instance.MacOSInstanceRunning && new.Status.StartedAt == nil {
		new.Status.StartedAt = now
	}
	if old.Status.StartedAt == nil && now.Before(new.Status.StartedAt) {
		new.Status.StartedAt = now // the clock of the Mac is ahead, which must not move the deadline
	}
	if !counts(old) && hasIdentity(new) && (!hasIdentity(old) || requestuser.IsAgent(ctx)) {
		return p.grant(ctx, tx, old, new)
	}
	return nil
}

// checkCollected refuses the deletion of an instance by the garbage collector while its lease
// exists. The garbage collector remembers the UIDs of lost leases, which a restore brings back.
func (p *planner) checkCollected(ctx context.Context, tx *txn.Tx, old *instance.MacOSInstance) error {
	if !requestuser.IsGarbageCollector(ctx) {
		return nil
	}
	lease := &rack.MacNodeLease{}
	err := tx.Get(ctx, macnodelease.Resource, old.Namespace, old.Spec.LeaseName, lease)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if lease.DeletionTimestamp == nil && slices.ContainsFunc(old.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == lease.UID }) {
		return apierrors.NewConflict(Resource, old.Name, fmt.Errorf("its owner, lease %q (UID %s), exists; if it was restored, restart kube-controller-manager", lease.Name, lease.UID))
	}
	return nil
}

// delete refuses to delete an instance before its virtual machine has stopped.
func (p *planner) delete(old *instance.MacOSInstance) error {
	if !rules.InstanceEnded(old.Status.Phase) {
		return apierrors.NewForbidden(Resource, old.Name, fmt.Errorf("its virtual machine has not stopped, it is %s", old.Status.Phase))
	}
	return nil
}

// reject returns a recorded refusal of an instance.
func (p *planner) reject(new *instance.MacOSInstance, lease *rack.MacNodeLease, reason string, cause error) error {
	return rejection.Forbidden(Resource, new.Name, cause, ledger.NewInstanceRejected(new, lease, rack.LayerRegistry, reason, cause.Error()))
}

// sameLease reports whether two references name the same lease, regardless of the UID: a restored
// instance has a reference to its former lease.
func sameLease(a, b metav1.OwnerReference) bool {
	return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name
}

// LeaseReference returns the owner reference of the instances of a lease.
func LeaseReference(name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion:         rackv1alpha1.SchemeGroupVersion.String(),
		Kind:               "MacNodeLease",
		Name:               name,
		UID:                uid,
		BlockOwnerDeletion: ptr.To(true),
	}
}
