// Package instance manages the life cycle of virtual machines: it starts, reports, stops and cleans
// up the virtual machine of each MacOSInstance.
package instance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/caches"
	"macrack.io/macrack/pkg/agent/environment"
	"macrack.io/macrack/pkg/agent/imagestatus"
	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/pods"
	"macrack.io/macrack/pkg/agent/quarantine"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/rejections"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/agent/teardown"
	"macrack.io/macrack/pkg/agent/witness"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/rules"
)

// Config configures a Controller.
type Config struct {
	Client     versioned.Interface
	Slots      *slots.Manager
	Instances  *objects.Instances
	MacNode    *objects.MacNode
	Pods       *pods.Pods
	Stopper    *teardown.Stopper
	Mismatches *quarantine.Mismatches
	Quarantine *quarantine.Quarantine
	Puller     *imagestatus.Puller
	// Environment sends the environments of startup scripts.
	Environment *environment.Sender
	Caches      *caches.Manager
	Recorder    record.EventRecorder
	Rejections  *rejections.Recorder
	Queue       *queue.Queue[queue.Key]
	Clock       clock.Clock
	// NewMachineID returns a unique machine identifier.
	NewMachineID func(context.Context) (string, error)
	// PlacementLock is read-locked while a VM is placed in a slot, and write-locked during a scrub
	// or a reboot.
	PlacementLock *sync.RWMutex
	Witness       *witness.Keeper
}

// Controller reconciles the virtual machines with the instances.
type Controller struct {
	*Config
	reporter   *reporter
	starter    *starter
	relauncher *relauncher
}

// New returns a Controller.
func New(config Config) *Controller {
	r := &reporter{&config, &startHistories{byUID: map[types.UID]*startHistory{}}}
	s := &starter{&config, r}
	return &Controller{&config, r, s, &relauncher{Config: &config, reporter: r, starter: s, began: config.Clock.Now()}}
}

// Reconcile reconciles the virtual machine with the instance.
func (c *Controller) Reconcile(ctx context.Context, name types.NamespacedName) error {
	instance, err := c.Instances.Newest(name.Namespace, name.Name)
	if apierrors.IsNotFound(err) || (err == nil && !c.Instances.Here(instance)) {
		instance = nil
	} else if err != nil {
		return err
	}
	// An error of a VM with the same name must not delay the instance.
	return errors.Join(c.reconcile(ctx, name, instance), c.Mismatches.Sync(ctx, name, instance))
}

func (c *Controller) reconcile(ctx context.Context, name types.NamespacedName, instance *instancev1alpha1.MacOSInstance) error {
	if instance == nil {
		// A pod of the same name may have waited for the slot.
		return c.Pods.Enqueue(name.Namespace)
	}
	pod, err := c.Pods.Placeholder(instance)
	if err != nil {
		return err
	}
	slot, held := c.Slots.Find(string(instance.UID))
	if held && c.Stopper.Mismatch(instance, slot) != "" {
		return nil // It is being stopped. Its exit does not end the instance, and its change is queued.
	}
	switch {
	case rules.InstanceEnded(instance.Status.Phase):
		err = c.reporter.cleanup(ctx, instance, slot, held)
	case held:
		err = c.sync(ctx, instance, pod, slot)
	default:
		err = c.start(ctx, instance, pod)
	}
	if err != nil {
		return err
	}
	return c.Pods.Report(ctx, instance, pod)
}

