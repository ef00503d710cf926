package sets

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/machines"
	"macrack.io/macrack/runners/pkg/observe"
)

const (
	// deadlineMargin is the time for which a machine may exceed its age and the timeout of its job.
	// It ends then, also if no macrack-runners runs.
	deadlineMargin = time.Hour
	// keepEnded is the time after which an ended machine is deleted if no macrack-runners runs.
	keepEnded = 24 * time.Hour
	// rejectedPause is the time after which a refused instance is tried again, and instanceRefused
	// the reason until one is created.
	rejectedPause   = 10 * time.Second
	instanceRefused = floor.Reason("InstanceRefused")
)

// assign gives a job to a warm machine of a lease.
func (s *Set) assign(ctx context.Context, o *state, d floor.Decision) {
	for i, m := range o.machines {
		if m.Lease != d.Lease || m.State != machines.Warm {
			continue
		}
		instance := o.instances[i].DeepCopy()
		if err := observe.Assign(instance, d.Job, o.now); err != nil {
			s.failedTo("assign job", err)
			return
		}
		updated, err := s.MacRack.InstanceV1alpha1().MacOSInstances(s.Namespace).Update(ctx, instance, metav1.UpdateOptions{})
		if err != nil {
			s.failedTo("assign job", err)
			return
		}
		s.instances.put(updated, o.now)
		o.instances[i], o.machines[i] = updated, observe.Machine(updated)
		s.Events.Event(updated, corev1.EventTypeNormal, "JobAssigned", d.String())
		return
	}
}

// keepMachines creates and deletes machines on the leases that are kept, and retires those whose
// job has ended or exceeds the timeout.
func (s *Set) keepMachines(ctx context.Context, o *state, kept []string) {
	decisions := machines.Decide(o.now, s.settings(), kept, o.machines)
	if !slices.ContainsFunc(decisions, func(d machines.Decision) bool { return d.Action == machines.Create }) {
		s.rejected = refusal{}
	}
	for _, d := range decisions {
		switch instance := o.instance(d.Machine); {
		case d.Action == machines.Create && o.now.Before(s.failures.until):
		case d.Action == machines.Create:
			s.create(ctx, o, o.lease(d.Lease))
		case d.Reason == machines.Ended:
			s.retire(ctx, instance, "")
		case d.Reason == machines.TimedOut:
			s.retire(ctx, instance, TimedOut)
		default:
			s.replace(ctx, instance, d.Reason)
		}
	}
}

func (s *Set) settings() machines.Settings {
	i := s.config.Instances
	return machines.Settings{
		PerLease: i.PerLease, MaxAge: i.MaxAge.Duration, Timeout: i.Timeout.Duration, BootTimeout: bootTimeout,
	}
}

// newInstance returns a machine of the set.
func (s *Set) newInstance(lease *rackv1alpha1.MacNodeLease) *instancev1alpha1.MacOSInstance {
	instance := &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Name: lease.Name + "-" + utilrand.String(5), Labels: map[string]string{observe.LabelSet: s.config.Name}},
		Spec: instancev1alpha1.MacOSInstanceSpec{
			LeaseName: lease.Name, ClassName: s.config.Instances.ClassName, ImageName: s.config.Instances.ImageName,
			ActiveDeadlineSeconds:   ptr.To(int64((s.config.Instances.MaxAge.Duration + s.config.Instances.Timeout.Duration + deadlineMargin).Seconds())),
			TTLSecondsAfterFinished: ptr.To(int32(keepEnded.Seconds())),
			Caches:                  s.caches(lease),
		},
	}
	s.source.Prepare(instance)
	return instance
}

// caches returns the caches of a machine on a lease. The caches of a lease are immutable, and the
// API refuses an instance with a cache that its lease does not have.
func (s *Set) caches(lease *rackv1alpha1.MacNodeLease) []instancev1alpha1.InstanceCache {
	var caches []instancev1alpha1.InstanceCache
	for _, use := range s.config.Instances.Caches {
		if slices.ContainsFunc(lease.Spec.Caches, func(c rackv1alpha1.LeaseCache) bool { return c.Name == use.Name }) {
			caches = append(caches, use)
		}
	}
	return caches
}

