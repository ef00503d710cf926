// Package sets keeps the leases and the virtual machines of each set of runners, and gives jobs to
// the machines. All state is in labels and annotations of leases and instances: a process that
// replaces another one continues from there.
package sets

import (
	"context"
	"errors"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// Source is where the jobs of a set come from. Its methods can be called concurrently.
type Source interface {
	// Run receives jobs until ctx ends. It calls changed whenever Waiting may return another
	// result.
	Run(ctx context.Context, changed func())
	// Waiting returns the names of the jobs that need a machine, oldest first. The result known is
	// false until the source has learned which jobs wait.
	Waiting(capacity Capacity) (jobs []string, known bool)
	// Prepare completes an instance before its creation.
	Prepare(instance *instancev1alpha1.MacOSInstance)
	// Start hands the job over to the guest of an instance. It is repeated until it succeeds, also
	// by other processes, and must start a job once.
	Start(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error
	// Stale returns NotStarted or NotNeeded for a job that was handed over and will not start;
	// otherwise "".
	Stale(instance *instancev1alpha1.MacOSInstance) Result
	// Result returns the result of the job of an instance that has ended, or "" if the source will
	// know it soon.
	Result(instance *instancev1alpha1.MacOSInstance) Result
	// Forget removes the traces of an instance at the source, before its deletion. It returns
	// ErrRunning if a job runs on the instance.
	Forget(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error
}

// Capacity is what a set has for jobs.
type Capacity struct {
	// Busy are the instances with a job.
	Busy []*instancev1alpha1.MacOSInstance
	// Unreported is the number of machines whose job has ended without a result. The source may
	// count these jobs until it learns of their end.
	Unreported int
	// Ready is the number of booted machines without a job.
	Ready int
	// Slots is the number of machines that the set can have at the same time.
	Slots int
}

// Result is the result of a job.
type Result string

const (
	// Succeeded means that the job succeeded.
	Succeeded Result = "Succeeded"
	// Failed means that the job failed.
	Failed Result = "Failed"
	// Canceled means that a user canceled the job.
	Canceled Result = "Canceled"
	// TimedOut means that the job exceeded the timeout of the set.
	TimedOut Result = "TimedOut"
	// Lost means that the machine ended before the job did.
	Lost Result = "Lost"
	// NotStarted means that the machine did not start the job. The job can run on another machine.
	NotStarted Result = "NotStarted"
	// NotNeeded means that there was no job for the machine anymore.
	NotNeeded Result = "NotNeeded"
)

var (
	// ErrWait is returned by Start while the guest is not ready for the job yet.
	ErrWait = errors.New("the guest is not ready for the job yet")
	// ErrRunning is returned by Forget while a job runs on the instance.
	ErrRunning = errors.New("a job runs on the instance")
)

// None is the source of a set that was removed from the configuration. Its leases end by the floor
// rule.
type None struct{}

// Run waits for the end of ctx.
func (None) Run(ctx context.Context, _ func()) { <-ctx.Done() }

// Waiting returns no jobs.
func (None) Waiting(Capacity) ([]string, bool) { return nil, true }

// Prepare changes nothing.
func (None) Prepare(*instancev1alpha1.MacOSInstance) {}

// Start fails, so that the machine is replaced.
func (None) Start(context.Context, *instancev1alpha1.MacOSInstance) error {
	return errors.New("the set was removed from the configuration")
}

// Stale returns "".
func (None) Stale(*instancev1alpha1.MacOSInstance) Result { return "" }

// Result returns the result of the startup script.
func (None) Result(instance *instancev1alpha1.MacOSInstance) Result { return ScriptResult(instance) }

// Forget does nothing.
func (None) Forget(context.Context, *instancev1alpha1.MacOSInstance) error { return nil }

// ScriptResult returns the result of the startup script of an instance that has ended.
func ScriptResult(instance *instancev1alpha1.MacOSInstance) Result {
	switch startup := instance.Status.Startup; {
	case startup == nil:
		return Lost
	case startup.ExitCode == 0:
		return Succeeded
	}
	return Failed
}
