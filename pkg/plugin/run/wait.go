package run

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/plugin/guest"
	"macrack.io/macrack/pkg/rules"
)

// waitForLease waits until a lease has a Mac that is ready.
func (r *runner) waitForLease(ctx context.Context, lease *rackv1alpha1.MacNodeLease) error {
	client := r.clients.MacRack.RackV1alpha1().MacNodeLeases(lease.Namespace)
	last := ""
	return wait(ctx, r.clients.MacRack, lease.Name, &rackv1alpha1.MacNodeLease{},
		func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, opts)
		},
		client.Watch,
		func(l *rackv1alpha1.MacNodeLease) (bool, error) {
			if l.UID != lease.UID || l.DeletionTimestamp != nil {
				return false, fmt.Errorf("lease %q was deleted while it waited for a Mac", lease.Name)
			}
			if meta.IsStatusConditionTrue(l.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionReady) {
				r.progress("Lease %s has Mac %s", l.Name, l.Status.SerialNumber)
				return true, nil
			}
			c := meta.FindStatusCondition(l.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionStalled)
			if c != nil && c.Status == metav1.ConditionTrue {
				return false, fmt.Errorf("lease %q gets no Mac: %s: %s", l.Name, c.Reason, c.Message)
			}
			if c = meta.FindStatusCondition(l.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionBound); c != nil {
				r.once(&last, fmt.Sprintf("Waiting for a Mac: %s", c.Message))
			}
			return false, nil
		})
}

// waitForInstance waits until an instance answers, and returns its pod.
func (r *runner) waitForInstance(ctx context.Context, i *instancev1alpha1.MacOSInstance) (pod guest.Pod, err error) {
	client := r.clients.MacRack.InstanceV1alpha1().MacOSInstances(i.Namespace)
	began, last := r.env.Clock.Now(), ""
	err = wait(ctx, r.clients.MacRack, i.Name, &instancev1alpha1.MacOSInstance{},
		func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, opts)
		},
		client.Watch,
		func(current *instancev1alpha1.MacOSInstance) (bool, error) {
			switch {
			case current.UID != i.UID || current.DeletionTimestamp != nil:
				return false, fmt.Errorf("instance %q was deleted", i.Name)
			case rules.InstanceEnded(current.Status.Phase):
				return false, fmt.Errorf("instance %q ended before the command ran: %s", i.Name, current.Status.Message)
			case meta.IsStatusConditionTrue(current.Status.Conditions, instancev1alpha1.MacOSInstanceReady):
				r.progress("Instance %s is ready after %s", i.Name, r.env.Clock.Since(began).Round(time.Second))
				pod, err = guest.PodOf(current)
				return err == nil, err
			}
			r.once(&last, describe(current))
			return false, nil
		})
	return pod, err
}

// describe returns the phase of an instance that is not ready, and what it waits for.
func describe(i *instancev1alpha1.MacOSInstance) string {
	text := string(i.Status.Phase)
	if text == "" {
		text = string(instancev1alpha1.MacOSInstancePending)
	}
	for _, name := range []string{
		instancev1alpha1.MacOSInstanceMacReady, instancev1alpha1.MacOSInstanceScheduledCondition,
		instancev1alpha1.MacOSInstanceImageReady, instancev1alpha1.MacOSInstanceGuestReady,
	} {
		if c := meta.FindStatusCondition(i.Status.Conditions, name); c != nil && c.Status != metav1.ConditionTrue && c.Message != "" {
			return text + ": " + c.Message
		}
	}
	return text
}

// once prints progress that differs from the last one.
func (r *runner) once(last *string, text string) {
	if text != *last {
		*last = text
		r.progress("%s", text)
	}
}

// wait watches an object until done returns true or an error. It continues over interruptions of
// the watch. A deletion is an error.
func wait[T runtime.Object](ctx context.Context, clients versioned.Interface, name string, objType T,
	list func(context.Context, metav1.ListOptions) (runtime.Object, error),
	watcher func(context.Context, metav1.ListOptions) (watch.Interface, error),
	done func(T) (bool, error),
) error {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.FieldSelector = selector
			return list(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.FieldSelector = selector
			return watcher(ctx, opts)
		},
	}
	_, err := watchtools.UntilWithSync(ctx, cache.ToListWatcherWithWatchListSemantics(lw, clients), objType, nil, func(event watch.Event) (bool, error) {
		obj, ok := event.Object.(T)
		if !ok {
			return false, nil
		}
		if m, err := meta.Accessor(obj); err != nil || m.GetName() != name {
			return false, err
		}
		if event.Type == watch.Deleted {
			return false, fmt.Errorf("%q was deleted", name)
		}
		return done(obj)
	})
	return err
}