// outdated reports whether the set has other settings now than at the creation of an instance on a
// lease. An instance without its lease is about to end.
func (s *Set) outdated(instance *instancev1alpha1.MacOSInstance, lease *rackv1alpha1.MacNodeLease) bool {
	if lease == nil {
		return false
	}
	has, wants := &instance.Spec, &s.newInstance(lease).Spec
	return has.ClassName != wants.ClassName || has.ImageName != wants.ImageName || has.StartupScript != wants.StartupScript ||
		ptr.Deref(has.ActiveDeadlineSeconds, math.MaxInt64) < *wants.ActiveDeadlineSeconds ||
		!equality.Semantic.DeepEqual(has.Env, wants.Env) || !equality.Semantic.DeepEqual(has.EnvFrom, wants.EnvFrom) ||
		!equality.Semantic.DeepEqual(has.Caches, wants.Caches)
}

// create creates a machine on a lease. A refused one is not repeated at once.
func (s *Set) create(ctx context.Context, o *state, lease *rackv1alpha1.MacNodeLease) {
	if _, message := s.rejected.at(o.now); message != "" {
		return
	}
	created, err := s.MacRack.InstanceV1alpha1().MacOSInstances(s.Namespace).Create(ctx, s.newInstance(lease), metav1.CreateOptions{})
	if refuses(err) {
		s.rejected = refusal{instanceRefused, err.Error(), o.now.Add(rejectedPause)}
		s.Events.Event(lease, corev1.EventTypeWarning, string(instanceRefused), err.Error())
	}
	if err != nil {
		s.failedTo("create instance", err)
		return
	}
	s.rejected = refusal{}
	s.instances.put(created, o.now)
	klog.InfoS("Instance created", "instance", klog.KObj(created), "lease", klog.KObj(lease))
}

// replace deletes a machine without a job. It fails if the machine got a job meanwhile.
func (s *Set) replace(ctx context.Context, instance *instancev1alpha1.MacOSInstance, reason machines.Reason) {
	err := s.MacRack.InstanceV1alpha1().MacOSInstances(s.Namespace).Delete(ctx, instance.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &instance.UID, ResourceVersion: &instance.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		s.failedTo("delete instance", err)
		return
	}
	if reason == machines.GuestSilent {
		s.fail(string(reason))
	}
	s.Events.Event(instance, corev1.EventTypeNormal, string(reason), "the machine is replaced")
	klog.InfoS("Instance replaced", "instance", klog.KObj(instance), "reason", reason)
}

// serve starts the jobs of machines that have one and have not received it.
func (s *Set) serve(ctx context.Context, o *state) {
	for i, m := range o.machines {
		instance := o.instances[i]
		switch {
		case m.State != machines.Busy:
		case observe.Time(instance, observe.AnnotationJobDeliveredAt).IsZero() && o.now.Sub(m.BusySince) > startTimeout:
			s.retire(ctx, instance, NotStarted)
		case observe.Time(instance, observe.AnnotationJobDeliveredAt).IsZero():
			s.start(ctx, instance)
		default:
			if result := s.source.Stale(instance); result != "" {
				s.retire(ctx, instance, result)
			}
		}
	}
	s.forgetAttempts(o)
}

// change applies a change to the newest version of an instance. The change returns false if it is
// no longer needed.
func (s *Set) change(ctx context.Context, instance *instancev1alpha1.MacOSInstance, apply func(*instancev1alpha1.MacOSInstance) bool) error {
	return Change(ctx, s.MacRack.InstanceV1alpha1().MacOSInstances(s.Namespace), instance, apply)
}

// instanceClient is the part of a client that Change needs.
type instanceClient interface {
	Get(context.Context, string, metav1.GetOptions) (*instancev1alpha1.MacOSInstance, error)
	Update(context.Context, *instancev1alpha1.MacOSInstance, metav1.UpdateOptions) (*instancev1alpha1.MacOSInstance, error)
}

// Change applies a change to the newest version of an instance. The change returns false if it is
// no longer needed.
func Change(ctx context.Context, client instanceClient, instance *instancev1alpha1.MacOSInstance, apply func(*instancev1alpha1.MacOSInstance) bool) error {
	return onFresh(func() error {
		fresh, err := client.Get(ctx, instance.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if fresh.UID != instance.UID {
			return fmt.Errorf("instance %q was replaced by another one", instance.Name)
		}
		if !apply(fresh) {
			return nil
		}
		_, err = client.Update(ctx, fresh, metav1.UpdateOptions{})
		return err
	})
}

// conflicts are the retries after conflicts with the agent of a Mac, which writes often while a
// machine boots or stops.
var conflicts = wait.Backoff{Steps: 8, Duration: 20 * time.Millisecond, Factor: 2, Jitter: 0.2}

func onFresh(f func() error) error { return retry.RetryOnConflict(conflicts, f) }

func (o *state) instance(name string) *instancev1alpha1.MacOSInstance {
	for _, instance := range o.instances {
		if instance.Name == name {
			return instance
		}
	}
	return nil
}
