package v1alpha1

import "k8s.io/apimachinery/pkg/api/meta"

// AwaitsMac reports whether the controllers failed to verify the image, so that a Mac has to.
func (i *MacOSImage) AwaitsMac() bool {
	ready := meta.FindStatusCondition(i.Status.Conditions, MacOSImageReadyCondition)
	if i.Status.Phase != MacOSImagePending || ready == nil || ready.ObservedGeneration != i.Generation {
		return false
	}
	switch ready.Reason {
	case ReasonUnreachable, ReasonUnauthorized, ReasonPullSecretUnreadable:
		return true
	}
	return false
}
