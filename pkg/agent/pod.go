package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// Reasons of rejections.
const (
	// reasonForeignPod: the pod is not the placeholder of an instance of this Mac's lease.
	reasonForeignPod = "ForeignPod"
	// reasonUnknownInstance: a virtual machine on the Mac belongs to no instance of the API.
	reasonUnknownInstance = rackv1alpha1.ReasonUnknownInstance
	// reasonDuplicateIdentity: another virtual machine on the Mac has the same identity.
	reasonDuplicateIdentity = "DuplicateIdentity"
	// reasonForeignIdentity: a virtual machine does not have the identity of its instance.
	reasonForeignIdentity = "ForeignIdentity"
	// reasonGarbledSlot: the files of a slot cannot be read.
	reasonGarbledSlot = "GarbledSlot"
	// reasonInstanceGone: the instance was removed while its virtual machine ran.
	reasonInstanceGone = "InstanceGone"
	// reasonSlotsFull: the pod's virtual machine would exceed the limit.
	reasonSlotsFull = "SlotsFull"
)

func podEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// belongs reports whether the pod is the placeholder of the instance. The controllers write its
// name to the instance's status. A pod of an earlier instance may still have that name, so a UID
// must match until the instance has a machine ID. Later, changes of the pod's labels, annotations
// and owners by the tenant have no effect.
func belongs(pod *corev1.Pod, instance *instancev1alpha1.MacOSInstance) bool {
	return pod.Namespace == instance.Namespace && pod.Name == instance.Status.PodName &&
		(instance.Status.MachineID != "" ||
			pod.Annotations[rules.AnnotationInstanceUID] == string(instance.UID) || metav1.IsControlledBy(pod, instance))
}

// placeholder returns the instance's pod on this Mac, or nil.
func (a *Agent) placeholder(instance *instancev1alpha1.MacOSInstance) (*corev1.Pod, error) {
	pod, err := a.node.Pods().Pods(instance.Namespace).Get(instance.Status.PodName)
	if apierrors.IsNotFound(err) || err == nil && !belongs(pod, instance) {
		return nil, nil
	}
	return pod, err
}

// ownerOf returns the instance on this Mac that the placeholder pod belongs to, from the cache, or
// nil.
func (a *Agent) ownerOf(pod *corev1.Pod) (*instancev1alpha1.MacOSInstance, error) {
	instances, err := a.instances.MacOSInstances(pod.Namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, instance := range instances {
		if instance.Status.NodeName == a.config.NodeName && belongs(pod, instance) {
			return instance, nil
		}
	}
	return nil, nil
}

// podGone reports whether the instance has no pod on this Mac. It reads from the API, because the
// cache may be stale.
func (a *Agent) podGone(ctx context.Context, instance *instancev1alpha1.MacOSInstance) (bool, error) {
	pods, err := a.config.Kube.CoreV1().Pods(instance.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", a.config.NodeName).String(),
	})
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return belongs(&p, instance) }), nil
}

// reconcilePod refuses a pod that is not a placeholder, and releases a pod that is being deleted.
// Neither waits for the ledger: pending records are written later, even after the pod is deleted.
func (a *Agent) reconcilePod(ctx context.Context, name types.NamespacedName) error {
	recordErr := a.recordOwed(ctx, name)
	return errors.Join(recordErr, a.settlePod(ctx, name))
}

