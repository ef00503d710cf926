package sets

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/observe"
)

// earlyEnd is the time within which a script that fails delays the next machines.
const earlyEnd = 2 * time.Minute

// attempt is the memory of the work on one instance in the background. A restart forgets it and
// tries again.
type attempt struct {
	running bool
	count   int
	next    time.Time
}

// inBackground runs work on an instance, one at a time, and later after each failure.
func (s *Set) inBackground(ctx context.Context, instance *instancev1alpha1.MacOSInstance, action string, work func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.attempts[instance.UID]
	if a == nil {
		a = &attempt{}
		s.attempts[instance.UID] = a
	}
	if a.running || s.Clock.Now().Before(a.next) {
		return
	}
	a.running = true
	s.background.Go(func() {
		// Work that has begun ends, also if the process is stopped.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		err := work(ctx)
		s.mu.Lock()
		a.running = false
		if err == nil {
			a.count, a.next = 0, time.Time{}
		} else {
			a.count++
			a.next = s.Clock.Now().Add(min(500*time.Millisecond<<min(a.count, 10), 30*time.Second))
		}
		s.mu.Unlock()
		if err != nil && !errors.Is(err, ErrWait) {
			s.failedTo(action, fmt.Errorf("instance %q: %w", instance.Name, err))
		}
		s.Wake()
	})
}

// forgetAttempts forgets the work on instances that are gone.
func (s *Set) forgetAttempts(o *state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, a := range s.attempts {
		found := a.running
		for _, instance := range o.instances {
			found = found || instance.UID == uid
		}
		if !found {
			delete(s.attempts, uid)
		}
	}
}

func (s *Set) fail(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = append(s.failed, reason)
}

// succeed notes that machines work.
func (s *Set) succeed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.succeeded = true
}

// start hands its job over to a machine.
func (s *Set) start(ctx context.Context, instance *instancev1alpha1.MacOSInstance) {
	s.inBackground(ctx, instance, "start job", func(ctx context.Context) error {
		if err := s.source.Start(ctx, instance); err != nil {
			if !errors.Is(err, ErrWait) {
				s.Events.Event(instance, corev1.EventTypeWarning, "JobNotStarted", err.Error())
			}
			return err
		}
		return s.change(ctx, instance, func(fresh *instancev1alpha1.MacOSInstance) bool {
			if _, delivered := fresh.Annotations[observe.AnnotationJobDeliveredAt]; delivered {
				return false
			}
			observe.SetTime(fresh, observe.AnnotationJobDeliveredAt, s.Clock.Now())
			return true
		})
	})
}

// retire ends the job of a machine, and deletes the machine. Each step is repeated until it
// succeeds. An empty result is that of the source.
func (s *Set) retire(ctx context.Context, instance *instancev1alpha1.MacOSInstance, result Result) {
	s.inBackground(ctx, instance, "retire instance", func(ctx context.Context) error {
		// A job that has not started could start at any time, unless its source has forgotten the
		// instance.
		if result == NotStarted || result == NotNeeded {
			err := s.source.Forget(ctx, instance)
			if errors.Is(err, ErrRunning) {
				return s.markStarted(ctx, instance)
			}
			if err != nil {
				return err
			}
		}
		ended, err := s.markEnded(ctx, instance, result)
		if err != nil || ended.DeletionTimestamp != nil {
			return ignoreNotFound(err)
		}
		_, hadJob := ended.Annotations[observe.AnnotationJob]
		if hadJob {
			if err := s.close(ctx, ended); err != nil {
				return err
			}
		}
		err = s.MacRack.InstanceV1alpha1().MacOSInstances(s.Namespace).Delete(ctx, instance.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &instance.UID},
		})
		if err != nil {
			return ignoreNotFound(err)
		}
		s.finished(ended, hadJob)
		return nil
	})
}

// markStarted notes on an instance that its job runs. The source has not reported the start.
func (s *Set) markStarted(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	return s.change(ctx, instance, func(fresh *instancev1alpha1.MacOSInstance) bool {
		observe.SetTime(fresh, observe.AnnotationJobStartedAt, s.Clock.Now())
		return true
	})
}

