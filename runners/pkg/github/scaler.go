package github

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/actions/scaleset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/observe"
	"macrack.io/macrack/runners/pkg/sets"
)

// HandleDesiredRunnerCount implements listener.Scaler. The statistics have the number already.
func (s *Source) HandleDesiredRunnerCount(context.Context, int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.jobs, nil
}

// HandleJobStarted implements listener.Scaler. GitHub does not repeat the message, so an error is
// logged and ends no session.
func (s *Source) HandleJobStarted(ctx context.Context, job *scaleset.JobStarted) error {
	if !job.QueueTime.IsZero() && !job.RunnerAssignTime.IsZero() {
		s.Metrics.JobStarted(s.set, job.RunnerAssignTime.Sub(job.QueueTime))
	}
	name := nameOf(&job.JobMessageBase)
	s.note(ctx, job.RunnerName, func(instance *instancev1alpha1.MacOSInstance) bool {
		observe.SetJob(instance, name)
		observe.SetTime(instance, observe.AnnotationJobStartedAt, s.Clock.Now())
		return true
	}, "JobStarted", fmt.Sprintf("job %q started", name))
	return nil
}

// HandleJobCompleted implements listener.Scaler.
func (s *Source) HandleJobCompleted(ctx context.Context, job *scaleset.JobCompleted) error {
	if job.RunnerName == "" {
		return nil // a job that was canceled while it waited
	}
	result := resultOf(job.Result)
	s.mu.Lock()
	s.results[job.RunnerName] = result
	// Those of instances that were deleted by others are not asked for.
	maps.DeleteFunc(s.results, func(runner string, _ sets.Result) bool { return s.instance(runner) == nil })
	s.mu.Unlock()
	s.note(ctx, job.RunnerName, func(instance *instancev1alpha1.MacOSInstance) bool {
		if instance.Annotations[observe.AnnotationJobResult] != "" {
			return false
		}
		// The start could be in a message that was lost.
		observe.SetJob(instance, nameOf(&job.JobMessageBase))
		observe.SetTime(instance, observe.AnnotationJobEndedAt, s.Clock.Now())
		metav1.SetMetaDataAnnotation(&instance.ObjectMeta, observe.AnnotationJobResult, string(result))
		return true
	}, "", "")
	return nil
}

// note changes the instance of a runner, if it exists.
func (s *Source) note(ctx context.Context, runner string, change func(*instancev1alpha1.MacOSInstance) bool, reason, message string) {
	instance := s.instance(runner)
	if instance == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := sets.Change(ctx, s.MacRack.InstanceV1alpha1().MacOSInstances(s.Namespace), instance, change); err != nil {
		s.Metrics.Errors.WithLabelValues(s.set, "note job").Inc()
		klog.ErrorS(err, "Failed to note a job on its instance", "instance", klog.KObj(instance))
		return
	}
	if reason != "" {
		s.Events.Event(instance, "Normal", reason, message)
	}
}

func nameOf(job *scaleset.JobMessageBase) string {
	return fmt.Sprintf("%s/%s/%d/%s", job.OwnerName, job.RepositoryName, job.WorkflowRunID, job.JobDisplayName)
}

func resultOf(text string) sets.Result {
	switch text {
	case "succeeded":
		return sets.Succeeded
	case "canceled", "cancelled":
		return sets.Canceled
	}
	return sets.Failed
}

// recorder takes the number of jobs from the statistics of each message.
type recorder struct{ *Source }

// RecordStatistics implements listener.MetricsRecorder.
func (r recorder) RecordStatistics(statistics *scaleset.RunnerScaleSetStatistic) {
	if statistics == nil {
		return
	}
	r.mu.Lock()
	r.jobs, r.known = statistics.TotalAssignedJobs+statistics.TotalAvailableJobs, true
	changed := r.changed
	r.mu.Unlock()
	changed()
}

// RecordJobStarted implements listener.MetricsRecorder.
func (recorder) RecordJobStarted(*scaleset.JobStarted) {}

// RecordJobCompleted implements listener.MetricsRecorder.
func (recorder) RecordJobCompleted(*scaleset.JobCompleted) {}

// RecordDesiredRunners implements listener.MetricsRecorder.
func (recorder) RecordDesiredRunners(int) {}
