package policies

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes/scheme"
)

// A recorder collects the warnings to a user.
type recorder struct {
	mu   sync.Mutex
	text []string
}

// AddWarning records a warning.
func (r *recorder) AddWarning(_, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = append(r.text, text)
}

// warnings returns the warnings to a user who writes an object.
func warnings(t *testing.T, plugin *validating.Plugin, r request) string {
	t.Helper()
	var all recorder
	ctx := warning.WithWarningRecorder(t.Context(), &all)
	for _, r.operation = range []admission.Operation{admission.Create, admission.Update} {
		if r.operation == admission.Update {
			r.old = r.new
		}
		a := admission.NewAttributesRecord(r.new, r.old, r.kind, r.namespace, "x", r.resource, "", r.operation, nil, false, admin)
		require.NoError(t, plugin.Validate(ctx, a, admission.NewObjectInterfacesFromScheme(scheme.Scheme)))
	}
	if len(all.text) > 0 {
		require.Len(t, all.text, 2, "one warning for a create, and one for an update")
		assert.Equal(t, all.text[0], all.text[1])
		return all.text[0]
	}
	return ""
}

func TestQuotas(t *testing.T) {
	plugin := newPlugin(t)
	for name, unknown := range map[corev1.ResourceName]string{
		"count/macnodeleases.rack.macrack.io":      "",
		"count/macosinstances.instance.macrack.io": "",
		"count/auditrecords.rack.macrack.io":       "",
		"count/leases.coordination.k8s.io":         "",
		"count/deployments.apps":                   "",
		"count/configmaps":                         "",
		"requests.macrack.io/macos-vm":             "",
		"pods":                                     "",
		"count/leases.rack.macrack.io":             "leases.rack.macrack.io",
		"count/macnodelease.rack.macrack.io":       "macnodelease.rack.macrack.io",
		"count/macnodes.rack.macrack.io":           "macnodes.rack.macrack.io", // cluster-scoped
		"count/macnodeleases.racks.macrack.io":     "macnodeleases.racks.macrack.io",
		"count/macnodeleases":                      "macnodeleases",
	} {
		t.Run(string(name), func(t *testing.T) {
			quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "acme"}, Spec: corev1.ResourceQuotaSpec{
				Hard: corev1.ResourceList{"pods": resource.MustParse("1"), name: resource.MustParse("2")}}}
			got := warnings(t, plugin, request{resource: corev1.SchemeGroupVersion.WithResource("resourcequotas"), kind: corev1.SchemeGroupVersion.WithKind("ResourceQuota"), namespace: "acme", new: quota})
			if unknown == "" {
				assert.Empty(t, got)
				return
			}
			assert.Contains(t, got, "this quota limits nothing for "+unknown+", because no such namespaced resource exists; use count/auditrecords.rack.macrack.io, count/macnodeleases.rack.macrack.io,")
		})
	}
	none := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "acme"}}
	assert.Empty(t, warnings(t, plugin, request{resource: corev1.SchemeGroupVersion.WithResource("resourcequotas"), kind: corev1.SchemeGroupVersion.WithKind("ResourceQuota"), namespace: "acme", new: none}))
}

func roleRequest(rules []rbacv1.PolicyRule) request {
	return request{resource: rbacv1.SchemeGroupVersion.WithResource("clusterroles"), kind: rbacv1.SchemeGroupVersion.WithKind("ClusterRole"),
		new: &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Rules: rules}}
}