// sync reports a slot's virtual machine and takes the next step.
func (c *Controller) sync(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod, slot slots.Status) error {
	stop, grace, why, err := c.mustStop(ctx, instance, pod)
	if err != nil {
		return err
	}
	if !stop && !c.Witness.Confirmed() {
		return nil // a server that has lost history would misunderstand the report
	}
	switch slot.Phase {
	case slots.Prepared:
		if stop {
			return c.cancelStart(ctx, instance, slot, why)
		}
		return c.relauncher.relaunch(ctx, instance, slot)
	case slots.Attached:
		if !stop {
			return errors.Join(c.reporter.running(ctx, instance, slot), c.Environment.Send(ctx, instance, slot))
		}
		// Stop first: the API may refuse the report, or not respond.
		err := c.Stopper.Stop(ctx, slot, grace)
		return errors.Join(err, c.reporter.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			if s.Phase != instancev1alpha1.MacOSInstanceStopping {
				s.Phase, s.Message = instancev1alpha1.MacOSInstanceStopping, why
			}
			s.IPAddress = nil
		}))
	case slots.Unreachable:
		if stop {
			if err := c.Stopper.Stop(ctx, slot, grace); err != nil {
				klog.ErrorS(err, "Failed to kill unresponsive VM", "slot", slot.Slot)
			}
		}
		return c.reporter.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
			s.Message = fmt.Sprintf("The virtual machine does not respond to the agent: %v", slot.Err)
		})
	case slots.Exited:
		return c.onExit(ctx, instance, slot, stop, why)
	}
	return nil // a change of the slot queues it again
}

// cancelStart ends a virtual machine that has not started. It erases the slot before it reports, so
// that a late runner finds nothing to run. If the runner was faster, it holds the slot, and the
// virtual machine is stopped as usual.
func (c *Controller) cancelStart(ctx context.Context, instance *instancev1alpha1.MacOSInstance, slot slots.Status, why string) error {
	if err := c.Stopper.Erase(slot); err != nil {
		return err
	}
	return c.reporter.reportEnd(ctx, instance, instancev1alpha1.MacOSInstanceStopped, why+"; the virtual machine had not started")
}

// mustStop reports whether the virtual machine must stop, and returns the grace period and the
// reason.
func (c *Controller) mustStop(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) (bool, time.Duration, string, error) {
	if stop, grace := teardown.Requested(instance); stop {
		why := "Stopped as requested"
		switch request := instance.Status.StopRequest; {
		case teardown.StoppedByDeadline(instance):
			why = rules.DescribeDeadline(*instance.Spec.ActiveDeadlineSeconds)
		case request != nil && request.Reason != "":
			why = request.Reason
		case request == nil && instance.Status.Message != "":
			why = instance.Status.Message // set by the agent earlier
		}
		return true, grace, why, nil
	}
	if !c.Witness.Confirmed() {
		return false, 0, "", nil // a change of the MacNode queues it again
	}
	stop, _, _, err := c.impliedStop(ctx, instance, pod)
	if !stop {
		return false, 0, "", err
	}
	// The server may have lost the lease or the instance, and the garbage collector then has
	// deleted the pod. The cached instance may be from before a restore.
	live, err := teardown.Confirm(ctx, c.Witness, c.Instances, instance)
	if err != nil || live == nil {
		return false, 0, "", err
	}
	return c.impliedStop(ctx, live, pod)
}

// impliedStop is mustStop for the reasons that are not in the instance: its pod and its lease.
func (c *Controller) impliedStop(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) (bool, time.Duration, string, error) {
	restored := teardown.Restored(instance)
	if pod != nil && pod.DeletionTimestamp != nil && !restored {
		return true, teardown.GracePeriod(pod), rules.DescribeDeletion(pod), nil
	}
	// Both checks run: an error of one must not hide the result of the other.
	mismatch, err := c.leaseMismatch(ctx, instance)
	if mismatch != "" {
		return true, rules.DefaultStopGrace, mismatch, nil
	}
	if pod == nil && !restored {
		gone, podErr := c.Pods.Gone(ctx, instance)
		if gone {
			return true, rules.DefaultStopGrace, rules.DescribeLoss(instance.Status.PodName), nil
		}
		err = errors.Join(err, podErr)
	}
	return false, 0, "", err
}

// leaseMismatch returns the reason for which this Mac does not match the instance's lease, or an
// empty string if it matches. It confirms a mismatch with the API, because the cache may be stale.
func (c *Controller) leaseMismatch(ctx context.Context, instance *instancev1alpha1.MacOSInstance) (string, error) {
	macNode, err := c.MacNode.Cached()
	if err == nil && teardown.LeaseMismatch(macNode, instance) == "" {
		return "", nil
	}
	macNode, err = c.MacNode.Live(ctx)
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("MacNode %s does not exist", c.MacNode.Name), nil
	}
	if err != nil {
		return "", err
	}
	return teardown.LeaseMismatch(macNode, instance), nil
}
