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
	"macrack.io/macrack/pkg/registry/genericstrategy"
	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/rules"
)

// Strategy is the strategy for creating and updating MacNodeLeases.
type Strategy struct {
	genericstrategy.Base
	// defaultClass returns the class of leases without a class, or an empty string.
	defaultClass func(context.Context) string
}

// NewStrategy returns the strategy of MacNodeLeases. The function defaultClass returns the class of
// leases without a class, or an empty string.
func NewStrategy(typer runtime.ObjectTyper, defaultClass func(context.Context) string) Strategy {
	return Strategy{genericstrategy.NewBase(typer), defaultClass}
}

// NamespaceScoped is true: a MacNodeLease is namespaced.
func (Strategy) NamespaceScoped() bool { return true }

// DefaultGarbageCollectionPolicy is to delete the objects that a MacNodeLease owns.
func (Strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.DeleteDependents
}

// GetResetFields returns the status: clients write it only through the subresource.
func (Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return genericstrategy.ResetStatus(v1alpha1.SchemeGroupVersion.String())
}

// PrepareForCreate drops the status, because a lease is Pending until it is bound, and sets the
// default class.
func (s Strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	macNodeLease := obj.(*rack.MacNodeLease)
	genericstrategy.Restore(&macNodeLease.ObjectMeta, rules.FinalizerFloor)
	macNodeLease.Generation = 1
	if macNodeLease.Spec.ClassName == "" {
		macNodeLease.Spec.ClassName = s.defaultClass(ctx)
	}
	macNodeLease.Status = rack.MacNodeLeaseStatus{Phase: rack.MacNodeLeasePending, RequestedBy: requester(ctx)}
}

// requester returns the user who creates a lease.
func requester(ctx context.Context) *rack.LeaseRequester {
	username, uid := requestuser.User(ctx)
	if username == "" {
		return nil
	}
	return &rack.LeaseRequester{Username: username, UID: uid}
}

// PrepareForUpdate keeps the status and the finalizer, and increments the generation if the spec
// changes.
func (Strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	newMacNodeLease, oldMacNodeLease := obj.(*rack.MacNodeLease), old.(*rack.MacNodeLease)
	newMacNodeLease.Status = oldMacNodeLease.Status
	genericstrategy.KeepFinalizer(ctx, &newMacNodeLease.ObjectMeta, &oldMacNodeLease.ObjectMeta, rules.FinalizerFloor)
	if newMacNodeLease.Spec.ClassName == "" { // the default may have changed since the creation
		newMacNodeLease.Spec.ClassName = oldMacNodeLease.Spec.ClassName
	}
	if !equality.Semantic.DeepEqual(newMacNodeLease.Spec, oldMacNodeLease.Spec) {
		newMacNodeLease.Generation = oldMacNodeLease.Generation + 1
	}
}

// Validate returns the errors in a new MacNodeLease.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateMacNodeLease(obj.(*rack.MacNodeLease))
}

// ValidateUpdate returns the errors in a change of a MacNodeLease.
func (Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacNodeLeaseUpdate(obj.(*rack.MacNodeLease), old.(*rack.MacNodeLease))
}

// WarningsOnUpdate warns of a longer floor of a deleted lease, because it cannot be shortened
// again.
func (Strategy) WarningsOnUpdate(_ context.Context, obj, old runtime.Object) []string {
	newMacNodeLease, oldMacNodeLease := obj.(*rack.MacNodeLease), old.(*rack.MacNodeLease)
	before, after := floorOf(oldMacNodeLease), floorOf(newMacNodeLease)
	if oldMacNodeLease.Status.Phase != rack.MacNodeLeaseHeld || !after.After(before) {
		return nil
	}
	return []string{fmt.Sprintf("%s: lease %q is Held; the Mac remains leased and billed until %s instead of %s; this cannot be undone",
		rules.TwentyFourHours, oldMacNodeLease.Name, after.UTC().Format(time.RFC3339), before.UTC().Format(time.RFC3339))}
}

// serverFields are the fields of the status that only the server sets.
var serverFields = genericstrategy.NewServerFields[rack.MacNodeLeaseStatus](
	"heldAt",
	"releasedAt",
	"nodeName",
	"serialNumber",
	"instances",
	"namespaceUID",
	"requestedBy",
)

// StatusStrategy is the strategy for updating the status of MacNodeLeases.
type StatusStrategy struct {
	Strategy
}

// NewStatusStrategy returns the strategy of the subresource status.
func NewStatusStrategy(strategy Strategy) StatusStrategy {
	return StatusStrategy{strategy}
}

// GetResetFields returns all fields but the status, and the fields of the status that only the
// server sets.
func (StatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return serverFields.ResetFields(v1alpha1.SchemeGroupVersion.String())
}

// PrepareForUpdate keeps all fields but the status, and the fields of the status that only the
// server sets.
func (StatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newMacNodeLease, oldMacNodeLease := obj.(*rack.MacNodeLease), old.(*rack.MacNodeLease)
	genericstrategy.KeepMetadata(&newMacNodeLease.ObjectMeta, &oldMacNodeLease.ObjectMeta)
	newMacNodeLease.Spec = oldMacNodeLease.Spec
	serverFields.Keep(&newMacNodeLease.Status, &oldMacNodeLease.Status)
	conditions.Fit(newMacNodeLease.Status.Conditions)
}

// ValidateUpdate returns the errors in a change of a MacNodeLease's status.
func (StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacNodeLeaseStatusUpdate(obj.(*rack.MacNodeLease), old.(*rack.MacNodeLease))
}

// SelectableFields returns the fields that field selectors of MacNodeLeases can use.
func SelectableFields(macNodeLease *rack.MacNodeLease) fields.Set {
	set := generic.ObjectMetaFieldsSet(&macNodeLease.ObjectMeta, true)
	set["spec.className"] = macNodeLease.Spec.ClassName
	set["status.phase"] = string(macNodeLease.Status.Phase)
	set["status.nodeName"] = macNodeLease.Status.NodeName
	set["status.serialNumber"] = macNodeLease.Status.SerialNumber
	set["status.namespaceUID"] = string(macNodeLease.Status.NamespaceUID)
	return set
}

// GetAttrs returns the labels of a MacNodeLease and the fields that field selectors can use.
var GetAttrs = genericstrategy.Attrs(SelectableFields)
