package policies

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const system = "macrack-system"

// deployed returns the NetworkPolicies of artifacts/deploy and the pods of its workloads, by name.
func deployed(t *testing.T) (policies []*networkingv1.NetworkPolicy, pods map[string]corev1.PodTemplateSpec) {
	t.Helper()
	const folder = "../../artifacts/deploy"
	source, err := os.ReadFile(filepath.Join(folder, "kustomization.yaml"))
	require.NoError(t, err)
	var kustomization struct{ Resources []string }
	require.NoError(t, yaml.Unmarshal(source, &kustomization))
	pods = map[string]corev1.PodTemplateSpec{}
	for _, name := range kustomization.Resources {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		source, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		for _, document := range strings.Split(string(source), "\n---\n") {
			obj, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
			require.NoError(t, err, name)
			switch obj := obj.(type) {
			case *networkingv1.NetworkPolicy:
				policies = append(policies, obj)
			case *appsv1.Deployment:
				pods[obj.Name] = obj.Spec.Template
			case *appsv1.StatefulSet:
				pods[obj.Name] = obj.Spec.Template
			}
		}
	}
	require.NotEmpty(t, policies)
	return policies, pods
}

func matches(t *testing.T, selector *metav1.LabelSelector, set map[string]string) bool {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	require.NoError(t, err)
	return s.Matches(labels.Set(set))
}

// pod is the source of a connection.
type pod struct {
	namespace       string
	namespaceLabels map[string]string
	labels          map[string]string
}

// lets reports whether a policy admits a connection of a pod to a port of the selected pods.
func lets(t *testing.T, policy *networkingv1.NetworkPolicy, port int32, from pod) bool {
	t.Helper()
	ns := map[string]string{corev1.LabelMetadataName: from.namespace}
	for k, v := range from.namespaceLabels {
		ns[k] = v
	}
	return slices.ContainsFunc(policy.Spec.Ingress, func(rule networkingv1.NetworkPolicyIngressRule) bool {
		require.NotEmpty(t, rule.Ports, "all ports")
		require.NotEmpty(t, rule.From, "a rule without sources admits all")
		return slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool {
			first := p.Port.IntVal
			return port == first || p.EndPort != nil && port >= first && port <= *p.EndPort
		}) && slices.ContainsFunc(rule.From, func(peer networkingv1.NetworkPolicyPeer) bool {
			switch {
			case peer.IPBlock != nil:
				return false // pods are excepted
			case peer.NamespaceSelector == nil:
				return from.namespace == system && matches(t, peer.PodSelector, from.labels)
			}
			return matches(t, peer.NamespaceSelector, ns) && (peer.PodSelector == nil || matches(t, peer.PodSelector, from.labels))
		})
	})
}

func TestNetworkPolicies(t *testing.T) {
	policies, pods := deployed(t)
	of := func(name string) pod { return pod{namespace: system, labels: pods[name].Labels} }
	from := map[string]pod{
		"etcd": of("macrack-etcd"), "apiserver": of("macrack-apiserver"), "controllers": of("macrack-controllers"),
		"a tenant":                  {namespace: "acme", labels: pods["macrack-apiserver"].Labels},
		"kube-system":               {namespace: "kube-system", labels: map[string]string{"k8s-app": "kube-dns"}},
		"konnectivity":              {namespace: "kube-system", labels: map[string]string{"k8s-app": "konnectivity-agent"}},
		"konnectivity, of a tenant": {namespace: "acme", labels: map[string]string{"k8s-app": "konnectivity-agent"}},
		"monitoring":                {namespace: "metrics", namespaceLabels: map[string]string{"macrack.io/monitoring": "true"}},
	}
	want := map[string][]string{
		"macrack-apiserver:6443":   {"konnectivity", "monitoring"},
		"macrack-etcd:2379":        {"apiserver", "etcd"},
		"macrack-etcd:2380":        {"etcd"},
		"macrack-etcd:2381":        {"etcd"},
		"macrack-controllers:8080": {"monitoring"},
	}
	have := map[string][]string{}
	for name, template := range pods {
		var selecting []*networkingv1.NetworkPolicy
		for _, policy := range policies {
			assert.Equal(t, system, policy.Namespace)
			if matches(t, &policy.Spec.PodSelector, template.Labels) && slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
				selecting = append(selecting, policy)
			}
		}
		require.Len(t, selecting, 1, name)
		for _, port := range template.Spec.Containers[0].Ports {
			key := fmt.Sprintf("%s:%d", name, port.ContainerPort)
			have[key] = nil
			for who, p := range from {
				if lets(t, selecting[0], port.ContainerPort, p) {
					have[key] = append(have[key], who)
				}
			}
			slices.Sort(have[key])
		}
	}
	assert.Equal(t, want, have)
}

// kube-apiserver is in the network of its machine; the policy must not admit pods by their
// addresses.
func TestNetworkPolicyOfKubeAPIServer(t *testing.T) {
	policies, _ := deployed(t)
	for _, policy := range policies {
		for _, rule := range policy.Spec.Ingress {
			for _, peer := range rule.From {
				if peer.IPBlock == nil {
					continue
				}
				assert.Equal(t, "macrack-apiserver", policy.Name)
				assert.NotEmpty(t, peer.IPBlock.Except, "the pod network")
			}
		}
	}
}
