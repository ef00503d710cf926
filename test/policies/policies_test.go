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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
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
	new, old    runtime.Object
}

func validate(t *testing.T, plugin *validating.Plugin, r request) error {
	t.Helper()
	a := admission.NewAttributesRecord(r.new, r.old, r.kind, r.namespace, "x", r.resource, r.subresource, r.operation, nil, false, r.user)
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
