package macosinstance

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/conditions"
	"macrack.io/macrack/pkg/rules"
)

// DeriveConditions sets the conditions of an instance that neither its agent nor the controllers
// write. The spec of an instance never changes, so all conditions are of its generation.
func DeriveConditions(i *instance.MacOSInstance, now time.Time) {
	summarize(i).Set(&i.Status.Conditions, now)
	conditions.Observe(i.Status.Conditions, i.Generation)
	conditions.Fit(i.Status.Conditions)
}

// lasting are the reasons of ImageReady=False that need intervention.
var lasting = map[string]bool{
	instance.ReasonImageNotFound:       true,
	instance.ReasonPullUnauthorized:    true,
	instance.ReasonInsufficientStorage: true,
}

// lastingEnvironment are the reasons of EnvironmentReady=False that need intervention.
var lastingEnvironment = map[string]bool{
	instance.ReasonSecretNotFound:     true,
	instance.ReasonConfigMapNotFound:  true,
	instance.ReasonEnvironmentInvalid: true,
}

// summarize returns whether the virtual machine of an instance is running and responding, and
// otherwise whether that needs intervention.
func summarize(i *instance.MacOSInstance) conditions.Summary {
	condition := func(name string) metav1.Condition {
		return conditions.Get(i.Status.Conditions, name)
	}
	image, guest, mac := condition(instance.MacOSInstanceImageReady), condition(instance.MacOSInstanceGuestReady), condition(instance.MacOSInstanceMacReady)
	environment := condition(instance.MacOSInstanceEnvironmentReady)
	offline := mac.Status == metav1.ConditionFalse && mac.Reason == rack.ReasonMacOffline
	quarantined := mac.Status == metav1.ConditionFalse && !offline
	s := conditions.Summary{
		Ready: metav1.ConditionFalse, Abnormal: conditions.Reconciling,
		Reason: cmp.Or(string(i.Status.Phase), string(instance.MacOSInstancePending)), Message: i.Status.Message,
	}
	switch i.Status.Phase {
	case instance.MacOSInstanceStopped, instance.MacOSInstanceFailed:
		s.Abnormal = conditions.Stalled // an ended instance does not start again
		if request := i.Status.StopRequest; request != nil && rules.StoppedByDeadline(i.Spec.ActiveDeadlineSeconds, request.Reason) {
			s.Reason = rules.ReasonDeadlineExceeded
		}
	case instance.MacOSInstanceStopping:
	case instance.MacOSInstanceRunning:
		switch {
		case offline: // the virtual machine may still be running
			s.Ready, s.Reason, s.Message = metav1.ConditionUnknown, mac.Reason, mac.Message
		case guest.Status == metav1.ConditionFalse || guest.Status == metav1.ConditionUnknown:
			s.Reason, s.Message = guest.Reason, cmp.Or(s.Message, guest.Message)
		default:
			s.Ready, s.Abnormal = metav1.ConditionTrue, ""
			s.Message = "the virtual machine runs"
			if guest.Status == metav1.ConditionTrue {
				s.Reason, s.Message = guest.Reason, "the virtual machine runs, and its guest agent answers"
			}
		}
	default:
		switch {
		case image.Status == metav1.ConditionFalse && lasting[image.Reason]:
			s.Abnormal, s.Reason, s.Message = conditions.Stalled, image.Reason, image.Message
		case environment.Status == metav1.ConditionFalse && lastingEnvironment[environment.Reason]:
			s.Abnormal, s.Reason, s.Message = conditions.Stalled, environment.Reason, environment.Message
		case quarantined:
			s.Abnormal, s.Reason, s.Message = conditions.Stalled, mac.Reason, mac.Message
		case offline:
			s.Reason, s.Message = mac.Reason, mac.Message
		}
	}
	return s
}
