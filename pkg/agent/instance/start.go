package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/imagestatus"
	"macrack.io/macrack/pkg/agent/pods"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/rejections"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/agent/teardown"
	"macrack.io/macrack/pkg/agent/witness"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/faults"
)

// start starts an instance that holds no slot, if it should run.
func (c *Controller) start(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	if instance.Status.MachineID != "" {
		for _, slot := range c.Slots.Statuses() {
			if slot.Phase == slots.Unreachable && slot.Spec == nil {
				return c.reporter.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
					s.Message = fmt.Sprintf("The agent cannot determine whether slot %d holds this virtual machine: %v", slot.Slot, slot.Err)
				})
			}
		}
	}
	if stop, _ := teardown.Requested(instance); stop {
		return c.reporter.reportEnd(ctx, instance, instancev1alpha1.MacOSInstanceStopped, "Stopped as requested; the virtual machine did not exist")
	}
	if instance.Status.StartedAt != nil {
		return c.reporter.reportEnd(ctx, instance, instancev1alpha1.MacOSInstanceFailed, "The virtual machine no longer exists on the Mac")
	}
	if instance.Status.MachineID != "" {
		// The agent may have exited after it erased the slot and before it reported the end.
		if stop, _, why, err := c.mustStop(ctx, instance, pod); err != nil {
			return err
		} else if stop {
			return c.reporter.reportEnd(ctx, instance, instancev1alpha1.MacOSInstanceStopped, why+"; the virtual machine did not exist")
		}
	}
	if pod == nil || pod.DeletionTimestamp != nil || pods.Ended(pod) {
		return nil // it is not requested yet, or no longer
	}
	mismatch, err := c.leaseMismatch(ctx, instance)
	if err != nil {
		return err
	}
	if mismatch != "" {
		return c.reporter.refuse(ctx, instance, pod, rejections.ReasonForeignPod, mismatch+": a Mac runs only virtual machines of its lease")
	}
	if wait, err := c.starter.mustWait(ctx, instance, pod); wait || err != nil {
		return err
	}
	return c.starter.create(ctx, instance, pod)
}

// sessionPause is the interval at which a start looks for the login session.
const sessionPause = 5 * time.Second

// starter starts virtual machines.
type starter struct {
	*Config
	reporter *reporter
}

// mustWait reports whether the Mac cannot run one more virtual machine now. If it never can,
// mustWait refuses the pod.
func (s *starter) mustWait(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) (wait bool, err error) {
	macNode, err := s.MacNode.Cached()
	if err != nil {
		return true, err
	}
	if s.Quarantine.Blocks(macNode) {
		return true, s.reporter.update(ctx, instance, func(status *instancev1alpha1.MacOSInstanceStatus) {
			status.Message = fmt.Sprintf("MacNode %s is quarantined; to start virtual machines, reboot the Mac or clear the quarantine", macNode.Name)
		})
	}
	if err := s.Quarantine.NoLoginSession(); err != nil {
		s.Queue.AddAfterClock(ctx, queue.Instance(instance.Namespace, instance.Name), sessionPause)
		return true, s.reporter.update(ctx, instance, func(status *instancev1alpha1.MacOSInstanceStatus) {
			status.Message = fmt.Sprintf("Virtual machines start only in a login session of the Mac: %v", err)
		})
	}
	if !s.Witness.Confirmed() {
		return true, witness.ErrUnconfirmed
	}
	if slot, found := s.Mismatches.Unchecked(); found {
		return true, fmt.Errorf("slot %d runs a virtual machine whose instance is not found yet", slot.Slot)
	}
	for _, slot := range s.Slots.Statuses() {
		if slot.Phase == slots.Free {
			return false, nil
		}
	}
	for _, slot := range s.Slots.Statuses() {
		if slot.Spec == nil {
			return true, errSlotsBusy
		}
		holder, err := s.Instances.Live(ctx, slot.Spec.Namespace, slot.Spec.Name)
		if err != nil && !apierrors.IsNotFound(err) {
			return true, err
		}
		if err != nil || string(holder.UID) != slot.UID() || rules.InstanceEnded(holder.Status.Phase) {
			return true, errSlotsBusy // one is being erased
		}
	}
	return true, s.reporter.refuse(ctx, instance, pod, rejections.ReasonSlotsFull, fmt.Sprintf("%d virtual machines are on the Mac, which is the limit; stop one first", rules.MaxVMsPerMac))
}

var errSlotsBusy = errors.New("the Mac's slots are being erased")

