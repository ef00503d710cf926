package restore

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/validation"
	"macrack.io/macrack/pkg/registry/genericstore"
)

// writer is Create or Update of a transaction.
type writer = func(ctx context.Context, resource schema.GroupResource, obj runtime.Object) error

// REST is the subresource restore of MacNodes.
type REST struct{ *Restorer }

var _ rest.NamedCreater = REST{}

// New returns an empty request.
func (REST) New() runtime.Object { return &rack.MacNodeRestore{} }

// Destroy does nothing: the backend is shared.
func (REST) Destroy() {}

// NamespaceScoped is false.
func (REST) NamespaceScoped() bool { return false }

// Create restores the Mac. A dry run returns the plan.
func (r REST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	request := obj.(*rack.MacNodeRestore)
	if err := genericstore.CheckName(&request.ObjectMeta, name); err != nil {
		return nil, err
	}
	if err := validate(ctx, obj.DeepCopyObject()); err != nil {
		return nil, err
	}
	if errs := validation.ValidateMacNodeRestore(request); len(errs) > 0 {
		return nil, apierrors.NewInvalid(rack.Kind("MacNodeRestore"), name, errs)
	}
	done, err := r.Restore(ctx, name, Request{
		WitnessHash: request.WitnessHash, WrongMacs: request.WrongMacs, DryRun: options != nil && dryrun.IsDryRun(options.DryRun),
	})
	if err != nil {
		return nil, err
	}
	return &rack.MacNodeRestore{ObjectMeta: request.ObjectMeta, Steps: done.Steps, WitnessHash: done.WitnessHash}, nil
}