// recordOwed writes the pending rejections of a pod to the ledger.
func (a *Agent) recordOwed(ctx context.Context, name types.NamespacedName) error {
	a.mu.Lock()
	owed := a.owed[name]
	a.mu.Unlock()
	var err error
	for len(owed) > 0 {
		if err = a.create(ctx, owed[0]); isTransient(err) {
			break
		}
		owed, err = owed[1:], nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.owed[name] = owed; len(owed) == 0 {
		delete(a.owed, name)
	}
	return err
}

func (a *Agent) settlePod(ctx context.Context, name types.NamespacedName) error {
	pod, err := a.node.Pods().Pods(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	instance, why, err := a.instanceOf(ctx, pod)
	if err != nil {
		return err
	}
	if instance != nil {
		return nil // reconcileInstance reports it
	}
	if _, held := a.slots.Find(pod.Annotations[rules.AnnotationInstanceUID]); held && (pod.Status.Phase == corev1.PodRunning || pod.DeletionTimestamp != nil) {
		return nil // its virtual machine may still run, although its instance is unknown
	}
	if pod.DeletionTimestamp != nil {
		return a.node.Forget(ctx, pod)
	}
	if podEnded(pod) || a.node.Ended(pod) {
		return nil
	}
	if pod.Status.Phase == corev1.PodRunning {
		// The pod was the placeholder of an instance that no longer exists.
		a.failPod(pod, reasonInstanceGone, why)
		return nil
	}
	// A pod without an instance label is recorded only if it was bound to another tenant's Mac.
	var record *rackv1alpha1.AuditRecord
	switch claimed := pod.Labels[rules.LabelInstance]; {
	case claimed != "":
		record = a.rejection(rackv1alpha1.LayerAgent, pod.Namespace, &rackv1alpha1.AuditReference{
			Namespace: pod.Namespace, Name: claimed, UID: types.UID(pod.Annotations[rules.AnnotationInstanceUID]),
		}, reasonForeignPod, why)
	case a.leasedToAnother(pod.Namespace):
		record = a.rejection(rackv1alpha1.LayerAgent, pod.Namespace, nil, reasonForeignPod, fmt.Sprintf("pod %s: %s", pod.Name, why))
	}
	if record != nil {
		if err = a.create(ctx, record); isTransient(err) {
			a.mu.Lock()
			a.owed[name] = append(a.owed[name], record)
			a.mu.Unlock()
		} else {
			err = nil
		}
	}
	a.failPod(pod, reasonForeignPod, why)
	return err
}

// leasedToAnother reports whether the Mac is leased to another namespace.
func (a *Agent) leasedToAnother(namespace string) bool {
	macNode, err := a.macNodes.Get(a.config.NodeName)
	return err == nil && macNode.Status.LeaseRef != nil && macNode.Status.LeaseRef.Namespace != namespace
}

// instanceOf returns the instance that the placeholder pod belongs to, or the reason why it belongs
// to none. It reads the API if the cache has no answer.
func (a *Agent) instanceOf(ctx context.Context, pod *corev1.Pod) (*instancev1alpha1.MacOSInstance, string, error) {
	instance, err := a.ownerOf(pod)
	if instance != nil || err != nil {
		return instance, "", err
	}
	name := pod.Labels[rules.LabelInstance]
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "MacOSInstance" {
		name = owner.Name
	}
	if name == "" {
		return nil, rules.OneTenantPerChassis.String() + ": a Mac runs only placeholder pods of MacOSInstances, and this pod has no MacOSInstance", nil
	}
	instance, err = a.config.Macrack.InstanceV1alpha1().MacOSInstances(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("MacOSInstance %s/%s does not exist", pod.Namespace, name), nil
	case apierrors.IsForbidden(err):
		return nil, fmt.Sprintf("MacOSInstance %s/%s is not on this Mac", pod.Namespace, name), nil
	case err != nil:
		return nil, "", err
	case !belongs(pod, instance):
		return nil, fmt.Sprintf("the pod is not the placeholder of MacOSInstance %s/%s, which has UID %s and pod %q", pod.Namespace, name, instance.UID, instance.Status.PodName), nil
	case instance.Status.NodeName != a.config.NodeName:
		return nil, fmt.Sprintf("MacOSInstance %s/%s is on Mac %q, not on this Mac", pod.Namespace, name, instance.Status.NodeName), nil
	}
	return instance, "", nil
}

// refuse fails an instance and its pod, and records the rejection. The record comes first: while
// the ledger is unavailable, the refusal is retried.
func (a *Agent) refuse(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod, reason, message string) error {
	if err := a.recordRejection(ctx, rackv1alpha1.LayerAgent, pod.Namespace, reference(instance), reason, message); isTransient(err) {
		return err
	}
	if _, err := a.conclude(ctx, instance, instancev1alpha1.MacOSInstanceFailed, reason+": "+message); err != nil {
		return err
	}
	a.failPod(pod, reason, message)
	return nil
}

// failPod sets a pod's last status. Later statuses are not reported.
func (a *Agent) failPod(pod *corev1.Pod, reason, message string) {
	klog.InfoS("Pod refused", "pod", klog.KObj(pod), "reason", reason, "message", message)
	a.node.SetPodStatus(pod, corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: reason, Message: message, StartTime: pod.Status.StartTime,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: reason, Message: message}},
	})
}

// recordRejection writes a rejection to the ledger. A failure of the ledger does not revert the
// rejection: it is recorded later if the error isTransient.
func (a *Agent) recordRejection(ctx context.Context, layer rackv1alpha1.AuditLayer, namespace string, instance *rackv1alpha1.AuditReference, reason, message string) error {
	return a.create(ctx, a.rejection(layer, namespace, instance, reason, message))
}

