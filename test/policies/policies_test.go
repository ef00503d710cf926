// Package policies tests the admission policies in artifacts/policies with the plugin that
// evaluates them in kube-apiserver.
package policies

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/manifest/loader"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
)

const folder = "../../artifacts/policies"

// The static manifests are the same policies under the names that kube-apiserver requires in files.
func TestStaticManifests(t *testing.T) {
	for _, name := range files(t) {
		source, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		static, err := os.ReadFile(filepath.Join(folder, "static", name))
		require.NoError(t, err, "run hack/update-policies.sh")
		text := string(source)
		for _, policy := range []string{"pods", "bindings", "nodes", "nodedeletions", "deviceclasses", "retired", "controllers.pods", "controllers.nodes", "controllers.poddisruptionbudgets", "placeholders", "placeholderdeletions", "placeholderbudgets", "quotas", "roles"} {
			text = strings.ReplaceAll(text, "ame: "+policy+".macrack.io\n", "ame: "+policy+".macrack.io.static.k8s.io\n")
		}
		_, have, _ := strings.Cut(string(static), "\n")
		assert.Equal(t, text, have, "run hack/update-policies.sh")
	}
}

// files returns the manifests that kubectl apply -k applies.
func files(t *testing.T) []string {
	out, err := exec.Command("sh", "-c", "cd "+folder+" && ls *.yaml").Output()
	require.NoError(t, err)
	var names []string
	for _, name := range strings.Fields(string(out)) {
		if name != "kustomization.yaml" {
			names = append(names, name)
		}
	}
	require.NotEmpty(t, names)
	return names
}

