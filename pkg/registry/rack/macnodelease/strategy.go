// Package macnodelease stores MacNodeLeases.
package macnodelease

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/rack/validation"
	"macrack.io/macrack/pkg/registry/conditions"
	"macrack.io/macrack/pkg/registry/identity"
	"macrack.io/macrack/pkg/registry/strategies"
	"macrack.io/macrack/pkg/rules"
)

// Strategy says what of a MacNodeLease a client may write.
type Strategy struct {
	strategies.Base
	// defaultClass returns the class of leases that name none, or an empty string.
	defaultClass func(context.Context) string
}

// NewStrategy returns the strategy of MacNodeLeases. The function defaultClass returns the class of leases that
// name none, or an empty string.
func NewStrategy(typer runtime.ObjectTyper, defaultClass func(context.Context) string) Strategy {
	return Strategy{strategies.NewBase(typer), defaultClass}
}

// NamespaceScoped is true: a MacNodeLease is in a namespace.
func (Strategy) NamespaceScoped() bool { return true }

// DefaultGarbageCollectionPolicy is to delete what a MacNodeLease owns.
func (Strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.DeleteDependents
}

// GetResetFields says that clients cannot write the status here.
func (Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return strategies.ResetFields(v1alpha1.SchemeGroupVersion.String(), strategies.Path("status"))
}

// PrepareForCreate drops the status, as a lease is Pending until it is bound, and fills in the default class.
func (s Strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	macNodeLease := obj.(*rack.MacNodeLease)
	strategies.Restore(&macNodeLease.ObjectMeta, rules.FinalizerFloor)
	macNodeLease.Generation = 1
	if macNodeLease.Spec.ClassName == "" {
		macNodeLease.Spec.ClassName = s.defaultClass(ctx)
	}
	macNodeLease.Status = rack.MacNodeLeaseStatus{Phase: rack.MacNodeLeasePending, RequestedBy: requester(ctx)}
}

// requester returns the user who creates a lease.
func requester(ctx context.Context) *rack.LeaseRequester {
	username, uid := identity.User(ctx)
	if username == "" {
		return nil
	}
	return &rack.LeaseRequester{Username: username, UID: uid}
}

// PrepareForUpdate keeps the status and the finalizer, and counts the generations of the spec.
func (Strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	newMacNodeLease, oldMacNodeLease := obj.(*rack.MacNodeLease), old.(*rack.MacNodeLease)
	newMacNodeLease.Status = oldMacNodeLease.Status
	strategies.KeepFinalizer(ctx, &newMacNodeLease.ObjectMeta, &oldMacNodeLease.ObjectMeta, rules.FinalizerFloor)
	if newMacNodeLease.Spec.ClassName == "" { // the default when it was created may not be the default now
		newMacNodeLease.Spec.ClassName = oldMacNodeLease.Spec.ClassName
	}
	if !equality.Semantic.DeepEqual(newMacNodeLease.Spec, oldMacNodeLease.Spec) {
		newMacNodeLease.Generation = oldMacNodeLease.Generation + 1
	}
}

// Validate says what is wrong with a new MacNodeLease.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateMacNodeLease(obj.(*rack.MacNodeLease))
}

// ValidateUpdate says what is wrong with a change of a MacNodeLease.
func (Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacNodeLeaseUpdate(obj.(*rack.MacNodeLease), old.(*rack.MacNodeLease))
}

// WarningsOnUpdate warns of a longer floor of a lease that was deleted: nothing but time ends it.
func (Strategy) WarningsOnUpdate(_ context.Context, obj, old runtime.Object) []string {
	newMacNodeLease, oldMacNodeLease := obj.(*rack.MacNodeLease), old.(*rack.MacNodeLease)
	before, after := floorOf(oldMacNodeLease), floorOf(newMacNodeLease)
	if oldMacNodeLease.Status.Phase != rack.MacNodeLeaseHeld || !after.After(before) {
		return nil
	}
	return []string{fmt.Sprintf("%s: lease %q is Held; its Mac stays yours, and is billed, until %s instead of %s, and this cannot be taken back",
		rules.TwentyFourHours, oldMacNodeLease.Name, after.UTC().Format(time.RFC3339), before.UTC().Format(time.RFC3339))}
}

// StatusStrategy says what of a MacNodeLease's status a client may write.
type StatusStrategy struct {
	Strategy
}

// NewStatusStrategy returns the strategy of the subresource status.
func NewStatusStrategy(strategy Strategy) StatusStrategy {
	return StatusStrategy{strategy}
}

// GetResetFields says that clients cannot write anything but the status here, nor what the server keeps in it.
func (StatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return strategies.ResetFields(v1alpha1.SchemeGroupVersion.String(),
		strategies.Path("metadata"),
		strategies.Path("spec"),
		strategies.Path("status", "heldAt"),
		strategies.Path("status", "releasedAt"),
		strategies.Path("status", "nodeName"),
		strategies.Path("status", "serialNumber"),
		strategies.Path("status", "instances"),
		strategies.Path("status", "namespaceUID"),
		strategies.Path("status", "requestedBy"),
	)
}

// PrepareForUpdate keeps everything but the status, and what the server keeps in it.
func (StatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newMacNodeLease, oldMacNodeLease := obj.(*rack.MacNodeLease), old.(*rack.MacNodeLease)
	strategies.KeepMetadata(&newMacNodeLease.ObjectMeta, &oldMacNodeLease.ObjectMeta)
	newMacNodeLease.Spec = oldMacNodeLease.Spec
	newMacNodeLease.Status.HeldAt = oldMacNodeLease.Status.HeldAt
	newMacNodeLease.Status.ReleasedAt = oldMacNodeLease.Status.ReleasedAt
	newMacNodeLease.Status.NodeName = oldMacNodeLease.Status.NodeName
	newMacNodeLease.Status.SerialNumber = oldMacNodeLease.Status.SerialNumber
	newMacNodeLease.Status.Instances = oldMacNodeLease.Status.Instances
	newMacNodeLease.Status.NamespaceUID = oldMacNodeLease.Status.NamespaceUID
	newMacNodeLease.Status.RequestedBy = oldMacNodeLease.Status.RequestedBy
	conditions.Fit(newMacNodeLease.Status.Conditions)
}

// ValidateUpdate says what is wrong with a change of a MacNodeLease's status.
func (StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacNodeLeaseStatusUpdate(obj.(*rack.MacNodeLease), old.(*rack.MacNodeLease))
}

// SelectableFields returns the fields by which MacNodeLeases can be selected.
func SelectableFields(macNodeLease *rack.MacNodeLease) fields.Set {
	set := generic.ObjectMetaFieldsSet(&macNodeLease.ObjectMeta, true)
	set["spec.className"] = macNodeLease.Spec.ClassName
	set["status.phase"] = string(macNodeLease.Status.Phase)
	set["status.nodeName"] = macNodeLease.Status.NodeName
	set["status.serialNumber"] = macNodeLease.Status.SerialNumber
	set["status.namespaceUID"] = string(macNodeLease.Status.NamespaceUID)
	return set
}

// GetAttrs returns the labels and the fields by which a MacNodeLease can be selected.
var GetAttrs = strategies.Attrs(SelectableFields)
