package policies

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

func newPod(namespace string, change func(*corev1.PodSpec)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "x"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
	change(&pod.Spec)
	return pod
}

func tolerating(tolerations ...corev1.Toleration) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) { s.Tolerations = tolerations }
}

func requiring(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
}

func TestPods(t *testing.T) {
	plugin := newPlugin(t)
	vm := corev1.ResourceList{"macrack.io/macos-vm": resource.MustParse("1")}
	all := corev1.Toleration{Operator: corev1.TolerationOpExists}
	own := corev1.Toleration{Key: "macrack.io/tenant", Operator: corev1.TolerationOpEqual, Value: "acme", Effect: corev1.TaintEffectNoSchedule}
	theirs := own
	theirs.Value = "globex"
	unleased := corev1.Toleration{Key: "macrack.io/unleased", Operator: corev1.TolerationOpExists}
	expression := func(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	plain := func(*corev1.PodSpec) {}
	for name, tt := range map[string]struct {
		user      user.Info
		namespace string // acme
		old       func(*corev1.PodSpec)
		spec      func(*corev1.PodSpec)
		refused   string
	}{
		"an ordinary pod": {spec: plain},
		"a request":       {spec: func(s *corev1.PodSpec) { s.Containers[0].Resources.Requests = vm }, refused: "rule 1"},
		"a limit":         {spec: func(s *corev1.PodSpec) { s.Containers[0].Resources.Limits = vm }, refused: "rule 1"},
		"a request for zero": {spec: func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Limits = corev1.ResourceList{"macrack.io/macos-vm": resource.MustParse("0")}
		}, refused: "rule 1"},
		"an init container": {spec: func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Limits: vm}}}
		}, refused: "rule 1"},
		"the second container": {spec: func(s *corev1.PodSpec) {
			s.Containers = append(s.Containers, corev1.Container{Name: "b", Resources: corev1.ResourceRequirements{Limits: vm}})
		}, refused: "rule 1"},
		"a pod's own resources": {spec: func(s *corev1.PodSpec) { s.Resources = &corev1.ResourceRequirements{Limits: vm} }, refused: "rule 1"},
		"overhead":              {spec: func(s *corev1.PodSpec) { s.Overhead = vm }, refused: "rule 1"},
		"an administrator's":    {user: admin, spec: func(s *corev1.PodSpec) { s.Containers[0].Resources.Limits = vm }, refused: "rule 1"},
		"the system's":          {user: daemons, namespace: "kube-system", spec: func(s *corev1.PodSpec) { s.Containers[0].Resources.Limits = vm }, refused: "rule 1"},
		"a Node's static pod":   {user: agent, spec: func(s *corev1.PodSpec) { s.NodeName = "mac-1"; s.Containers[0].Resources.Limits = vm }, refused: "rule 1"},
		"another resource": {spec: func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("1")}
		}},

		"the tenant's taint":          {spec: tolerating(own), refused: "; create a MacOSInstance"},
		"any tenant's taint":          {spec: tolerating(corev1.Toleration{Key: "macrack.io/tenant", Operator: corev1.TolerationOpExists}), refused: "; create a MacOSInstance"},
		"a free Mac's taint":          {spec: tolerating(unleased), refused: "; create a MacOSInstance"},
		"a taint that will be":        {spec: tolerating(corev1.Toleration{Key: "macrack.io/other", Operator: corev1.TolerationOpExists}), refused: "; create a MacOSInstance"},
		"other taints":                {spec: tolerating(corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists}, corev1.Toleration{Key: "notmacrack.io/x", Operator: corev1.TolerationOpExists})},
		"a taint, added later":        {old: plain, spec: tolerating(own), refused: "; create a MacOSInstance"},
		"another taint, added later":  {old: tolerating(own), spec: tolerating(own, unleased), refused: "; create a MacOSInstance"},
		"a placeholder, labelled":     {old: tolerating(own), spec: tolerating(own)},
		"a placeholder, evicted soon": {old: tolerating(own), spec: tolerating(own, corev1.Toleration{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})},

		"every taint":                 {spec: tolerating(all), refused: "tolerates every taint"},
		"every NoSchedule taint":      {spec: tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}), refused: "tolerates every taint"},
		"every NoExecute taint":       {spec: tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})},
		"every taint, added later":    {old: plain, spec: tolerating(all), refused: "tolerates every taint"},
		"every taint, from before":    {old: tolerating(all), spec: tolerating(all)},
		"every taint, in a DaemonSet": {user: daemons, namespace: "monitoring", spec: tolerating(all), refused: "nodeSelector kubernetes.io/os: linux"},
		"every taint, on Linux": {user: daemons, namespace: "monitoring", spec: func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{all}
			s.NodeSelector = map[string]string{"kubernetes.io/os": "linux"}
		}},
		"every taint, on Macs": {user: daemons, namespace: "monitoring", spec: func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{all}
			s.NodeSelector = map[string]string{"kubernetes.io/os": "darwin"}
		}, refused: "tolerates every taint"},
		"every taint, by affinity": {spec: func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{all}
			s.Affinity = requiring(expression("kubernetes.io/os", "In", "linux", "windows"))
		}},
		"every taint, by affinity or else": {spec: func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{all}
			s.Affinity = requiring(expression("kubernetes.io/os", "In", "linux"), expression("zone", "In", "a"))
		}, refused: "tolerates every taint"},
		"every taint, but not on Macs": {spec: func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{all}
			s.Affinity = requiring(expression("macrack.io/mac", "DoesNotExist"))
		}},
		"every taint, by a weak affinity": {spec: func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{all}
			s.Affinity = requiring(expression("kubernetes.io/os", "NotIn", "linux"))
		}, refused: "tolerates every taint"},
		"every taint, of the system": {user: daemons, namespace: "kube-system", spec: tolerating(all)},

		"a Node by name":                      {spec: func(s *corev1.PodSpec) { s.NodeName = "mac-1" }, refused: "only schedulers and Nodes other than Macs may set it"},
		"a Node by name, in a Deployment":     {user: replicas, spec: func(s *corev1.PodSpec) { s.NodeName = "mac-1" }, refused: "only schedulers and Nodes other than Macs may set it"},
		"a Node by name, with rights":         {user: privileged, spec: func(s *corev1.PodSpec) { s.NodeName = "mac-1" }, refused: "only schedulers and Nodes other than Macs may set it"},
		"a Node by name, of an administrator": {user: admin, spec: func(s *corev1.PodSpec) { s.NodeName = "linux-1" }},
		"a Node's own static pod":             {user: kubelet, namespace: "kube-system", spec: func(s *corev1.PodSpec) { s.NodeName = "linux-1" }},
		"a Node's own static pod, elsewhere":  {user: kubelet, spec: func(s *corev1.PodSpec) { s.NodeName = "linux-1" }},
		"a Mac's static pod":                  {user: agent, namespace: "kube-system", spec: func(s *corev1.PodSpec) { s.NodeName = "mac-1" }, refused: "Nodes other than Macs"},
		"a Mac's static pod, of a tenant":     {user: agent, spec: func(s *corev1.PodSpec) { s.NodeName = "mac-1" }, refused: "Nodes other than Macs"},
		"a pod that is scheduled":             {old: func(s *corev1.PodSpec) { s.NodeName = "linux-1" }, spec: func(s *corev1.PodSpec) { s.NodeName = "linux-1" }},
	} {
		t.Run(name, func(t *testing.T) {
			r := request{
				user: tt.user, operation: admission.Create, namespace: tt.namespace,
				resource: corev1.SchemeGroupVersion.WithResource("pods"), kind: corev1.SchemeGroupVersion.WithKind("Pod"),
			}
			if r.user == nil {
				r.user = tenant
			}
			if r.namespace == "" {
				r.namespace = "acme"
			}
			r.new = newPod(r.namespace, tt.spec)
			if tt.old != nil {
				r.operation, r.old = admission.Update, newPod(r.namespace, tt.old)
			}
			check(t, validate(t, plugin, r), tt.refused)
		})
	}
	for _, subresource := range []string{"ephemeralcontainers", "resize"} {
		check(t, validate(t, plugin, request{
			user: tenant, operation: admission.Update, namespace: "acme", subresource: subresource,
			resource: corev1.SchemeGroupVersion.WithResource("pods"), kind: corev1.SchemeGroupVersion.WithKind("Pod"),
			old: newPod("acme", plain), new: newPod("acme", tolerating(all)),
		}), "tolerates every taint")
	}
}

func TestBindings(t *testing.T) {
	plugin := newPlugin(t)
	for who, refused := range map[user.Info]string{admin: "", scheduler: "", daemons: "", privileged: "only schedulers", tenant: "only schedulers", agent: "only schedulers"} {
		for resource, subresource := range map[string]string{"pods": "binding", "bindings": ""} {
			check(t, validate(t, plugin, request{
				user: who, operation: admission.Create, namespace: "acme", subresource: subresource,
				resource: corev1.SchemeGroupVersion.WithResource(resource), kind: corev1.SchemeGroupVersion.WithKind("Binding"),
				new: &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "x"}, Target: corev1.ObjectReference{Kind: "Node", Name: "mac-1"}},
			}), refused)
		}
	}
}
