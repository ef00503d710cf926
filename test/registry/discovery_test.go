package registry

import (
	"bufio"
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestCategories checks that the category macrack has exactly the kinds that the roles of tenants
// let them list: one forbidden kind would make kubectl get macrack fail.
func TestCategories(t *testing.T) {
	listable := sets.New[string]()
	for _, role := range tenantRoles(t) {
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				if slices.Contains(rule.Verbs, "list") {
					listable.Insert(rule.APIGroups[0] + "/" + resource)
				}
			}
		}
	}
	require.True(t, listable.Has("rack.macrack.io/macnodeleases"))

	f := newFleet(t, 1)
	lists, err := f.admin.Discovery().ServerPreferredResources()
	require.NoError(t, err)
	kinds := 0
	for _, list := range lists {
		group, _, _ := strings.Cut(list.GroupVersion, "/")
		if !strings.HasSuffix(group, ".macrack.io") {
			continue
		}
		for _, resource := range list.APIResources {
			kinds++
			want := "macrack-admin"
			if listable.Has(group + "/" + resource.Name) {
				want = "macrack"
			}
			assert.Equal(t, []string{want}, resource.Categories, resource.Name)
			for _, name := range resource.ShortNames {
				assert.NotContains(t, []string{"rc", "no", "po", "svc", "ns", "cm", "ev", "ep", "limits", "pv", "pvc", "quota", "sa", "crd", "deploy", "ds", "rs", "sts", "hpa", "cj", "ing", "netpol", "pdb", "pc", "sc", "csr"},
					name, "%s: a short name of Kubernetes", resource.Name)
			}
		}
	}
	assert.Equal(t, 10, kinds)
}

// tenantRoles returns the roles that aggregate into those of the cluster's tenants.
func tenantRoles(t *testing.T) []*rbacv1.ClusterRole {
	t.Helper()
	data, err := os.ReadFile("../../artifacts/deploy/base/rbac-tenants.yaml")
	require.NoError(t, err)
	var roles []*rbacv1.ClusterRole
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := reader.Read()
		if err != nil {
			break
		}
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		require.NoError(t, err)
		if role, ok := obj.(*rbacv1.ClusterRole); ok {
			roles = append(roles, role)
		}
	}
	require.NotEmpty(t, roles)
	return roles
}

// TestPoliciesKnowTheResources compares the resource lists of the warning policies with the served
// resources.
func TestPoliciesKnowTheResources(t *testing.T) {
	data, err := os.ReadFile("../../artifacts/policies/names.yaml")
	require.NoError(t, err)
	known := map[string]sets.Set[string]{}
	for _, document := range strings.Split(string(data), "\n---\n") {
		var policy admissionregistrationv1.ValidatingAdmissionPolicy
		require.NoError(t, yaml.Unmarshal([]byte(document), &policy))
		for _, variable := range policy.Spec.Variables {
			if variable.Name == "served" {
				var names []string
				require.NoError(t, yaml.Unmarshal([]byte(variable.Expression), &names), "the expression is a list of texts")
				known[policy.Name] = sets.New(names...)
			}
		}
	}

	f := newFleet(t, 1)
	_, lists, err := f.admin.Discovery().ServerGroupsAndResources()
	require.NoError(t, err)
	all, namespaced := sets.New("macnodes/node.rack.macrack.io"), sets.New[string]()
	for _, list := range lists {
		group, _, _ := strings.Cut(list.GroupVersion, "/")
		for _, resource := range list.APIResources {
			if !strings.HasSuffix(group, ".macrack.io") {
				continue
			}
			all.Insert(resource.Name + "." + group)
			if resource.Namespaced && !strings.Contains(resource.Name, "/") {
				namespaced.Insert(resource.Name + "." + group)
			}
		}
	}
	assert.ElementsMatch(t, sets.List(all), sets.List(known["roles.macrack.io"]))
	assert.ElementsMatch(t, sets.List(namespaced), sets.List(known["quotas.macrack.io"]))
}
