package macosinstance

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/rules"
)

// recordRejection writes one ledger record when the scheduler has enforced a rule: the Node has no
// free slot, or belongs to another tenant.
func (r *reconciler) recordRejection(ctx context.Context, instance *instancev1alpha1.MacOSInstance, message string) error {
	condition := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceScheduledCondition)
	if condition != nil && condition.Reason == ReasonUnschedulable {
		return nil
	}
	if !strings.Contains(message, rules.ResourceMacOSVM) {
		if refused, err := r.refusesTenant(instance); err != nil || !refused {
			return err
		}
	}
	_, err := r.recordClient.AuditRecords(instance.Namespace).Create(ctx, rejection(instance, message), shared.CreateOptions)
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		klog.FromContext(ctx).Error(err, "Failed to record the scheduler's rejection", "instance", klog.KObj(instance))
		return nil
	}
	return err
}

// refusesTenant reports whether the Node of instance exists and does not admit its tenant.
func (r *reconciler) refusesTenant(instance *instancev1alpha1.MacOSInstance) (bool, error) {
	node, err := r.nodes.Get(instance.Status.NodeName)
	if err != nil {
		return false, shared.IgnoreNotFound(err)
	}
	return !predicates.AdmitsTenant(node, instance.Namespace), nil
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