// newPlugin returns the plugin with the static manifests.
func newPlugin(t *testing.T) *validating.Plugin {
	t.Helper()
	plugin, err := validating.NewPlugin(nil)
	require.NoError(t, err)
	dir, err := filepath.Abs(filepath.Join(folder, "static"))
	require.NoError(t, err)
	plugin.SetStaticManifestsDir(dir)
	plugin.SetAPIServerID("test")
	plugin.SetManifestLoaders(&initializer.ManifestLoaders{LoadValidatingPolicyManifests: load})
	var namespaces []runtime.Object
	for _, name := range []string{"acme", "kube-system", "kube-node-lease", "macrack-system", "macrack-images", "monitoring"} {
		namespaces = append(namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	client := fake.NewClientset(namespaces...)
	factory := informers.NewSharedInformerFactory(client, 0)
	plugin.SetExternalKubeInformerFactory(factory)
	plugin.SetExternalKubeClientSet(client)
	plugin.SetDynamicClient(dynamicfake.NewSimpleDynamicClient(scheme.Scheme))
	plugin.SetRESTMapper(testrestmapper.TestOnlyStaticRESTMapper(scheme.Scheme))
	plugin.SetDrainedNotification(t.Context().Done())
	plugin.SetUnconditionalAuthorizer(authorizer.AuthorizerFunc(authorize))
	require.NoError(t, plugin.ValidateInitialization())
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	require.Eventually(t, plugin.WaitForReady, 2*time.Minute, 10*time.Millisecond)
	return plugin
}

func load(dir string) ([]*admissionregistrationv1.ValidatingAdmissionPolicy, []*admissionregistrationv1.ValidatingAdmissionPolicyBinding, string, error) {
	defaulted := func(match *admissionregistrationv1.MatchResources) {
		match.MatchPolicy = ptr.To(admissionregistrationv1.Equivalent)
		match.NamespaceSelector, match.ObjectSelector = &metav1.LabelSelector{}, &metav1.LabelSelector{}
		for i := range match.ResourceRules {
			match.ResourceRules[i].Scope = ptr.To(admissionregistrationv1.AllScopes)
		}
	}
	return loader.LoadPolicyManifests(dir, scheme.Codecs.UniversalDeserializer(),
		func(obj runtime.Object) ([]*admissionregistrationv1.ValidatingAdmissionPolicy, error) {
			policy, ok := obj.(*admissionregistrationv1.ValidatingAdmissionPolicy)
			if !ok {
				return nil, loader.ErrUnrecognizedType
			}
			defaulted(policy.Spec.MatchConstraints)
			return []*admissionregistrationv1.ValidatingAdmissionPolicy{policy}, nil
		},
		func(obj runtime.Object) ([]*admissionregistrationv1.ValidatingAdmissionPolicyBinding, error) {
			binding, ok := obj.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
			if !ok {
				return nil, loader.ErrUnrecognizedType
			}
			return []*admissionregistrationv1.ValidatingAdmissionPolicyBinding{binding}, nil
		},
		func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) string { return b.Spec.PolicyName },
	)
}

var (
	admin       = &user.DefaultInfo{Name: "admin", Groups: []string{"system:masters"}}
	scheduler   = &user.DefaultInfo{Name: "system:kube-scheduler"}
	daemons     = &user.DefaultInfo{Name: "system:serviceaccount:kube-system:daemon-set-controller"}
	replicas    = &user.DefaultInfo{Name: "system:serviceaccount:kube-system:replicaset-controller"}
	controllers = &user.DefaultInfo{Name: "system:serviceaccount:macrack-system:macrack-controllers"}
	agent       = &user.DefaultInfo{Name: "system:node:mac-1", Groups: []string{"system:nodes"}}
	retired     = &user.DefaultInfo{Name: "system:node:mac-9", Groups: []string{"system:nodes"}}
	kubelet     = &user.DefaultInfo{Name: "system:node:linux-1", Groups: []string{"system:nodes"}}
	operator    = &user.DefaultInfo{Name: "operator"} // of Nodes, not of Macs
	cleaner     = &user.DefaultInfo{Name: "system:serviceaccount:kube-system:cloud-node-lifecycle-controller"}
	tenant      = &user.DefaultInfo{Name: "acme"}
	privileged  = &user.DefaultInfo{Name: "privileged"} // a tenant that may bind pods in its namespace by mistake
)

// authorize implements RBAC: binding pods, listing Nodes, being a Mac, being retired and deleting
// Macs.
func authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	allowed := map[string][]string{
		"create pods/binding":  {admin.Name, scheduler.Name, daemons.Name, privileged.Name},
		"list nodes/":          {admin.Name, scheduler.Name, daemons.Name, controllers.Name},
		"create macnodes/node": {admin.Name, agent.Name, retired.Name},
		"retire macnodes/node": {admin.Name, retired.Name},
		"delete macnodes/":     {admin.Name},
	}
	for _, name := range allowed[a.GetVerb()+" "+a.GetResource()+"/"+a.GetSubresource()] {
		if a.GetUser().GetName() == name {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "", nil
}

type request struct {
	user        user.Info
	operation   admission.Operation
	resource    schema.GroupVersionResource
	subresource string
	kind        schema.GroupVersionKind
	namespace   string
	is, was     runtime.Object
}

func validate(t *testing.T, plugin *validating.Plugin, r request) error {
	t.Helper()
	a := admission.NewAttributesRecord(r.is, r.was, r.kind, r.namespace, "x", r.resource, r.subresource, r.operation, nil, false, r.user)
	return plugin.Validate(t.Context(), a, admission.NewObjectInterfacesFromScheme(scheme.Scheme))
}

func check(t *testing.T, err error, refused string) {
	t.Helper()
	if refused == "" {
		assert.NoError(t, err)
		return
	}
	assert.ErrorContains(t, err, refused)
	assert.ErrorContains(t, err, "rule ")
}

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
		was       func(*corev1.PodSpec)
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
		"a taint, added later":        {was: plain, spec: tolerating(own), refused: "; create a MacOSInstance"},
		"another taint, added later":  {was: tolerating(own), spec: tolerating(own, unleased), refused: "; create a MacOSInstance"},
		"a placeholder, labelled":     {was: tolerating(own), spec: tolerating(own)},
		"a placeholder, evicted soon": {was: tolerating(own), spec: tolerating(own, corev1.Toleration{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})},

		"every taint":                 {spec: tolerating(all), refused: "tolerates every taint"},
		"every NoSchedule taint":      {spec: tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}), refused: "tolerates every taint"},
		"every NoExecute taint":       {spec: tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})},
		"every taint, added later":    {was: plain, spec: tolerating(all), refused: "tolerates every taint"},
		"every taint, from before":    {was: tolerating(all), spec: tolerating(all)},
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
		"a pod that is scheduled":             {was: func(s *corev1.PodSpec) { s.NodeName = "linux-1" }, spec: func(s *corev1.PodSpec) { s.NodeName = "linux-1" }},
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
			r.is = newPod(r.namespace, tt.spec)
			if tt.was != nil {
				r.operation, r.was = admission.Update, newPod(r.namespace, tt.was)
			}
			check(t, validate(t, plugin, r), tt.refused)
		})
	}
	for _, subresource := range []string{"ephemeralcontainers", "resize"} {
		check(t, validate(t, plugin, request{
			user: tenant, operation: admission.Update, namespace: "acme", subresource: subresource,
			resource: corev1.SchemeGroupVersion.WithResource("pods"), kind: corev1.SchemeGroupVersion.WithKind("Pod"),
			was: newPod("acme", plain), is: newPod("acme", tolerating(all)),
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
				is: &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "x"}, Target: corev1.ObjectReference{Kind: "Node", Name: "mac-1"}},
			}), refused)
		}
	}
}

