package macnodelease

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/rules"
)

// Storage is the storage of MacNodeLeases and of their subresources.
type Storage struct {
	MacNodeLease *REST
	Status       *genericstore.StatusREST
	Binding      *BindingREST
	Release      *ReleaseREST
}

// REST is the storage of MacNodeLeases.
type REST struct {
	*genericstore.REST
	clock clock.PassiveClock
}

// NewStorage returns the storage of MacNodeLeases. The function defaultClass returns the class of
// leases without a class, or an empty string. The filter hides leases from users.
func NewStorage(options genericstore.Options, defaultClass func(context.Context) string, filter rejection.Filter) (Storage, error) {
	strategy := NewStrategy(options.Typer, defaultClass)
	main, status, err := genericstore.New(genericstore.Kind{
		Resource:   Resource,
		Singular:   "macnodelease",
		ShortNames: []string{"mnl", "leases"},
		Category:   genericstore.Tenants,
		New:        func() runtime.Object { return &rack.MacNodeLease{} },
		NewList:    func() runtime.Object { return &rack.MacNodeLeaseList{} },
		Strategy:   strategy,
		Status:     NewStatusStrategy(strategy),
		Attrs:      GetAttrs,
		Table:      NewTableConvertor(options.Clock),
		Filter:     filter,
		Classify:   classify,
	}, options)
	if err != nil {
		return Storage{}, err
	}
	return Storage{
		MacNodeLease: &REST{main, options.Clock},
		Status:       status,
		Binding:      &BindingREST{genericstore.NewSubresource(main, strategy, options)},
		Release:      &ReleaseREST{genericstore.NewSubresource(main, strategy, options)},
	}, nil
}

// Delete deletes a lease. If the lease becomes Held, the client gets a warning, because kubectl
// would wait for a day.
func (r *REST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	out, gone, err := r.REST.Delete(ctx, name, validate, options)
	if meanwhile := (boundMeanwhile{}); errors.As(err, &meanwhile) { // at most once: a lease is bound only once
		out, gone, err = r.REST.Delete(ctx, name, validate, options)
	}
	if lease, ok := out.(*rack.MacNodeLease); err == nil && ok && r.held(lease, options) {
		floor := floorOf(lease)
		remaining := max(0, floor.Sub(r.clock.Now()))
		warning.AddWarning(ctx, "", fmt.Sprintf("%s: lease %q is Held; you keep the Mac until %s (in %s), then MacRack releases it; for kubectl to return at once, use --wait=false",
			rules.TwentyFourHours, lease.Name, floor.UTC().Format(time.RFC3339), duration.HumanDuration(remaining)))
	}
	return out, gone, err
}

// held reports whether a lease is Held after its deletion. A dry run leaves the lease Bound but
// gives the same warning.
func (r *REST) held(lease *rack.MacNodeLease, options *metav1.DeleteOptions) bool {
	if options != nil && dryrun.IsDryRun(options.DryRun) && lease.Status.Phase == rack.MacNodeLeaseBound {
		return !rules.FloorPassed(r.clock.Now(), floorOf(lease))
	}
	return lease.Status.Phase == rack.MacNodeLeaseHeld
}

// DeleteCollection deletes leases. It retries if one of them was bound in the meantime, which
// happens to a lease at most once.
func (r *REST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *metainternalversion.ListOptions) (runtime.Object, error) {
	for {
		out, err := r.REST.DeleteCollection(ctx, validate, options, list)
		if meanwhile := (boundMeanwhile{}); !errors.As(err, &meanwhile) || ctx.Err() != nil {
			return out, err
		}
	}
}

// floorFields are the fields whose refused changes are attempts to move a floor.
var floorFields = map[string]bool{
	"spec.minimumDuration":     true,
	"status.boundAt":           true,
	"status.earliestReleaseAt": true,
}

// classify is the [rejection.Classifier] of failed validations of a floor. A forbidden shorter
// duration is not recorded, because an older manifest of the lease has it.
func classify(ctx context.Context, store rest.Getter, name string, err error) error {
	var status *apierrors.StatusError
	if name == "" || !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.ErrStatus.Details == nil {
		return err
	}
	for _, cause := range status.ErrStatus.Details.Causes {
		if !floorFields[cause.Field] || cause.Type == metav1.CauseTypeForbidden {
			continue
		}
		obj, getErr := store.Get(ctx, name, &metav1.GetOptions{})
		lease, ok := obj.(*rack.MacNodeLease)
		if getErr != nil || !ok || !bound(lease) {
			return err
		}
		return &rejection.Error{StatusError: status, Record: ledger.NewFloorTamperRejected(lease, "FloorMoved", cause.Field+": "+cause.Message)}
	}
	return err
}
