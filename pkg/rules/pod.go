package rules

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// deleters describes the component that deleted a pod, by the reason of the condition
// DisruptionTarget.
var deleters = map[string]string{
	"EvictionByEvictionAPI":               "by an eviction, as kubectl drain asks for",
	corev1.PodReasonPreemptionByScheduler: "by kube-scheduler, for a pod of a higher priority",
	"DeletionByTaintManager":              "by kube-controller-manager, because of a taint of the Node",
	"DeletionByPodGC":                     "by kube-controller-manager, because the Node does not exist",
	corev1.PodReasonTerminationByKubelet:  "by the agent",
}

// DescribeDeletion describes the deletion of a placeholder pod: its time, actor and cause, as far
// as the pod has them.
func DescribeDeletion(pod *corev1.Pod) string {
	at := ""
	if pod.DeletionTimestamp != nil {
		since := pod.DeletionTimestamp.Time
		if grace := pod.DeletionGracePeriodSeconds; grace != nil {
			since = since.Add(-time.Duration(*grace) * time.Second)
		}
		at = " at " + since.UTC().Format(time.RFC3339)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.DisruptionTarget || c.Status != corev1.ConditionTrue {
			continue
		}
		by, known := deleters[c.Reason]
		if !known {
			by = "because of " + c.Reason
		}
		return fmt.Sprintf("the placeholder pod %s was deleted%s %s (%s); %s", pod.Name, at, by, c.Message, namesUser)
	}
	return fmt.Sprintf("the placeholder pod %s was deleted%s by a user or controller of the cluster; %s", pod.Name, at, namesUser)
}

// DescribeLoss is DescribeDeletion for a pod of which only the name is known.
func DescribeLoss(podName string) string {
	return fmt.Sprintf("the placeholder pod %s was deleted by a user or controller of the cluster; %s", podName, namesUser)
}

const namesUser = "the audit log of kube-apiserver names the user"