// newNode returns the Node of a Mac with taints, given as text.
func newNode(vms string, taints ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mac-1", Labels: map[string]string{"kubernetes.io/os": "darwin", "macrack.io/mac": "true"}}}
	if vms != "" {
		n.Status.Capacity = corev1.ResourceList{"macrack.io/macos-vm": resource.MustParse(vms)}
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	for _, taint := range taints {
		key, value, _ := strings.Cut(taint, "=")
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule})
	}
	return n
}

func with(n *corev1.Node, change func(*corev1.Node)) *corev1.Node {
	change(n)
	return n
}

func TestNodes(t *testing.T) {
	plugin := newPlugin(t)
	const unleased, acme, globex, other = "macrack.io/unleased", "macrack.io/tenant=acme", "macrack.io/tenant=globex", "node.kubernetes.io/not-ready"
	linux := func() *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "linux-1", Labels: map[string]string{"kubernetes.io/os": "linux"}}}
	}
	for name, tt := range map[string]struct {
		user        user.Info
		subresource string
		was, is     *corev1.Node
		refused     string
	}{
		"an agent registers":                   {user: agent, is: newNode("2", unleased)},
		"an agent registers, not ready":        {user: agent, is: newNode("2", unleased, other)},
		"without the taint":                    {user: agent, is: newNode("2"), refused: "must be registered as unleased"},
		"as a tenant's":                        {user: agent, is: newNode("2", acme), refused: "must be registered as unleased"},
		"as nobody's and a tenant's":           {user: agent, is: newNode("2", unleased, acme), refused: "must be registered as unleased"},
		"with another effect":                  {user: agent, is: with(newNode("2", unleased), func(n *corev1.Node) { n.Spec.Taints[0].Effect = corev1.TaintEffectPreferNoSchedule }), refused: "must be registered as unleased"},
		"with three":                           {user: agent, is: newNode("3", unleased), refused: "must be 2"},
		"with one":                             {user: admin, is: newNode("1", unleased), refused: "must be 2"},
		"with three allocatable":               {user: agent, is: with(newNode("2", unleased), func(n *corev1.Node) { n.Status.Allocatable["macrack.io/macos-vm"] = resource.MustParse("3") }), refused: "must be 2"},
		"with 2000m":                           {user: agent, is: newNode("2000m", unleased)},
		"with 2k":                              {user: agent, is: newNode("2k", unleased), refused: "must be 2"},
		"by its label alone, without a taint":  {user: agent, is: newNode(""), refused: "must be registered as unleased"},
		"as a Linux machine":                   {user: agent, is: with(newNode("2", unleased), func(n *corev1.Node) { n.Labels["kubernetes.io/os"] = "linux" }), refused: "kubernetes.io/os: darwin"},
		"as a Linux machine, by what it says":  {user: agent, is: linux(), refused: "must register as the Node of a Mac"},
		"as nothing":                           {user: agent, is: with(newNode(""), func(n *corev1.Node) { n.Labels = nil }), refused: "must register as the Node of a Mac"},
		"with a capacity and no label":         {user: agent, is: with(newNode("2", unleased), func(n *corev1.Node) { delete(n.Labels, "macrack.io/mac") }), refused: "must have the label macrack.io/mac"},
		"with a capacity later, and no label":  {user: kubelet, subresource: "status", was: linux(), is: with(newNode("2", unleased), func(n *corev1.Node) { delete(n.Labels, "macrack.io/mac") }), refused: "rule 2"},
		"with something to allocate, no label": {user: agent, is: with(newNode("2", unleased), func(n *corev1.Node) { n.Status.Capacity = nil; delete(n.Labels, "macrack.io/mac") }), refused: "must have the label macrack.io/mac"},
		"a Linux machine registers":            {user: kubelet, is: linux()},
		"a Linux machine":                      {user: admin, is: linux()},
		"a Linux machine, changed":             {user: admin, was: linux(), is: with(linux(), func(n *corev1.Node) { n.Spec.Unschedulable = true })},
		"a Linux machine that becomes a Mac":   {user: agent, subresource: "status", was: linux(), is: with(linux(), func(n *corev1.Node) { n.Status.Capacity = newNode("2").Status.Capacity }), refused: "must always have the taint"},
		"raised":                               {user: admin, subresource: "status", was: newNode("2", acme), is: newNode("3", acme), refused: "must be 2"},
		"a heartbeat":                          {user: agent, subresource: "status", was: newNode("2", acme), is: newNode("2", acme)},
		"leased, first step":                   {user: controllers, was: newNode("2", unleased), is: newNode("2", unleased, acme)},
		"leased, second step":                  {user: controllers, was: newNode("2", unleased, acme), is: newNode("2", acme)},
		"released, first step":                 {user: controllers, was: newNode("2", acme), is: newNode("2", acme, unleased)},
		"released, second step":                {user: controllers, was: newNode("2", acme, unleased), is: newNode("2", unleased)},
		"the controllers, no taint":            {user: controllers, was: newNode("2", acme), is: newNode("2"), refused: "must always have the taint"},
		"the controllers, two tenants":         {user: controllers, was: newNode("2", acme), is: newNode("2", acme, globex), refused: "must have only one tenant"},
		"an administrator takes the taint":     {user: admin, was: newNode("2", unleased), is: newNode("2"), refused: "only MacRack's controllers"},
		"an administrator gives it away":       {user: admin, was: newNode("2", unleased), is: newNode("2", acme), refused: "only MacRack's controllers"},
		"an administrator adds a tenant":       {user: admin, was: newNode("2", acme), is: newNode("2", acme, globex), refused: "only MacRack's controllers"},
		"an agent gives itself away":           {user: agent, was: newNode("2", unleased), is: newNode("2", globex), refused: "only MacRack's controllers"},
		"an administrator weakens it":          {user: admin, was: newNode("2", acme), is: with(newNode("2", acme), func(n *corev1.Node) { n.Spec.Taints[0].Effect = corev1.TaintEffectPreferNoSchedule }), refused: "only MacRack's controllers"},
		"the node controller":                  {user: &user.DefaultInfo{Name: "system:serviceaccount:kube-system:node-controller"}, was: newNode("2", acme), is: newNode("2", acme, other)},
		"cordoned":                             {user: admin, was: newNode("2", acme), is: with(newNode("2", acme), func(n *corev1.Node) { n.Spec.Unschedulable = true })},
		"made a Linux machine":                 {user: admin, was: newNode("2", acme), is: with(newNode("2", acme), func(n *corev1.Node) { n.Labels["kubernetes.io/os"] = "linux" }), refused: "kubernetes.io/os: darwin"},
		"without a label for its system":       {user: admin, was: newNode("2", acme), is: with(newNode("2", acme), func(n *corev1.Node) { delete(n.Labels, "kubernetes.io/os") }), refused: "kubernetes.io/os: darwin"},
		"made no Mac":                          {user: admin, was: newNode("2", acme), is: with(newNode("2", acme), func(n *corev1.Node) { delete(n.Labels, "macrack.io/mac") }), refused: "cannot be removed; delete the Node"},
		"without labels":                       {user: admin, was: newNode("2", acme), is: with(newNode("2", acme), func(n *corev1.Node) { n.Labels = nil }), refused: "rule 2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := request{
				user: tt.user, operation: admission.Create, subresource: tt.subresource, is: tt.is,
				resource: corev1.SchemeGroupVersion.WithResource("nodes"), kind: corev1.SchemeGroupVersion.WithKind("Node"),
			}
			if tt.was != nil {
				r.operation, r.was = admission.Update, tt.was
			}
			check(t, validate(t, plugin, r), tt.refused)
		})
	}
}