func TestRoles(t *testing.T) {
	plugin := newPlugin(t)
	for name, tt := range map[string]struct {
		groups, resources string
		unknown           string
	}{
		"a resource":                             {groups: "rack.macrack.io", resources: "macnodeleases"},
		"a subresource":                          {groups: "rack.macrack.io", resources: "macnodes/status macnodeleases/binding"},
		"finalizers, which are not served":       {groups: "instance.macrack.io", resources: "macosinstances/finalizers"},
		"the rights that identify Macs":          {groups: "rack.macrack.io", resources: "macnodes/node"},
		"all resources":                          {groups: "rack.macrack.io", resources: "*"},
		"all statuses":                           {groups: "rack.macrack.io", resources: "*/status"},
		"all groups":                             {groups: "*", resources: "leases"},
		"resources of two groups":                {groups: "rack.macrack.io instance.macrack.io", resources: "macnodeleases macosinstances"},
		"Kubernetes' leases":                     {groups: "coordination.k8s.io", resources: "leases"},
		"Kubernetes' leases, with ours":          {groups: "coordination.k8s.io rack.macrack.io", resources: "leases macnodeleases"},
		"the core group":                         {groups: "_", resources: "pods pods/exec"},
		"the core group, with ours":              {groups: "_ rack.macrack.io", resources: "pods macnodeleases"},
		"others' groups":                         {groups: "notmacrack.io", resources: "leases"},
		"no resource":                            {},
		"leases":                                 {groups: "rack.macrack.io", resources: "leases", unknown: "leases in rack.macrack.io"},
		"leases, with an existing resource":      {groups: "rack.macrack.io", resources: "macnodes leases", unknown: "leases in rack.macrack.io"},
		"a short name, and one of its own kind":  {groups: "rack.macrack.io", resources: "mnl macnodelease", unknown: "mnl in rack.macrack.io; macnodelease in rack.macrack.io"},
		"the wrong group of ours":                {groups: "rack.macrack.io", resources: "macosinstances", unknown: "macosinstances in rack.macrack.io"},
		"an unknown group":                       {groups: "macrack.io", resources: "macnodeleases", unknown: "macnodeleases in macrack.io"},
		"an unknown subresource":                 {groups: "instance.macrack.io", resources: "macosinstances/exec", unknown: "macosinstances/exec in instance.macrack.io"},
		"all subresources, which grants nothing": {groups: "rack.macrack.io", resources: "macnodes/*", unknown: "macnodes/* in rack.macrack.io"},
		"finalizers of an unknown resource":      {groups: "rack.macrack.io", resources: "leases/finalizers", unknown: "leases in rack.macrack.io"},
		"ours in the core group":                 {groups: "_", resources: "macnodeleases pods", unknown: "macnodeleases in the core group"},
	} {
		t.Run(name, func(t *testing.T) {
			groups := strings.Fields(tt.groups)
			for i := range groups {
				groups[i] = strings.Trim(groups[i], "_")
			}
			rules := []rbacv1.PolicyRule{
				{Verbs: []string{"get"}, APIGroups: []string{"apps"}, Resources: []string{"deployments"}},
				{Verbs: []string{"get"}, APIGroups: groups, Resources: strings.Fields(tt.resources)},
				{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics"}},
			}
			cluster := warnings(t, plugin, roleRequest(rules))
			role := warnings(t, plugin, request{resource: rbacv1.SchemeGroupVersion.WithResource("roles"), kind: rbacv1.SchemeGroupVersion.WithKind("Role"), namespace: "acme",
				new: &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "acme"}, Rules: rules}})
			assert.Equal(t, cluster, role)
			if tt.unknown == "" {
				assert.Empty(t, cluster)
				return
			}
			assert.Contains(t, cluster, "this role grants nothing for "+tt.unknown+", because no such resource exists; use auditrecords.rack.macrack.io, ")
		})
	}
	assert.Empty(t, warnings(t, plugin, roleRequest(nil)), "a role that aggregates others")

	// The largest roles of a cluster have about a hundred rules.
	var many []rbacv1.PolicyRule
	for range 200 {
		many = append(many, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"rack.macrack.io", "instance.macrack.io"}, Resources: []string{"macnodes", "macosinstances", "macnodes/status", "macosinstances/stop"}})
	}
	assert.Empty(t, warnings(t, plugin, roleRequest(many)))
	many[199].Resources = []string{"leases"}
	assert.Contains(t, warnings(t, plugin, roleRequest(many)), "leases in rack.macrack.io, instance.macrack.io", "the policy is not too expensive")
}

// The roles in artifacts/deploy name only resources that exist.
func TestShippedRoles(t *testing.T) {
	plugin := newPlugin(t)
	paths, err := filepath.Glob("../../artifacts/deploy/base/rbac-*.yaml")
	require.NoError(t, err)
	rules := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, document := range strings.Split(string(text), "\n---\n") {
			var role rbacv1.ClusterRole
			require.NoError(t, yaml.Unmarshal([]byte(document), &role), path)
			rules += len(role.Rules)
			assert.Empty(t, warnings(t, plugin, roleRequest(role.Rules)), "%s %s", path, role.Name)
		}
	}
	assert.Greater(t, rules, 30)
}
