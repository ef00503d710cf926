package macosinstance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodMetadataIsRestored(t *testing.T) {
	for _, tt := range []scenario{
		{
			name: "the label is removed: the pod is not in the cache, and gets it back", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			podNow: withMeta(func(m *metav1.ObjectMeta) { m.Labels = nil }), calls: []string{"read vm-1-vm", "patch vm-1-vm"},
		},
		{
			name: "the label names another instance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: withMeta(func(m *metav1.ObjectMeta) { m.Labels["macrack.io/instance"] = "other" }), calls: []string{"patch vm-1-vm"},
		},
		{
			name: "the annotation is removed", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: withMeta(func(m *metav1.ObjectMeta) { m.Annotations = nil }), calls: []string{"patch vm-1-vm"},
		},
		{
			name: "the annotation names another instance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: withMeta(func(m *metav1.ObjectMeta) { m.Annotations["macrack.io/instance-uid"] = "other" }), calls: []string{"patch vm-1-vm"},
		},
		{
			name: "the owner is removed", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: withMeta(func(m *metav1.ObjectMeta) { m.OwnerReferences = nil }), calls: []string{"patch vm-1-vm"},
		},
		{
			name: "the owner is removed before there is a virtual machine", instance: anInstance(withPod(ReasonScheduled, "")),
			pod: withMeta(func(m *metav1.ObjectMeta) { m.OwnerReferences = nil }), calls: []string{"patch vm-1-vm", "status Scheduled vm-1-vm True Scheduled"},
		},
		{
			name: "a ReplicaSet adopts the pod", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: withMeta(func(m *metav1.ObjectMeta) {
				m.OwnerReferences[0].Kind, m.OwnerReferences[0].UID = "ReplicaSet", "other"
			}), calls: []string{"patch vm-1-vm"},
		},
		{
			name: "a second owner keeps the pod", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: withMeta(func(m *metav1.ObjectMeta) {
				m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{UID: "other"})
			}), calls: []string{"patch vm-1-vm"},
		},
		{
			name: "all is removed", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			podNow: withMeta(func(m *metav1.ObjectMeta) { m.Labels, m.Annotations, m.OwnerReferences = nil, nil, nil }), calls: []string{"read vm-1-vm", "patch vm-1-vm"},
		},
		{
			name: "labels and finalizers of others stay", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: withMeta(func(m *metav1.ObjectMeta) { m.Labels["team"], m.Finalizers = "ios", []string{"example.com/x"} }),
		},
		{
			name: "a pod that is being deleted is left alone", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: withMeta(func(m *metav1.ObjectMeta) { m.Labels["macrack.io/instance"], m.DeletionTimestamp = "other", &noon }),
		},
		{
			name: "an instance that is being deleted leaves its pod to the garbage collector", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running, deleted),
			pod: withMeta(func(m *metav1.ObjectMeta) { m.OwnerReferences = nil }),
		},
		{name: "a deleted pod", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), calls: []string{"read vm-1-vm"}},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestMetadataPatch(t *testing.T) {
	pod := aPod("mac-1")
	pod.ResourceVersion = "7"
	none, err := metadataPatch(anInstance(named), pod, false)
	require.NoError(t, err)
	assert.Nil(t, none)
	pod.Labels = map[string]string{"team": "ios"}
	pod.Annotations = map[string]string{"note": "x", "macrack.io/maintenance": "true"}
	pod.OwnerReferences = nil
	patch, err := metadataPatch(anInstance(named), pod, false)
	require.NoError(t, err)
	assert.JSONEq(t, `{"metadata":{"uid":"uid-pod","resourceVersion":"7","labels":{"macrack.io/instance":"vm-1","macrack.io/lease":"build"},
		"annotations":{"macrack.io/instance-uid":"uid-vm-1","macrack.io/maintenance":null},
		"ownerReferences":[{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstance","name":"vm-1","uid":"uid-vm-1","controller":true,"blockOwnerDeletion":true}]}}`, string(patch))
	patch, err = metadataPatch(anInstance(named), aPod("mac-1"), true)
	require.NoError(t, err)
	assert.Contains(t, string(patch), `"macrack.io/maintenance":"true"`)
}
