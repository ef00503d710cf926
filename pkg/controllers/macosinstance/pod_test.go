package macosinstance

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	psaapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"k8s.io/utils/ptr"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

func TestPlaceholderMeetsRestrictedPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	level := psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}
	evaluate := func(pod *corev1.Pod) policy.AggregateCheckResult {
		return policy.AggregateCheckResults(evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec))
	}
	result := evaluate(Placeholder(anInstance(named), anImage()))
	assert.True(t, result.Allowed, result.ForbiddenDetail())

	// Prove that the evaluator rejects an unsafe pod.
	loose := Placeholder(anInstance(named), anImage())
	loose.Spec.Containers[0].SecurityContext = nil
	assert.False(t, evaluate(loose).Allowed)
}

// The pod names the Secrets and ConfigMaps of its instance, so that its Node can read them. It has
// no literal values.
func TestPlaceholderNamesTheEnvironment(t *testing.T) {
	assert.Empty(t, Placeholder(anInstance(named), anImage()).Spec.Containers[0].Env)
	instance := anInstance(named)
	instance.Spec.Env = []instancev1alpha1.EnvVar{
		{Name: "LITERAL", Value: "value"},
		{Name: "TOKEN", ValueFrom: &instancev1alpha1.EnvVarSource{SecretKeyRef: &instancev1alpha1.KeySelector{Name: "ci", Key: "token", Optional: ptr.To(true)}}},
		{Name: "URL", ValueFrom: &instancev1alpha1.EnvVarSource{ConfigMapKeyRef: &instancev1alpha1.KeySelector{Name: "ci", Key: "url"}}},
	}
	instance.Spec.EnvFrom = []instancev1alpha1.EnvFromSource{
		{Prefix: "S_", SecretRef: &instancev1alpha1.EnvSource{Name: "all"}}, {ConfigMapRef: &instancev1alpha1.EnvSource{Name: "all", Optional: ptr.To(true)}},
	}
	container := Placeholder(instance, anImage()).Spec.Containers[0]
	ci, all := corev1.LocalObjectReference{Name: "ci"}, corev1.LocalObjectReference{Name: "all"}
	assert.Equal(t, []corev1.EnvVar{
		{Name: "TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ci, Key: "token", Optional: ptr.To(true)}}},
		{Name: "URL", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ci, Key: "url"}}},
	}, container.Env)
	assert.Equal(t, []corev1.EnvFromSource{
		{Prefix: "S_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: all}}, {ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: all, Optional: ptr.To(true)}},
	}, container.EnvFrom)
}

func TestPlaceholder(t *testing.T) {
	instance := anInstance(named)
	pod := Placeholder(instance, anImage())

	assert.Equal(t, "acme", pod.Namespace)
	assert.Equal(t, "vm-1-vm", pod.Name)
	assert.Equal(t, "vm-1", pod.Labels["macrack.io/instance"])
	assert.Equal(t, "uid-vm-1", pod.Annotations["macrack.io/instance-uid"])
	assert.True(t, metav1.IsControlledBy(pod, instance))
	assert.Equal(t, "instance.macrack.io/v1alpha1", pod.OwnerReferences[0].APIVersion)

	require.Len(t, pod.Spec.Containers, 1)
	one := corev1.ResourceList{"macrack.io/macos-vm": *resource.NewQuantity(1, resource.DecimalSI)}
	assert.Equal(t, corev1.ResourceRequirements{Requests: one, Limits: one}, pod.Spec.Containers[0].Resources)
	assert.Equal(t, corev1.RestartPolicyNever, pod.Spec.RestartPolicy)
	assert.Equal(t, int64(60), *pod.Spec.TerminationGracePeriodSeconds)
	assert.False(t, *pod.Spec.AutomountServiceAccountToken)
	assert.False(t, *pod.Spec.EnableServiceLinks)
	assert.Empty(t, pod.Spec.NodeName, "the scheduler must enforce the limit of virtual machines per Mac")
	assert.Empty(t, pod.Spec.PriorityClassName)
}

// A Secret of another namespace is not named: a Secret of the same name may exist in the instance's
// namespace.
func TestPlaceholderNamesTheTenantsPullSecret(t *testing.T) {
	image := anImage()
	assert.Empty(t, Placeholder(anInstance(named), image).Spec.ImagePullSecrets)
	image.Spec.PullSecretRef = &imagev1alpha1.SecretReference{Namespace: "acme", Name: "robot"}
	assert.Equal(t, []corev1.LocalObjectReference{{Name: "robot"}}, Placeholder(anInstance(named), image).Spec.ImagePullSecrets)
	image.Spec.PullSecretRef.Namespace = "macrack-images"
	assert.Empty(t, Placeholder(anInstance(named), image).Spec.ImagePullSecrets)
}

