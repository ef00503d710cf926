// Package macosinstance creates the placeholder pod of each instance, reports how the pod is
// scheduled, and removes the pod when the virtual machine has ended. The agent reports the state of
// the virtual machine.
package macosinstance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/apiclient"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/rules"
)

// Reasons of the condition Scheduled.
const (
	// ReasonWaitingForNode means that the Node does not exist, or does not have the tenant's taint
	// yet.
	ReasonWaitingForNode = "WaitingForNode"
	// ReasonCreatingPod means that the placeholder pod is about to be created.
	ReasonCreatingPod = "CreatingPod"
	// ReasonPodNameTaken means that a pod of another owner has the name of the placeholder pod,
	// which is about to be created under another name.
	ReasonPodNameTaken = "PodNameTaken"
	// ReasonPodRefused means that the API server refuses the placeholder pod, for example because
	// of a quota.
	ReasonPodRefused = "PodRefused"
	// ReasonWaitingForScheduler means that the scheduler has not looked at the placeholder pod yet.
	ReasonWaitingForScheduler = "WaitingForScheduler"
	// ReasonUnschedulable means that the scheduler finds the Node unfit for the placeholder pod.
	ReasonUnschedulable = "Unschedulable"
	// ReasonScheduled means that the placeholder pod is bound to the Node.
	ReasonScheduled = "Scheduled"
)

const (
	messageStopped = "stopped before its virtual machine started"
)

type reconciler struct {
	now         func() time.Time
	getInstance func(namespace, name string) (*instancev1alpha1.MacOSInstance, error)
	getLease    func(namespace, name string) (*rackv1alpha1.MacNodeLease, error)
	getNode     func(name string) (*corev1.Node, error)
	getImage    func(name string) (*imagev1alpha1.MacOSImage, error)
	getPod      func(namespace, name string) (*corev1.Pod, error)
	// readPod reads from the server, not from the cache.
	readPod   func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	createPod func(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error)
	patchPod  func(ctx context.Context, pod *corev1.Pod, patch []byte) error
	deletePod func(ctx context.Context, pod *corev1.Pod) error
	getMac    func(name string) (*rackv1alpha1.MacNode, error)

	getBudget    func(namespace, name string) (*policyv1.PodDisruptionBudget, error)
	createBudget func(ctx context.Context, budget *policyv1.PodDisruptionBudget) error
	deleteBudget func(ctx context.Context, budget *policyv1.PodDisruptionBudget) error

	update      func(ctx context.Context, before, after *instancev1alpha1.MacOSInstance) error
	updateState func(ctx context.Context, before, after *instancev1alpha1.MacOSInstance) (*instancev1alpha1.MacOSInstance, error)
	record      func(ctx context.Context, record *rackv1alpha1.AuditRecord) error
}

func (r *reconciler) reconcile(ctx context.Context, key string) (time.Time, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return time.Time{}, err
	}
	instance, err := r.getInstance(namespace, name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	// The report of the Mac delays nothing: statuses are written as patches of their changes.
	var toldErr error
	if !rules.InstanceEnded(instance.Status.Phase) {
		toldErr = r.tellOfMac(ctx, instance)
	}
	return time.Time{}, errors.Join(toldErr, r.advance(ctx, instance))
}

// advance takes an instance to the next step of its life.
func (r *reconciler) advance(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	pod, err := r.findPod(instance)
	if err != nil {
		return err
	}
	switch {
	case rules.InstanceEnded(instance.Status.Phase):
		return r.cleanUp(ctx, instance, pod)
	case instance.Status.MachineID != "":
		// There is, or was, a virtual machine: only the agent knows what becomes of it.
		return r.keep(ctx, instance, pod)
	case isToStop(instance):
		return r.stop(ctx, instance, pod)
	case instance.Status.PodName == "" || podIsToBeCreated(instance, pod):
		return r.start(ctx, instance)
	case pod == nil:
		return r.podIsGone(ctx, instance)
	default:
		return errors.Join(r.keep(ctx, instance, pod), r.showScheduling(ctx, instance, pod))
	}
}

// findPod returns the instance's own pod from the cache, or nil.
func (r *reconciler) findPod(instance *instancev1alpha1.MacOSInstance) (*corev1.Pod, error) {
	if instance.Status.PodName == "" {
		return nil, nil
	}
	pod, err := r.getPod(instance.Namespace, instance.Status.PodName)
	if apierrors.IsNotFound(err) || err == nil && !isPodOf(pod, instance) {
		return nil, nil
	}
	return pod, err
}

