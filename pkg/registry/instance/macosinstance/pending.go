package macosinstance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/genericstore"
)

const (
	// bindingWait is how long a request waits for a lease that is about to be bound.
	bindingWait = 2 * time.Second
	// retryAfter is after how many seconds a client tries again.
	retryAfter = 1

	// maxWaiting bounds the requests that wait, of all namespaces and of one, as each takes a seat
	// of priority and fairness.
	maxWaiting             = 32
	maxWaitingOfANamespace = 8
)

// Leases are what instances read of leases.
type Leases interface {
	rest.Getter
	rest.Watcher
}

// REST is the storage of MacOSInstances. It holds an instance on a lease that is about to be bound
// until the lease is.
type REST struct {
	*genericstore.REST
	clock  clock.Clock
	leases Leases
	nodes  rest.Lister

	mu      sync.Mutex
	waiting map[string]int // by namespace
	all     int
}

// Create creates an instance, after its lease has got a free Mac.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	ctx = withAssumedBinding(ctx)
	if err := r.await(ctx, obj, dryrun.IsDryRun(options.DryRun)); err != nil {
		return nil, err
	}
	return r.REST.Create(ctx, obj, validate, options)
}

// Update updates an instance. Server-side apply can create an instance through Update; it then
// waits like Create.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, validateCreate rest.ValidateObjectFunc, validateUpdate rest.ValidateObjectUpdateFunc,
	forceAllowCreate bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	ctx = withAssumedBinding(ctx)
	awaited := func(ctx context.Context, obj runtime.Object) error {
		if err := r.await(ctx, obj, dryrun.IsDryRun(options.DryRun)); err != nil {
			return err
		}
		return validateCreate(ctx, obj)
	}
	return r.REST.Update(ctx, name, info, awaited, validateUpdate, forceAllowCreate, options)
}

// await returns when a new instance can be created or refused. If its lease is Pending and a Mac
// for it is free, it waits for the binding. After that it returns an error that makes clients try
// again.
func (r *REST) await(ctx context.Context, obj runtime.Object, dry bool) error {
	i, ok := obj.(*instance.MacOSInstance)
	if !ok {
		return fmt.Errorf("a %T is not an instance", obj)
	}
	lease, err := r.lease(ctx, i.Spec.LeaseName)
	if err != nil {
		return err
	}
	if lease == nil && dry {
		warning.AddWarning(ctx, "", fmt.Sprintf("lease %q not found; the instance was checked without it (a dry run does not create a lease from the same file)", i.Spec.LeaseName))
		assumeBound(ctx)
	}
	if lease == nil || !isPending(lease) {
		return nil
	}
	free, err := r.isMacFree(ctx, lease)
	switch {
	case err != nil:
		return err
	case free && dry:
		assumeBound(ctx)
	case free:
		return r.wait(ctx, lease)
	}
	return nil
}

type assumeBoundKey struct{}

// withAssumedBinding returns the context of a request that can turn out to be a dry run on a lease
// that would be Bound by the time of the real run.
func withAssumedBinding(ctx context.Context) context.Context {
	return context.WithValue(ctx, assumeBoundKey{}, new(bool))
}

// assumeBound marks a request as such a dry run.
func assumeBound(ctx context.Context) {
	if assumed, ok := ctx.Value(assumeBoundKey{}).(*bool); ok {
		*assumed = true
	}
}

func assumesBound(ctx context.Context) bool {
	assumed, ok := ctx.Value(assumeBoundKey{}).(*bool)
	return ok && *assumed
}

func isPending(lease *rack.MacNodeLease) bool {
	return (lease.Status.Phase == rack.MacNodeLeasePending || lease.Status.Phase == "") && lease.DeletionTimestamp == nil
}

