package macosinstance

import (
	corev1 "k8s.io/api/core/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// environment returns the variables of instance that refer to Secrets and ConfigMaps. A pod that
// names them lets its Node, and so the Mac's agent, read them. The pod needs no literal values.
func environment(instance *instancev1alpha1.MacOSInstance) []corev1.EnvVar {
	var all []corev1.EnvVar
	for _, v := range instance.Spec.Env {
		if v.ValueFrom == nil {
			continue
		}
		source := &corev1.EnvVarSource{}
		if ref := v.ValueFrom.SecretKeyRef; ref != nil {
			source.SecretKeyRef = &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: ref.Name}, Key: ref.Key, Optional: ref.Optional}
		}
		if ref := v.ValueFrom.ConfigMapKeyRef; ref != nil {
			source.ConfigMapKeyRef = &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: ref.Name}, Key: ref.Key, Optional: ref.Optional}
		}
		all = append(all, corev1.EnvVar{Name: v.Name, ValueFrom: source})
	}
	return all
}

// environmentSources returns the Secrets and ConfigMaps of instance whose keys are variables.
func environmentSources(instance *instancev1alpha1.MacOSInstance) []corev1.EnvFromSource {
	var all []corev1.EnvFromSource
	for _, from := range instance.Spec.EnvFrom {
		source := corev1.EnvFromSource{Prefix: from.Prefix}
		if ref := from.SecretRef; ref != nil {
			source.SecretRef = &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: ref.Name}, Optional: ref.Optional}
		}
		if ref := from.ConfigMapRef; ref != nil {
			source.ConfigMapRef = &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: ref.Name}, Optional: ref.Optional}
		}
		all = append(all, source)
	}
	return all
}