// create pulls the image, assigns the virtual machine its identity, and launches it. Every step is
// idempotent, so an interrupted start is repeated.
func (s *starter) create(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	class, err := s.Client.InstanceV1alpha1().InstanceClasses().Get(ctx, instance.Spec.ClassName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return s.reporter.reportEnd(ctx, instance, instancev1alpha1.MacOSInstanceFailed, fmt.Sprintf("InstanceClass %s does not exist", instance.Spec.ClassName))
	}
	if err != nil {
		return err
	}
	image, err := s.Client.ImageV1alpha1().MacOSImages().Get(ctx, instance.Spec.ImageName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return s.reporter.reportEnd(ctx, instance, instancev1alpha1.MacOSInstanceFailed, fmt.Sprintf("MacOSImage %s does not exist", instance.Spec.ImageName))
	}
	if err != nil {
		return err
	}
	info, err := s.Quarantine.Host.Info()
	if err != nil {
		return err
	}
	if why := unbootableHere(info, image); why != "" {
		return s.reporter.reportEnd(ctx, instance, instancev1alpha1.MacOSInstanceFailed, why)
	}
	network, err := s.networkOf(ctx, class)
	if err != nil {
		return err
	}
	instance, problem, err := s.Environment.Check(ctx, instance)
	if err != nil {
		return err
	}
	instance, cached, err := s.Puller.Pull(ctx, instance, image)
	if err != nil || s.Stopper.MayNotStart(instance) {
		return err
	}
	if why := tooSmall(class, cached); why != "" {
		return s.reporter.reportEnd(ctx, instance, instancev1alpha1.MacOSInstanceFailed, why)
	}
	if problem != nil && instance.Status.MachineID == "" {
		return s.Environment.Wait(ctx, instance, problem)
	}
	machineID, why := machineIDOf(image, cached)
	if why != "" {
		return s.reporter.reportEnd(ctx, instance, instancev1alpha1.MacOSInstanceFailed, why)
	}
	claimed, err := s.claim(ctx, instance, machineID, cached)
	if err != nil {
		return s.reportTaken(ctx, instance, image, machineID, err)
	}
	instance = claimed
	if err := s.Witness.RecordStart(ctx, instance); err != nil {
		return err
	}
	err = s.launch(instance, network, class, image, cached)
	if errors.Is(err, slots.ErrDuplicateIdentity) {
		return s.reporter.refuse(ctx, instance, pod, rejections.ReasonDuplicateIdentity, err.Error())
	}
	if err != nil {
		_ = s.reporter.update(ctx, instance, func(status *instancev1alpha1.MacOSInstanceStatus) {
			status.Message = fmt.Sprintf("Failed to prepare the virtual machine; retrying: %v", err)
		})
	}
	return err
}

// machineIDOf returns the machine ID that an instance takes from its image, or an empty string if
// it gets one of its own. It returns why the instance cannot start if the image has none.
func machineIDOf(image *imagev1alpha1.MacOSImage, cached images.Cached) (machineID, why string) {
	if image.Spec.Identity != imagev1alpha1.ImageIdentityFromImage {
		return "", ""
	}
	if cached.MachineID == "" {
		return "", fmt.Sprintf("Image %s has no machine identifier, which spec.identity FromImage requires; push it again with --machine-identifier", image.Name)
	}
	return cached.MachineID, ""
}

// claim assigns the instance a machine ID and a MAC address. It generates a machine ID unless
// imageID, that of the image, is set. The registry accepts them only if they are unique and the Mac
// may start one more virtual machine. It counts and records the start in the same transaction, so
// claim completes before the launch. After a refusal, the next try generates another identity.
func (s *starter) claim(ctx context.Context, instance *instancev1alpha1.MacOSInstance, imageID string, image images.Cached) (*instancev1alpha1.MacOSInstance, error) {
	machineID, macAddress := cmp.Or(instance.Status.MachineID, imageID), instance.Status.MACAddress
	if machineID == "" {
		var err error
		if machineID, err = s.NewMachineID(ctx); err != nil {
			return nil, fmt.Errorf("machine ID: %w", err)
		}
	}
	if macAddress == "" {
		macAddress = newMACAddress()
	}
	claimed, err := s.Instances.Update(ctx, instance, func(status *instancev1alpha1.MacOSInstanceStatus) {
		status.Phase, status.Message = instancev1alpha1.MacOSInstanceStarting, ""
		status.MachineID, status.MACAddress, status.ImageDigest = machineID, macAddress, image.Digest
		s.Instances.SetCondition(status, instance, instancev1alpha1.MacOSInstanceImageReady, metav1.ConditionTrue, imagestatus.ReasonCached, "")
	})
	if err != nil {
		return nil, err
	}
	if claimed == instance {
		// Nothing was written, so the registry has not checked the claim. The cache may miss the
		// agent's report of the end.
		claimed, err = s.Instances.Live(ctx, instance.Namespace, instance.Name)
		if err != nil {
			return nil, err
		}
		if claimed.UID != instance.UID || rules.InstanceEnded(claimed.Status.Phase) {
			return nil, fmt.Errorf("MacOSInstance %s has ended; the cache is stale", klog.KObj(instance))
		}
	}
	return s.confirmGrant(ctx, claimed)
}

// reportTaken reports in the instance that another one has the machine ID of its image, and returns
// the error of the claim, so that the claim is repeated. A new identity would not help.
func (s *starter) reportTaken(ctx context.Context, instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage, imageID string, claimErr error) error {
	if imageID == "" || instance.Status.MachineID != "" || !apierrors.IsConflict(claimErr) {
		return claimErr
	}
	return errors.Join(claimErr, s.reporter.update(ctx, instance, func(status *instancev1alpha1.MacOSInstanceStatus) {
		status.Message = fmt.Sprintf("Waiting for the machine identifier of MacOSImage %s (spec.identity FromImage): another instance in the fleet has it", image.Name)
	}))
}

// confirmGrant makes sure that the registry has granted the start. An instance may have its
// identity from a registry version without grants; the agent's next write obtains one.
func (s *starter) confirmGrant(ctx context.Context, instance *instancev1alpha1.MacOSInstance) (*instancev1alpha1.MacOSInstance, error) {
	if instance.Status.StartGrantedAt != nil || instance.Status.StartedAt != nil {
		return instance, nil
	}
	faults.At("grant: before")
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"phase":%q}}`, instance.UID, instance.Status.Phase)
	granted, err := s.Instances.Patch(ctx, instance, patch)
	faults.At("grant: after")
	if err != nil {
		return nil, err
	}
	if granted.Status.StartGrantedAt == nil {
		return nil, errors.New("the registry did not grant the start of the virtual machine")
	}
	return granted, nil
}