// isPodOf reports whether pod is the placeholder of instance. The name is in the instance's status,
// but the pod of an earlier instance may still have it. So a UID must agree until there is a
// virtual machine. After that, the pod is known by its request for a virtual machine, which no
// other pod has; keep restores the rest of its metadata.
func isPodOf(pod *corev1.Pod, instance *instancev1alpha1.MacOSInstance) bool {
	return pod.Name == instance.Status.PodName && (instance.Status.MachineID != "" && asksForVM(pod) ||
		metav1.IsControlledBy(pod, instance) || pod.Annotations[rules.AnnotationInstanceUID] == string(instance.UID))
}

func asksForVM(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		_, asks := c.Resources.Limits[rules.ResourceMacOSVM]
		return asks
	})
}

func isToStop(instance *instancev1alpha1.MacOSInstance) bool {
	return instance.DeletionTimestamp != nil || instance.Status.StopRequest != nil || instance.Status.Phase == instancev1alpha1.MacOSInstanceStopping
}

// podIsToBeCreated reports whether the pod's name is reserved and the pod is not known to have
// existed. An instance has one pod in its life: a deleted pod is not created again.
func podIsToBeCreated(instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) bool {
	if pod != nil || instance.Status.Phase != instancev1alpha1.MacOSInstancePending {
		return false
	}
	condition := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition)
	return condition == nil || slices.Contains([]string{ReasonCreatingPod, ReasonPodNameTaken, ReasonPodRefused}, condition.Reason)
}

// cleanUp removes the pod of an instance that has ended and, if the instance is being deleted, its
// finalizer.
func (r *reconciler) cleanUp(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	if err := r.removePod(ctx, pod); err != nil {
		return err
	}
	if err := r.keepBudget(ctx, instance); err != nil {
		return err
	}
	if instance.DeletionTimestamp == nil {
		return nil
	}
	released := instance.DeepCopy()
	if !removeFinalizer(released, rules.FinalizerVM) {
		return nil
	}
	return ignoreNotFound(r.update(ctx, instance, released))
}

func (r *reconciler) removePod(ctx context.Context, pod *corev1.Pod) error {
	if pod == nil || pod.DeletionTimestamp != nil {
		return nil
	}
	return ignoreNotFound(r.deletePod(ctx, pod))
}

// stop ends an instance that never had a virtual machine. While its pod is bound to the Node, only
// the agent may end it, as it may be about to start a virtual machine.
func (r *reconciler) stop(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	if pod != nil {
		if pod.Spec.NodeName == "" {
			return r.removePod(ctx, pod)
		}
		return nil
	}
	if pod, err := r.podNow(ctx, instance); pod != nil || err != nil {
		return err
	}
	return r.markStopped(ctx, instance, messageStopped)
}

// podIsGone ends an instance whose pod was deleted, unless the agent already acts on it.
func (r *reconciler) podIsGone(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	switch instance.Status.Phase {
	case instancev1alpha1.MacOSInstancePending, instancev1alpha1.MacOSInstanceScheduled:
	default:
		return nil
	}
	pod, err := r.podNow(ctx, instance)
	if err != nil {
		return err
	}
	if pod != nil {
		return r.keep(ctx, instance, pod)
	}
	return r.markStopped(ctx, instance, rules.DescribeLoss(instance.Status.PodName))
}

// podNow returns the instance's pod from the server, as the cache may be stale; nil if the pod does
// not exist.
func (r *reconciler) podNow(ctx context.Context, instance *instancev1alpha1.MacOSInstance) (*corev1.Pod, error) {
	if instance.Status.PodName == "" {
		return nil, nil
	}
	pod, err := r.readPod(ctx, instance.Namespace, instance.Status.PodName)
	if apierrors.IsNotFound(err) || err == nil && !isPodOf(pod, instance) {
		return nil, nil
	}
	return pod, err
}

func (r *reconciler) markStopped(ctx context.Context, instance *instancev1alpha1.MacOSInstance, message string) error {
	stopped := instance.DeepCopy()
	stopped.Status.Phase = instancev1alpha1.MacOSInstanceStopped
	stopped.Status.Message = message
	_, err := r.updateState(ctx, instance, stopped)
	return err
}