// lease returns a lease of the request's namespace, or nil if it does not exist. A lease that is
// not Pending may be slightly stale.
func (r *REST) lease(ctx context.Context, name string) (*rack.MacNodeLease, error) {
	if name == "" || len(content.IsPathSegmentName(name)) > 0 {
		return nil, nil // Validation names the field.
	}
	for _, version := range []string{"0", ""} {
		obj, err := r.leases.Get(ctx, name, &metav1.GetOptions{ResourceVersion: version})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		lease, ok := obj.(*rack.MacNodeLease)
		if err == nil && ok && (version == "" || !isPending(lease)) {
			return lease, nil
		}
	}
	return nil, nil
}

// isMacFree reports whether a Mac that a lease can be bound to is free.
func (r *REST) isMacFree(ctx context.Context, lease *rack.MacNodeLease) (bool, error) {
	selector := fields.Set{"status.phase": string(rack.MacNodeAvailable), "spec.className": lease.Spec.ClassName}
	if lease.Spec.SerialNumber != "" {
		selector["spec.serialNumber"] = lease.Spec.SerialNumber
	}
	macs, err := r.nodes.List(genericapirequest.WithNamespace(ctx, ""), &metainternalversion.ListOptions{FieldSelector: fields.SelectorFromSet(selector)})
	if err != nil {
		return false, err
	}
	list, ok := macs.(*rack.MacNodeList)
	if !ok {
		return false, fmt.Errorf("a %T is not a list of Macs", macs)
	}
	// Until the controllers notice, the phase of a Mac that is being deleted or has just been
	// leased is Available.
	return slices.ContainsFunc(list.Items, func(mac rack.MacNode) bool { return mac.DeletionTimestamp == nil && mac.Status.LeaseRef == nil }), nil
}

// wait returns when a lease is no longer Pending, or when no Mac for it is free any more. It
// returns an error that makes clients try again if the lease is Pending for longer than a request
// waits, or too many requests wait.
func (r *REST) wait(ctx context.Context, lease *rack.MacNodeLease) error {
	again := apierrors.NewTooManyRequests(fmt.Sprintf("lease %q is Pending and is about to get its Mac; try again", lease.Name), retryAfter)
	if !r.enter(lease.Namespace) {
		return again
	}
	defer r.leave(lease.Namespace)
	timer := r.clock.NewTimer(bindingWait)
	defer timer.Stop()
	changes, err := r.leases.Watch(withRequestedName(ctx, lease.Name), &metainternalversion.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", lease.Name), ResourceVersion: lease.ResourceVersion,
	})
	if err != nil {
		return again
	}
	defer changes.Stop()
	events := changes.ResultChan()
	for {
		select {
		case event, open := <-events:
			if !open {
				events = nil
				continue
			}
			object := event.Object
			if cached, ok := object.(runtime.CacheableObject); ok { // shared with other watchers
				object = cached.GetObject()
			}
			changed, ok := object.(*rack.MacNodeLease)
			if ok && (event.Type == watch.Deleted || !isPending(changed)) {
				return nil
			}
		case <-timer.C():
			if free, err := r.isMacFree(ctx, lease); err == nil && !free {
				return nil // refused, on record
			}
			return again
		case <-ctx.Done():
			return again
		}
	}
}

// withRequestedName returns the context of a request with another name of the object that it is
// about: the watch cache sends only the events of that object, and the name in a patch is that of
// the instance.
func withRequestedName(ctx context.Context, name string) context.Context {
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	if !ok {
		return ctx
	}
	named := *info
	named.Name = name
	return genericapirequest.WithRequestInfo(ctx, &named)
}

// enter takes one of the places of requests that wait, if there is one.
func (r *REST) enter(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all >= maxWaiting || r.waiting[namespace] >= maxWaitingOfANamespace {
		return false
	}
	r.all++
	r.waiting[namespace]++
	return true
}

func (r *REST) leave(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all--
	if r.waiting[namespace]--; r.waiting[namespace] == 0 {
		delete(r.waiting, namespace)
	}
}
