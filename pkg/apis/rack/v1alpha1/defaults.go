package v1alpha1

import (
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/rules"
)

// SetDefaults_MacNodeLease sets the default minimum duration of a lease.
func SetDefaults_MacNodeLease(obj *MacNodeLease) {
	if obj.Spec.MinimumDuration == nil {
		obj.Spec.MinimumDuration = scalar.NewDuration(rules.MinimumLeaseDuration)
	}
}