// start creates the placeholder pod once the Node admits it. The pod's name is stored first, so
// that a pod that was created and deleted is not created again.
func (r *reconciler) start(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	lease, err := r.getLease(instance.Namespace, instance.Spec.LeaseName)
	if apierrors.IsNotFound(err) || err == nil && (!predicates.BelongsTo(instance, lease) || !holdsMac(lease)) {
		return nil
	}
	if err != nil {
		return err
	}
	node, err := r.getNode(instance.Status.NodeName)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		_, err := r.show(ctx, instance, ReasonWaitingForNode, fmt.Sprintf("Node %s not found; the agent of the Mac has not registered it", instance.Status.NodeName))
		return err
	}
	if !predicates.AdmitsTenant(node, instance.Namespace) {
		_, err := r.show(ctx, instance, ReasonWaitingForNode, fmt.Sprintf("Node %s does not have the tenant's taint yet", node.Name))
		return err
	}
	if instance.Status.PodName == "" {
		if instance, err = r.showAs(ctx, instance, PodName(instance.Name), ReasonCreatingPod, "the placeholder pod is being created"); err != nil {
			return err
		}
	}
	// The registry accepts an instance only if its image exists, so the cache will have it.
	image, err := r.getImage(instance.Spec.ImageName)
	if err != nil {
		return err
	}
	err = r.keepBudget(ctx, instance)
	var pod *corev1.Pod
	if err == nil {
		pod, err = r.createPod(ctx, Placeholder(instance, image))
	}
	switch {
	case err == nil:
		klog.FromContext(ctx).V(1).Info("Placeholder pod created", "pod", klog.KObj(pod), "node", instance.Status.NodeName)
		return nil
	case apierrors.IsAlreadyExists(err):
		return r.nameIsTaken(ctx, instance)
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
		return r.refused(ctx, instance, err)
	default:
		return err
	}
}

// nameIsTaken chooses another name for the placeholder pod if a pod of another owner has its first
// name. It waits while the pod of an earlier instance of the same name may still be terminating.
func (r *reconciler) nameIsTaken(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	existing, err := r.readPod(ctx, instance.Namespace, instance.Status.PodName)
	if err != nil || isPodOf(existing, instance) {
		return err
	}
	if existing.DeletionTimestamp != nil && r.now().Before(existing.DeletionTimestamp.Add(stopMargin)) {
		return r.refused(ctx, instance, fmt.Errorf("pod %s of another owner is still being deleted", existing.Name))
	}
	name := nextPodName(instance)
	_, err = r.showAs(ctx, instance, name, ReasonPodNameTaken, fmt.Sprintf("pod name %s already in use; the placeholder pod is named %s", existing.Name, name))
	return err
}

// holdsMac reports whether the lease's Mac may still be used.
func holdsMac(lease *rackv1alpha1.MacNodeLease) bool {
	return lease.Status.Phase == rackv1alpha1.MacNodeLeaseBound || lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld
}

// refused shows why there is no pod. It returns an error so that the creation is retried: no event
// announces that a quota has room.
func (r *reconciler) refused(ctx context.Context, instance *instancev1alpha1.MacOSInstance, reason error) error {
	if _, err := r.show(ctx, instance, ReasonPodRefused, "placeholder pod refused: "+reason.Error()); err != nil {
		return err
	}
	return fmt.Errorf("creating the placeholder pod: %w", reason)
}

// showScheduling shows the scheduling result of the pod on the instance.
func (r *reconciler) showScheduling(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) error {
	var err error
	switch pod.Spec.NodeName {
	case "":
		reason, message := ReasonWaitingForScheduler, "waiting for the scheduler to bind the placeholder pod"
		if c := podScheduled(pod); c != nil && c.Status == corev1.ConditionFalse {
			if err := r.recordRejection(ctx, instance, c.Message); err != nil {
				return err
			}
			reason, message = ReasonUnschedulable, r.whyUnschedulable(ctx, instance, pod, c.Message)
		}
		_, err = r.show(ctx, instance, reason, message)
	case instance.Status.NodeName:
		_, err = r.show(ctx, instance, ReasonScheduled, "")
	default:
		_, err = r.show(ctx, instance, ReasonUnschedulable, fmt.Sprintf("placeholder pod bound to Node %s instead of %s", pod.Spec.NodeName, instance.Status.NodeName))
	}
	return err
}

