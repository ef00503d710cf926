// Package macnode stores MacNodes.
package macnode

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/rack/validation"
	"macrack.io/macrack/pkg/registry/conditions"
	"macrack.io/macrack/pkg/registry/genericstrategy"
)

// Strategy is the strategy for creating and updating MacNodes.
type Strategy struct {
	genericstrategy.Base
}

// NewStrategy returns the strategy of MacNodes.
func NewStrategy(typer runtime.ObjectTyper) Strategy {
	return Strategy{genericstrategy.NewBase(typer)}
}

// NamespaceScoped is false: a MacNode is cluster-scoped.
func (Strategy) NamespaceScoped() bool { return false }

// GetResetFields returns the status: clients write it only through the subresource.
func (Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return genericstrategy.ResetStatus(v1alpha1.SchemeGroupVersion.String())
}

// PrepareForCreate drops the status: a Mac is Pending until its agent reports.
func (Strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	macNode := obj.(*rack.MacNode)
	genericstrategy.Restore(&macNode.ObjectMeta)
	macNode.Generation = 1
	macNode.Status = rack.MacNodeStatus{Phase: rack.MacNodePending}
}

// PrepareForUpdate keeps the status, and increments the generation if the spec changes.
func (Strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newMacNode, oldMacNode := obj.(*rack.MacNode), old.(*rack.MacNode)
	newMacNode.Status = oldMacNode.Status
	if !equality.Semantic.DeepEqual(newMacNode.Spec, oldMacNode.Spec) {
		newMacNode.Generation = oldMacNode.Generation + 1
	}
}

// Validate returns the errors in a new MacNode.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateMacNode(obj.(*rack.MacNode))
}

// ValidateUpdate returns the errors in a change of a MacNode.
func (Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacNodeUpdate(obj.(*rack.MacNode), old.(*rack.MacNode))
}

// serverFields are the fields of the status that only the server sets.
var serverFields = genericstrategy.NewServerFields[rack.MacNodeStatus](
	"phase",
	"leaseRef",
	"earliestReleaseAt",
	"prefetchImages",
	"caches",
	"releasingSince",
	"runningVMs",
	"ledger",
)

// StatusStrategy is the strategy for updating the status of MacNodes.
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
// server sets. Oversized texts are cut, because a refused report would hide the state of the Mac.
func (StatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newMacNode, oldMacNode := obj.(*rack.MacNode), old.(*rack.MacNode)
	genericstrategy.KeepMetadata(&newMacNode.ObjectMeta, &oldMacNode.ObjectMeta)
	newMacNode.Spec = oldMacNode.Spec
	serverFields.Keep(&newMacNode.Status, &oldMacNode.Status)
	fitReport(&newMacNode.Status)
}

func fitReport(status *rack.MacNodeStatus) {
	conditions.Fit(status.Conditions)
	if status.Quarantine != nil {
		status.Quarantine.Message = genericstrategy.Cut(status.Quarantine.Message, validation.MaxMessage)
	}
	for i := range status.ImageChecks {
		check := &status.ImageChecks[i] // its message repeats what a registry says
		check.Message = genericstrategy.Cut(check.Message, validation.MaxCheckMessage)
	}
	if status.Scrub != nil {
		var entries []*string
		for _, list := range [][]string{status.Scrub.Removed, status.Scrub.Remaining} {
			for i := range list {
				list[i] = genericstrategy.Cut(list[i], validation.MaxScrubEntry)
				entries = append(entries, &list[i])
			}
		}
		genericstrategy.Fit(validation.MaxScrubText, entries...)
	}
}

// ValidateUpdate returns the errors in a change of a MacNode's status.
func (StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacNodeStatusUpdate(obj.(*rack.MacNode), old.(*rack.MacNode))
}

// SelectableFields returns the fields that field selectors of MacNodes can use.
func SelectableFields(macNode *rack.MacNode) fields.Set {
	set := generic.ObjectMetaFieldsSet(&macNode.ObjectMeta, false)
	set["spec.className"] = macNode.Spec.ClassName
	set["spec.serialNumber"] = macNode.Spec.SerialNumber
	set["status.phase"] = string(macNode.Status.Phase)
	return set
}

// GetAttrs returns the labels of a MacNode and the fields that field selectors can use.
var GetAttrs = genericstrategy.Attrs(SelectableFields)
