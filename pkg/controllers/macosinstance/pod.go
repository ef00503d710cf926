package macosinstance

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

const (
	// placeholderImage is never pulled: no kubelet runs on a Mac.
	placeholderImage = "macrack.io/macos-vm:placeholder"

	// stopMargin is added to the guest's own shutdown time in the pod's termination grace period.
	stopMargin = 30 * time.Second

	// unprivileged is a user ID other than root's, as the restricted Pod Security Standard demands.
	unprivileged = 65532

	podSuffix = "-vm"
)

// PodName returns the name of the placeholder pod of an instance. If the suffix does not fit into a
// DNS label, a hash replaces the end of the instance's name.
func PodName(instance string) string { return withSuffix(instance, podSuffix) }

// nextPodName returns the name of the placeholder pod if another pod has its first name. It derives
// from the instance's UID, so no pod can take it in advance.
func nextPodName(instance *instancev1alpha1.MacOSInstance) string {
	return withSuffix(instance.Name, podSuffix+"-"+hash(string(instance.UID)+"/"+instance.Status.PodName))
}

func withSuffix(name, suffix string) string {
	if room := validation.DNS1123LabelMaxLength - len(suffix); len(name) > room {
		end := "-" + hash(name)
		name = name[:room-len(end)] + end
	}
	return name + suffix
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:10]
}

// pullSecrets returns the image's Secret if it is in the instance's namespace. A pod that names a
// Secret lets its Node, and so the Mac's agent, read it.
func pullSecrets(instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage) []corev1.LocalObjectReference {
	if ref := image.Spec.PullSecretRef; ref != nil && ref.Namespace == instance.Namespace {
		return []corev1.LocalObjectReference{{Name: ref.Name}}
	}
	return nil
}

// placeholderMeta returns the metadata by which the placeholder pod names its instance.
func placeholderMeta(instance *instancev1alpha1.MacOSInstance) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:        instance.Status.PodName,
		Namespace:   instance.Namespace,
		Labels:      map[string]string{rules.LabelInstance: instance.Name, rules.LabelLease: instance.Spec.LeaseName},
		Annotations: map[string]string{rules.AnnotationInstanceUID: string(instance.UID)},
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(instance, instancev1alpha1.SchemeGroupVersion.WithKind("MacOSInstance")),
		},
	}
}

// Placeholder returns the pod that stands for the instance's virtual machine in Kubernetes. It
// takes one slot of the lease's Node; the Node's agent runs the virtual machine while the pod
// exists.
func Placeholder(instance *instancev1alpha1.MacOSInstance, image *imagev1alpha1.MacOSImage) *corev1.Pod {
	slot := corev1.ResourceList{rules.ResourceMacOSVM: *resource.NewQuantity(1, resource.DecimalSI)}
	tenant := rules.TenantTaint(instance.Namespace)
	return &corev1.Pod{
		ObjectMeta: placeholderMeta(instance),
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			ImagePullSecrets:              pullSecrets(instance, image),
			TerminationGracePeriodSeconds: ptr.To(int64((rules.DefaultStopGrace + stopMargin).Seconds())),
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   ptr.To(true),
				RunAsUser:      ptr.To[int64](unprivileged),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:      "macos-vm",
				Image:     placeholderImage,
				Env:       environment(instance),
				EnvFrom:   environmentSources(instance),
				Resources: corev1.ResourceRequirements{Requests: slot, Limits: slot},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchFields: []corev1.NodeSelectorRequirement{{
							Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{instance.Status.NodeName},
						}},
					}},
				},
			}},
			Tolerations: []corev1.Toleration{
				{Key: tenant.Key, Operator: corev1.TolerationOpEqual, Value: tenant.Value, Effect: tenant.Effect},
				// The pod tolerates all NoExecute taints: a virtual machine cannot move, and a
				// missed heartbeat does not prove that it ended.
				{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
			},
		},
	}
}