func TestPlaceholderFitsItsNodeOnly(t *testing.T) {
	pod := Placeholder(anInstance(named), anImage())
	for _, tt := range []struct {
		name   string
		node   string
		taints []corev1.Taint
		want   bool
	}{
		{"its Node", "mac-1", []corev1.Taint{rules.TenantTaint("acme")}, true},
		{"another Node", "mac-2", []corev1.Taint{rules.TenantTaint("acme")}, false},
		{"a Node of another tenant", "mac-1", []corev1.Taint{rules.TenantTaint("globex")}, false},
		{"an unleased Node", "mac-1", []corev1.Taint{rules.UnleasedTaint()}, false},
		{"a Node with both taints", "mac-1", []corev1.Taint{rules.TenantTaint("acme"), rules.UnleasedTaint()}, false},
		{"an unreachable Node", "mac-1", []corev1.Taint{
			rules.TenantTaint("acme"),
			{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}, {Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		}, true},
		{"a Node that is to be emptied", "mac-1", []corev1.Taint{rules.TenantTaint("acme"), {Key: "example.com/repair", Value: "x", Effect: corev1.TaintEffectNoExecute}}, true},
		{"a Node closed to new pods", "mac-1", []corev1.Taint{rules.TenantTaint("acme"), {Key: "example.com/repair", Effect: corev1.TaintEffectNoSchedule}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: tt.node}, Spec: corev1.NodeSpec{Taints: tt.taints}}
			assert.Equal(t, tt.want, asksFor(pod, node) && tolerates(pod, node))
		})
	}
	for _, toleration := range pod.Spec.Tolerations {
		assert.Nil(t, toleration.TolerationSeconds, "a silent Mac keeps its virtual machines, however long")
	}
}

func asksFor(pod *corev1.Pod, node *corev1.Node) bool {
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	want := corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node.Name}}
	return len(terms) == 1 && len(terms[0].MatchExpressions) == 0 && assert.ObjectsAreEqual([]corev1.NodeSelectorRequirement{want}, terms[0].MatchFields)
}

func tolerates(pod *corev1.Pod, node *corev1.Node) bool {
	for i := range node.Spec.Taints {
		tolerated := false
		for j := range pod.Spec.Tolerations {
			toleration, taint := &pod.Spec.Tolerations[j], &node.Spec.Taints[i]
			tolerated = tolerated || toleration.Effect == taint.Effect && (toleration.Key == taint.Key || toleration.Key == "") &&
				(toleration.Operator == corev1.TolerationOpExists || toleration.Value == taint.Value)
		}
		if !tolerated {
			return false
		}
	}
	return true
}

func TestNamesOfAnyLength(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range []string{"a", strings.Repeat("a", 60), strings.Repeat("a", 61), strings.Repeat("a", 62), strings.Repeat("a", 63)} {
		instance := anInstance()
		instance.Name, instance.Status.PodName = name, PodName(name)
		pod := Placeholder(instance, anImage())
		assert.Empty(t, validation.IsDNS1123Label(pod.Name), pod.Name)
		assert.Equal(t, name, pod.Labels["macrack.io/instance"])
		assert.Empty(t, validation.IsValidLabelValue(pod.Labels["macrack.io/instance"]))
		assert.False(t, seen[pod.Name], "two instances with the pod %s", pod.Name)
		seen[pod.Name] = true
	}
	assert.Equal(t, PodName(strings.Repeat("a", 63)), PodName(strings.Repeat("a", 63)))
}

func TestNamesOfPodsThatNoTenantCanPredict(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range []string{"a", strings.Repeat("a", 60), strings.Repeat("a", 63)} {
		for _, uid := range []types.UID{"uid-1", "uid-2"} {
			instance := anInstance()
			instance.Name, instance.UID, instance.Status.PodName = name, uid, PodName(name)
			for range 3 {
				next := nextPodName(instance)
				assert.Equal(t, next, nextPodName(instance), "a stale instance leads to the same name")
				assert.Empty(t, validation.IsDNS1123Label(next), next)
				assert.False(t, seen[next], next)
				seen[next] = true
				instance.Status.PodName = next
			}
		}
	}
}
