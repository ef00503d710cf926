package gitlab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	instanceclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/guest"
	"macrack.io/macrack/runners/pkg/machines"
	"macrack.io/macrack/runners/pkg/observe"
	"macrack.io/macrack/runners/pkg/sets"
)

const (
	// poll is the interval at which a job looks for its machine.
	poll = 500 * time.Millisecond
	// outage is the time for which the API server may fail during a stage.
	outage = 2 * time.Minute
)

// Executor runs the stages of one job.
type Executor struct {
	// Set is the name of the set.
	Set string
	// BuildsDir and CacheDir are absolute paths in the virtual machine.
	BuildsDir, CacheDir string
	// Version is the version of this program.
	Version string
	// Instances and Leases are the clients of the namespace of the set.
	Instances instanceclient.MacOSInstanceInterface
	Leases    coordinationv1client.LeaseInterface
	// Guests runs commands in the machine.
	Guests guest.Executor
	Clock  clock.Clock
	// Getenv returns a variable that gitlab-runner has set.
	Getenv func(string) string
	// Out receives the output of the job, and Log the messages of this program.
	Out, Log io.Writer
}

// ErrBuild means that the script of the job has failed.
var ErrBuild = errors.New("the script of the job failed")

// job returns the name of the job's claim, which is the same in each stage.
func (e *Executor) job() (string, error) {
	id, project := e.Getenv("CUSTOM_ENV_CI_JOB_ID"), e.Getenv("CUSTOM_ENV_CI_PROJECT_ID")
	if id == "" || project == "" {
		return "", errors.New("CUSTOM_ENV_CI_JOB_ID or CUSTOM_ENV_CI_PROJECT_ID is not set; gitlab-runner must start this command as a custom executor")
	}
	server := fnv.New32a()
	_, _ = io.WriteString(server, e.Getenv("CUSTOM_ENV_CI_SERVER_URL"))
	return fmt.Sprintf("gitlab-%08x-%s-%s", server.Sum32(), project, id), nil
}

// Config prints the settings of the job, as gitlab-runner expects them.
func (e *Executor) Config() error {
	settings := map[string]any{
		"builds_dir": e.BuildsDir, "cache_dir": e.CacheDir, "builds_dir_is_shared": false,
		"driver": map[string]string{"name": "macrack-runners", "version": e.Version},
	}
	return json.NewEncoder(e.Out).Encode(settings)
}

// Prepare waits until the job has a machine. It can be repeated.
func (e *Executor) Prepare(ctx context.Context) error {
	job, err := e.job()
	if err != nil {
		return err
	}
	fmt.Fprintf(e.Log, "Waiting for a virtual machine of set %q\n", e.Set)
	renewed := time.Time{}
	for {
		instance, err := e.machine(ctx, job)
		switch {
		case err != nil:
			fmt.Fprintln(e.Log, err) // an API server that restarts is no failure of the job
		case instance != nil:
			return e.accept(ctx, job, instance)
		case e.Clock.Since(renewed) > claimDuration/4:
			if err := e.claim(ctx, job); err != nil {
				fmt.Fprintln(e.Log, err)
			} else {
				renewed = e.Clock.Now()
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no virtual machine of set %q became free: %w", e.Set, context.Cause(ctx))
		case <-e.Clock.After(poll):
		}
	}
}

// machine returns the machine of a job, or nil.
func (e *Executor) machine(ctx context.Context, job string) (*instancev1alpha1.MacOSInstance, error) {
	list, err := e.Instances.List(ctx, metav1.ListOptions{LabelSelector: observe.LabelSet + "=" + e.Set})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if instance := &list.Items[i]; instance.Annotations[observe.AnnotationJob] == job && observe.Machine(instance).State == machines.Busy {
			return instance, nil
		}
	}
	return nil, nil
}

// patientMachine is machine for a stage that needs the answer.
func (e *Executor) patientMachine(ctx context.Context, job string) (instance *instancev1alpha1.MacOSInstance, err error) {
	err = e.patiently(ctx, func() error {
		instance, err = e.machine(ctx, job)
		return err
	})
	return instance, err
}

// patiently repeats a call until it succeeds or the object does not exist. An API server that
// restarts is no failure of the job.
func (e *Executor) patiently(ctx context.Context, call func() error) error {
	for began := e.Clock.Now(); ; {
		err := call()
		if err == nil || apierrors.IsNotFound(err) || e.Clock.Since(began) > outage {
			return err
		}
		fmt.Fprintln(e.Log, err)
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-e.Clock.After(retryPause):
		}
	}
}

// claim creates or renews the claim of a job.
func (e *Executor) claim(ctx context.Context, job string) error {
	now := &metav1.MicroTime{Time: e.Clock.Now()}
	claim, err := e.Leases.Get(ctx, job, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = e.Leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: job, Labels: map[string]string{labelClaim: "true", observe.LabelSet: e.Set}},
			Spec:       coordinationv1.LeaseSpec{LeaseDurationSeconds: ptr.To(int32(claimDuration.Seconds())), RenewTime: now},
		}, metav1.CreateOptions{})
	case err == nil:
		claim.Spec.RenewTime = now
		_, err = e.Leases.Update(ctx, claim, metav1.UpdateOptions{})
	}
	return err
}

// accept notes that the job uses its machine, and removes the claim.
func (e *Executor) accept(ctx context.Context, job string, instance *instancev1alpha1.MacOSInstance) error {
	err := e.patiently(ctx, func() error {
		return sets.Change(ctx, e.Instances, instance, func(fresh *instancev1alpha1.MacOSInstance) bool {
			if !observe.Time(fresh, observe.AnnotationJobStartedAt).IsZero() {
				return false
			}
			observe.SetTime(fresh, observe.AnnotationJobStartedAt, e.Clock.Now())
			return true
		})
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(e.Log, "Running on %s of lease %s\n", instance.Name, instance.Spec.LeaseName)
	if err := e.Leases.Delete(ctx, job, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		fmt.Fprintln(e.Log, err) // it expires
	}
	return nil
}

// Cleanup gives the machine up. It can be repeated, and works after a failure of any stage.
func (e *Executor) Cleanup(ctx context.Context) error {
	job, err := e.job()
	if err != nil {
		return err
	}
	err = e.patiently(ctx, func() error { return e.Leases.Delete(ctx, job, metav1.DeleteOptions{}) })
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	instance, err := e.patientMachine(ctx, job)
	if err != nil || instance == nil {
		return err
	}
	return e.end(ctx, instance, sets.Succeeded, true)
}

// end notes the result of a job on its machine, unless there is one. The set deletes a machine
// whose job has ended.
func (e *Executor) end(ctx context.Context, instance *instancev1alpha1.MacOSInstance, result sets.Result, ended bool) error {
	return e.patiently(ctx, func() error {
		return sets.Change(ctx, e.Instances, instance, func(fresh *instancev1alpha1.MacOSInstance) bool {
			if fresh.Annotations[observe.AnnotationJobResult] == "" {
				metav1.SetMetaDataAnnotation(&fresh.ObjectMeta, observe.AnnotationJobResult, string(result))
			}
			if ended && observe.Time(fresh, observe.AnnotationJobEndedAt).IsZero() {
				observe.SetTime(fresh, observe.AnnotationJobEndedAt, e.Clock.Now())
			}
			return true
		})
	})
}