// close notes the end of the job on the lease, and makes the source forget the instance.
func (s *Set) close(ctx context.Context, ended *instancev1alpha1.MacOSInstance) error {
	endedAt := observe.Time(ended, observe.AnnotationJobEndedAt)
	if ended.Annotations[observe.AnnotationJobResult] == "" {
		return ErrWait
	}
	if now := s.Clock.Now(); endedAt.After(now) {
		endedAt = now // the clock of the source is fast
	}
	if err := ignoreNotFound(s.jobEnded(ctx, ended.Spec.LeaseName, endedAt)); err != nil {
		return err
	}
	err := s.source.Forget(ctx, ended)
	if err == nil || errors.Is(err, ErrRunning) {
		return nil
	}
	if s.Clock.Since(endedAt) < forgetTimeout {
		return err
	}
	s.Events.Event(ended, corev1.EventTypeWarning, "NotForgotten", fmt.Sprintf("the instance is deleted although its source did not forget it: %v", err))
	return nil
}

// markEnded notes on an instance that its job has ended, and returns its newest version.
func (s *Set) markEnded(ctx context.Context, instance *instancev1alpha1.MacOSInstance, result Result) (*instancev1alpha1.MacOSInstance, error) {
	var newest *instancev1alpha1.MacOSInstance
	err := s.change(ctx, instance, func(fresh *instancev1alpha1.MacOSInstance) bool {
		newest = fresh
		_, hasJob := fresh.Annotations[observe.AnnotationJob]
		if !hasJob || fresh.Annotations[observe.AnnotationJobResult] != "" {
			return false
		}
		changed := false
		if observe.Time(fresh, observe.AnnotationJobEndedAt).IsZero() {
			observe.SetTime(fresh, observe.AnnotationJobEndedAt, s.Clock.Now())
			changed = true
		}
		result := result
		if result == "" {
			result = s.source.Result(fresh)
		}
		if result == "" && s.Clock.Since(observe.Time(fresh, observe.AnnotationJobEndedAt)) >= resultTimeout {
			result = unreported(fresh)
		}
		if result != "" {
			metav1.SetMetaDataAnnotation(&fresh.ObjectMeta, observe.AnnotationJobResult, string(result))
			changed = true
		}
		return changed
	})
	return newest, err
}

// unreported returns the result of a job whose source knows none. A runner with a wrong
// configuration can end without an error.
func unreported(instance *instancev1alpha1.MacOSInstance) Result {
	if observe.Time(instance, observe.AnnotationJobStartedAt).IsZero() {
		return NotStarted
	}
	return Lost
}

// finished counts a machine that was deleted.
func (s *Set) finished(instance *instancev1alpha1.MacOSInstance, hadJob bool) {
	result := Result(instance.Annotations[observe.AnnotationJobResult])
	if !hadJob && s.steady() && instance.Status.Startup != nil {
		// The script has ended before the set could note its start.
		result, hadJob = ScriptResult(instance), true
	}
	if !hadJob {
		if instance.Status.StopRequest != nil {
			return // such as with its lease
		}
		s.fail("MachineFailed")
		s.Events.Event(instance, corev1.EventTypeWarning, "MachineFailed", "the machine ended before it had a job: "+instance.Status.Message)
		return
	}
	switch {
	case result == NotStarted:
		s.fail(string(result))
	case s.steady() && endedEarly(instance, result):
		s.fail("ScriptFailed")
		s.Events.Event(instance, corev1.EventTypeWarning, "ScriptFailed", "the script failed within "+earlyEnd.String()+" of its start")
	case result != Lost && result != NotNeeded:
		s.succeed()
	}
	s.Metrics.JobFinished(s.config.Name, string(result))
	s.Events.Event(instance, corev1.EventTypeNormal, "JobEnded", fmt.Sprintf("job %q: %s", instance.Annotations[observe.AnnotationJob], result))
	klog.InfoS("Job ended", "set", s.config.Name, "instance", klog.KObj(instance), "job", instance.Annotations[observe.AnnotationJob], "result", result)
}

// endedEarly reports whether a script failed soon after its start, as with a wrong token. Machines
// for it would boot for ever.
func endedEarly(instance *instancev1alpha1.MacOSInstance, result Result) bool {
	ran := observe.Time(instance, observe.AnnotationJobEndedAt).Sub(observe.Time(instance, observe.AnnotationJobAssignedAt))
	return result != Succeeded && ran < earlyEnd
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
