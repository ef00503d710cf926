// Package environment reads the environment of startup scripts from Secrets and ConfigMaps, and
// sends it to the virtual machines. The values are only in memory: neither an object, nor a log,
// nor a file of the Mac has them.
package environment

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/apiclient"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/vm/faults"
)

// RetryInterval is the interval at which a missing Secret or ConfigMap is looked up again. A node
// may not watch them.
const RetryInterval = 10 * time.Second

// reasonSent is the reason of EnvironmentReady=True.
const reasonSent = "Sent"

// Sender sends environments.
type Sender struct {
	// Kube reads only the Secrets and ConfigMaps that the placeholder pods on this Mac name: the
	// Node authorizer refuses others.
	Kube      kubernetes.Interface
	Instances *objects.Instances
	Slots     *slots.Manager
	Queue     *queue.Queue[queue.Key]
	Recorder  record.EventRecorder
}

// Wanted reports whether the startup script of an instance has an environment.
func Wanted(instance *instancev1alpha1.MacOSInstance) bool {
	return instance.Spec.StartupScript != "" && (len(instance.Spec.Env) > 0 || len(instance.Spec.EnvFrom) > 0)
}

// Check reads the environment of an instance before its virtual machine starts, and reports a
// problem. The values are read again to send them.
func (s *Sender) Check(ctx context.Context, instance *instancev1alpha1.MacOSInstance) (*instancev1alpha1.MacOSInstance, *Problem, error) {
	if !Wanted(instance) {
		return instance, nil, nil
	}
	_, err := resolve(ctx, s.Kube.CoreV1(), instance)
	if problem := (*Problem)(nil); errors.As(err, &problem) {
		instance, err = s.report(ctx, instance, problem)
		return instance, problem, err
	}
	instance, err = s.set(ctx, instance, metav1.ConditionFalse, instancev1alpha1.ReasonEnvironmentPending, "the virtual machine has not received the environment yet")
	return instance, nil, err
}

// Wait shows the problem for which an instance does not start, and retries later.
func (s *Sender) Wait(ctx context.Context, instance *instancev1alpha1.MacOSInstance, problem *Problem) error {
	s.Queue.AddAfterClock(ctx, queue.Instance(instance.Namespace, instance.Name), RetryInterval)
	_, err := s.Instances.Update(ctx, instance, func(status *instancev1alpha1.MacOSInstanceStatus) {
		status.Message = apiclient.Message("Waiting for the environment of the startup script: " + problem.Message)
	})
	return err
}

// Send sends the environment of a running virtual machine to its runner, if the runner waits for
// it. A Secret that was deleted since the check is looked up again later.
func (s *Sender) Send(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status) error {
	if !slot.Spec.Environment || slot.State == nil {
		return nil
	}
	if slot.State.EnvironmentMissing {
		environment, err := resolve(ctx, s.Kube.CoreV1(), instance)
		if problem := (*Problem)(nil); errors.As(err, &problem) {
			s.Queue.AddAfterClock(ctx, queue.Instance(instance.Namespace, instance.Name), RetryInterval)
			_, err := s.report(ctx, instance, problem)
			return err
		}
		faults.At("environment: read")
		if err := s.Slots.SetEnvironment(ctx, string(instance.UID), environment); err != nil {
			return err
		}
		klog.InfoS("Environment sent", "instance", klog.KObj(instance), "variables", len(environment))
		faults.At("environment: sent")
	}
	_, err := s.set(ctx, instance, metav1.ConditionTrue, reasonSent, "")
	return err
}

// report reports a problem as a condition, and as an Event if it is new.
func (s *Sender) report(ctx context.Context, instance *instancev1alpha1.MacOSInstance, problem *Problem) (*instancev1alpha1.MacOSInstance, error) {
	message := apiclient.Message(problem.Message)
	before := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceEnvironmentReady)
	if before == nil || before.Reason != problem.Reason || before.Message != message {
		s.Recorder.Event(objects.InstanceRef(instance), corev1.EventTypeWarning, problem.Reason, message)
	}
	return s.set(ctx, instance, metav1.ConditionFalse, problem.Reason, message)
}

func (s *Sender) set(ctx context.Context, instance *instancev1alpha1.MacOSInstance, value metav1.ConditionStatus, reason, message string) (*instancev1alpha1.MacOSInstance, error) {
	return s.Instances.Update(ctx, instance, func(status *instancev1alpha1.MacOSInstanceStatus) {
		s.Instances.SetCondition(status, instance, instancev1alpha1.MacOSInstanceEnvironmentReady, value, reason, message)
	})
}