// rejection returns the record of a rejection: CrossTenantRejected if the Mac is leased to another
// tenant.
func (a *Agent) rejection(layer rackv1alpha1.AuditLayer, namespace string, instance *rackv1alpha1.AuditReference, reason, message string) *rackv1alpha1.AuditRecord {
	record := &rackv1alpha1.AuditRecord{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "rejection-"},
		Type:       rackv1alpha1.InstanceRejected,
		Chassis:    rackv1alpha1.AuditChassis{NodeName: a.config.NodeName},
		Tenant:     namespace,
		Instance:   instance,
		Details:    rackv1alpha1.AuditDetails{Layer: layer, Reason: reason, Message: message},
	}
	if macNode, err := a.macNodes.Get(a.config.NodeName); err == nil {
		record.Chassis.SerialNumber = macNode.Spec.SerialNumber
		if lease := macNode.Status.LeaseRef; lease != nil {
			record.Lease = &rackv1alpha1.AuditReference{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID}
			if lease.Namespace != namespace {
				record.Type, record.Details.SourceNamespace = rackv1alpha1.CrossTenantRejected, namespace
			}
		}
	}
	return record
}

func (a *Agent) create(ctx context.Context, record *rackv1alpha1.AuditRecord) error {
	_, err := a.config.Macrack.RackV1alpha1().AuditRecords(record.Namespace).Create(ctx, record, metav1.CreateOptions{})
	if err != nil {
		klog.ErrorS(err, "Failed to record rejection", "namespace", record.Namespace, "reason", record.Details.Reason, "message", record.Details.Message)
	}
	return err
}

func reference(instance *instancev1alpha1.MacOSInstance) *rackv1alpha1.AuditReference {
	return &rackv1alpha1.AuditReference{Namespace: instance.Namespace, Name: instance.Name, UID: instance.UID}
}

// reportPod sets the status of the placeholder pod from that of its instance.
func (a *Agent) reportPod(ctx context.Context, seen *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	if pod == nil {
		return nil
	}
	// The pod keeps the status of the instance as read. The writes of reconcileInstance arrive
	// later as an event.
	_, held := a.slots.Find(string(seen.UID))
	if pod.DeletionTimestamp != nil && rules.InstanceEnded(seen.Status.Phase) && !held {
		a.node.SetPodStatus(pod, podStatus(seen, pod))
		return a.node.Forget(ctx, pod)
	}
	if !podEnded(pod) {
		a.node.SetPodStatus(pod, podStatus(seen, pod))
	}
	return nil
}

func podStatus(instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodPending, StartTime: pod.Status.StartTime, Message: instance.Status.Message}
	if status.StartTime == nil {
		start := pod.CreationTimestamp
		status.StartTime = &start
	}
	started := instance.Status.StartedAt
	var state corev1.ContainerState
	ready, reason := corev1.ConditionFalse, string(instance.Status.Phase)
	switch instance.Status.Phase {
	case instancev1alpha1.MacOSInstanceRunning, instancev1alpha1.MacOSInstanceStopping:
		if started == nil {
			state.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: instance.Status.Message}
			break
		}
		status.Phase = corev1.PodRunning
		state.Running = &corev1.ContainerStateRunning{StartedAt: *started}
		if instance.Status.Phase == instancev1alpha1.MacOSInstanceRunning {
			ready, reason = corev1.ConditionTrue, ""
		}
	case instancev1alpha1.MacOSInstanceStopped, instancev1alpha1.MacOSInstanceFailed:
		status.Phase, status.Reason = corev1.PodSucceeded, reason
		exit := int32(0)
		if instance.Status.Phase == instancev1alpha1.MacOSInstanceFailed {
			status.Phase, exit = corev1.PodFailed, 1
		}
		state.Terminated = &corev1.ContainerStateTerminated{ExitCode: exit, Reason: reason, Message: instance.Status.Message}
		if started != nil {
			state.Terminated.StartedAt = *started
		}
		if instance.Status.StoppedAt != nil {
			state.Terminated.FinishedAt = *instance.Status.StoppedAt
		}
	default:
		state.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: instance.Status.Message}
	}
	condition := func(t corev1.PodConditionType, value corev1.ConditionStatus) corev1.PodCondition {
		c := corev1.PodCondition{Type: t, Status: value, LastTransitionTime: *status.StartTime}
		if value == corev1.ConditionFalse {
			c.Reason = reason
		}
		if t != corev1.PodScheduled && started != nil {
			c.LastTransitionTime = *started
		}
		return c
	}
	status.Conditions = []corev1.PodCondition{
		condition(corev1.PodScheduled, corev1.ConditionTrue), condition(corev1.PodInitialized, corev1.ConditionTrue),
		condition(corev1.ContainersReady, ready), condition(corev1.PodReady, ready),
	}
	isStarted := state.Running != nil
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, ImageID: instance.Status.ImageDigest,
			State: state, Ready: ready == corev1.ConditionTrue, Started: &isStarted,
		})
	}
	return status
}
