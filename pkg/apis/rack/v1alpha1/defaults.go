package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/rules"
)

// SetDefaults_MacNodeLease sets the minimum duration that every lease has.
func SetDefaults_MacNodeLease(obj *MacNodeLease) {
	if obj.Spec.MinimumDuration == nil {
		obj.Spec.MinimumDuration = &metav1.Duration{Duration: rules.MinimumLeaseDuration}
	}
}