func TestNodesAreDeleted(t *testing.T) {
	plugin := newPlugin(t)
	mac := newNode("2", "macrack.io/unleased")
	linux := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "linux-1"}}
	const byOthers = "only users who may delete the MacNode"
	for _, tt := range []struct {
		user    user.Info
		node    *corev1.Node
		refused string
	}{
		{admin, mac, ""}, {operator, mac, byOthers}, {cleaner, mac, byOthers}, {agent, mac, byOthers},
		{operator, linux, ""}, {cleaner, linux, ""},
	} {
		check(t, validate(t, plugin, request{
			user: tt.user, operation: admission.Delete, was: tt.node,
			resource: corev1.SchemeGroupVersion.WithResource("nodes"), kind: corev1.SchemeGroupVersion.WithKind("Node"),
		}), tt.refused)
	}
}

func TestRetired(t *testing.T) {
	plugin := newPlugin(t)
	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "kube-node-lease"}}
	node := newNode("2", "macrack.io/unleased")
	for _, r := range []request{
		{operation: admission.Create, is: csr, resource: certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"), kind: certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest")},
		{operation: admission.Create, is: node, resource: corev1.SchemeGroupVersion.WithResource("nodes"), kind: corev1.SchemeGroupVersion.WithKind("Node")},
		{operation: admission.Update, subresource: "status", is: node, was: node, resource: corev1.SchemeGroupVersion.WithResource("nodes"), kind: corev1.SchemeGroupVersion.WithKind("Node")},
		{operation: admission.Update, namespace: "kube-node-lease", is: lease, was: lease, resource: coordinationv1.SchemeGroupVersion.WithResource("leases"), kind: coordinationv1.SchemeGroupVersion.WithKind("Lease")},
		{operation: admission.Delete, namespace: "acme", was: newPod("acme", func(*corev1.PodSpec) {}), resource: corev1.SchemeGroupVersion.WithResource("pods"), kind: corev1.SchemeGroupVersion.WithKind("Pod")},
	} {
		for who, refused := range map[user.Info]string{retired: "is retired", agent: "", admin: ""} {
			r.user = who
			check(t, validate(t, plugin, r), refused)
		}
	}
}

func TestDeviceClasses(t *testing.T) {
	plugin := newPlugin(t)
	for name, refused := range map[string]string{"macrack.io/macos-vm": "belong to the Nodes of Macs", "example.com/gpu": "", "": ""} {
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
		if name != "" {
			class.Spec.ExtendedResourceName = &name
		}
		check(t, validate(t, plugin, request{
			user: admin, operation: admission.Create, is: class,
			resource: resourcev1.SchemeGroupVersion.WithResource("deviceclasses"), kind: resourcev1.SchemeGroupVersion.WithKind("DeviceClass"),
		}), refused)
	}
}