// whyUnschedulable names the taints of the Node that the pod does not tolerate. The scheduler only
// counts Nodes, which does not help the tenant of a pod that fits one Node.
func (r *reconciler) whyUnschedulable(ctx context.Context, instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod, message string) string {
	node, err := r.getNode(instance.Status.NodeName)
	if err != nil {
		return message
	}
	var keeping []corev1.Taint
	for _, taint := range node.Spec.Taints {
		tolerated := taint.Effect == corev1.TaintEffectPreferNoSchedule || slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.ToleratesTaint(klog.FromContext(ctx), &taint, false)
		})
		if !tolerated {
			keeping = append(keeping, taint)
		}
	}
	if len(keeping) == 0 {
		return message
	}
	return fmt.Sprintf("Node %s is tainted %s, so the placeholder pod waits; the scheduler reports: %s", node.Name, strings.Join(rules.FormatTaints(keeping), ", "), message)
}

// recordRejection writes one ledger record when the scheduler has enforced a rule: the Node has no
// free slot, or belongs to another tenant.
func (r *reconciler) recordRejection(ctx context.Context, instance *instancev1alpha1.MacOSInstance, message string) error {
	condition := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition)
	if condition != nil && condition.Reason == ReasonUnschedulable {
		return nil
	}
	if !strings.Contains(message, rules.ResourceMacOSVM) {
		node, err := r.getNode(instance.Status.NodeName)
		if err != nil || predicates.AdmitsTenant(node, instance.Namespace) {
			return ignoreNotFound(err)
		}
	}
	err := r.record(ctx, rejection(instance, message))
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		klog.FromContext(ctx).Error(err, "Failed to record the scheduler's rejection", "instance", klog.KObj(instance))
		return nil
	}
	return err
}

func rejection(instance *instancev1alpha1.MacOSInstance, message string) *rackv1alpha1.AuditRecord {
	record := &rackv1alpha1.AuditRecord{
		ObjectMeta: metav1.ObjectMeta{Namespace: instance.Namespace, GenerateName: "rejected-"},
		Type:       rackv1alpha1.InstanceRejected,
		Chassis:    rackv1alpha1.AuditChassis{NodeName: instance.Status.NodeName, SerialNumber: instance.Status.SerialNumber},
		Tenant:     instance.Namespace,
		Instance:   &rackv1alpha1.AuditReference{Namespace: instance.Namespace, Name: instance.Name, UID: instance.UID},
		Details:    rackv1alpha1.AuditDetails{Layer: rackv1alpha1.LayerScheduler, Reason: ReasonUnschedulable, Message: message},
	}
	for _, ref := range instance.OwnerReferences {
		if ref.Kind == "MacNodeLease" && ref.Name == instance.Spec.LeaseName {
			record.Lease = &rackv1alpha1.AuditReference{Namespace: instance.Namespace, Name: ref.Name, UID: ref.UID}
		}
	}
	return record
}

func podScheduled(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodScheduled {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// show writes the state of the scheduling if it has changed, and returns the updated instance.
func (r *reconciler) show(ctx context.Context, before *instancev1alpha1.MacOSInstance, reason, message string) (*instancev1alpha1.MacOSInstance, error) {
	return r.showAs(ctx, before, before.Status.PodName, reason, message)
}

// showAs is show, and also sets the name of the placeholder pod.
func (r *reconciler) showAs(ctx context.Context, before *instancev1alpha1.MacOSInstance, podName, reason, message string) (*instancev1alpha1.MacOSInstance, error) {
	message = apiclient.Message(message)
	instance := before.DeepCopy()
	instance.Status.PodName = podName
	condition := metav1.Condition{
		Type:               instancev1alpha1.MacOSInstanceScheduledCondition,
		Status:             metav1.ConditionFalse,
		Reason:             reason,
		Message:            message,
		ObservedGeneration: instance.Generation,
		LastTransitionTime: metav1.NewTime(r.now()),
	}
	switch reason {
	case ReasonScheduled:
		condition.Status = metav1.ConditionTrue
		if instance.Status.Phase == instancev1alpha1.MacOSInstancePending {
			instance.Status.Phase = instancev1alpha1.MacOSInstanceScheduled
			instance.Status.Message = ""
		}
	default:
		instance.Status.Message = message
	}
	meta.SetStatusCondition(&instance.Status.Conditions, condition)
	if equality.Semantic.DeepEqual(before.Status, instance.Status) {
		return before, nil
	}
	return r.updateState(ctx, before, instance)
}

func removeFinalizer(obj metav1.Object, finalizer string) bool {
	var kept []string
	for _, f := range obj.GetFinalizers() {
		if f != finalizer {
			kept = append(kept, f)
		}
	}
	removed := len(kept) != len(obj.GetFinalizers())
	obj.SetFinalizers(kept)
	return removed
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
