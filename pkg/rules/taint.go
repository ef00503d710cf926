package rules

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// UnleasedTaint returns the taint of a Node whose Mac has no lease.
func UnleasedTaint() corev1.Taint {
	return corev1.Taint{Key: TaintUnleased, Effect: corev1.TaintEffectNoSchedule}
}

// TenantTaint returns the taint of a Node whose Mac is leased by the tenant.
func TenantTaint(namespace string) corev1.Taint {
	return corev1.Taint{Key: TaintTenant, Value: namespace, Effect: corev1.TaintEffectNoSchedule}
}

// IsTenancyTaint reports whether the taint controls which tenant may use a Mac.
func IsTenancyTaint(t corev1.Taint) bool { return t.Key == TaintUnleased || t.Key == TaintTenant }

// HasOnlyTaint reports whether want is the only tenancy taint among the taints.
func HasOnlyTaint(taints []corev1.Taint, want corev1.Taint) bool {
	found := false
	for _, t := range taints {
		switch {
		case !IsTenancyTaint(t):
		case t.Key != want.Key || t.Value != want.Value || t.Effect != want.Effect:
			return false
		default:
			found = true
		}
	}
	return found
}

// FormatTaints returns the taints as key=value:effect, or key:effect if the value is empty, in
// order.
func FormatTaints(taints []corev1.Taint) []string {
	list := make([]string, 0, len(taints))
	for _, t := range taints {
		list = append(list, t.ToString())
	}
	slices.Sort(list)
	return list
}

// ParseTaints is the inverse of FormatTaints; a key=:effect has an empty value.
func ParseTaints(list []string) []corev1.Taint {
	taints := make([]corev1.Taint, 0, len(list))
	for _, text := range list {
		name, effect, _ := strings.Cut(text, ":")
		key, value, _ := strings.Cut(name, "=")
		taints = append(taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return taints
}
