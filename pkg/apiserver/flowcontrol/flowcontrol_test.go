package flowcontrol

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
)

func load(t *testing.T) []Object {
	objects, err := Objects()
	require.NoError(t, err)
	require.NotEmpty(t, objects)
	return objects
}

func TestAdministratorsChangesStay(t *testing.T) {
	client, objects := fake.NewClientset().FlowcontrolV1(), load(t)
	require.True(t, apply(t.Context(), client, objects))
	level, err := client.PriorityLevelConfigurations().Get(t.Context(), "macrack-users", metav1.GetOptions{})
	require.NoError(t, err)
	shares := int32(50)
	level.Spec.Limited.NominalConcurrencyShares = &shares
	_, err = client.PriorityLevelConfigurations().Update(t.Context(), level, metav1.UpdateOptions{FieldManager: "kubectl-edit"})
	require.NoError(t, err)
	require.NoError(t, client.FlowSchemas().Delete(t.Context(), "macrack-controllers", metav1.DeleteOptions{}))

	require.True(t, apply(t.Context(), client, objects))
	level, err = client.PriorityLevelConfigurations().Get(t.Context(), "macrack-users", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, shares, *level.Spec.Limited.NominalConcurrencyShares)
	_, err = client.FlowSchemas().Get(t.Context(), "macrack-controllers", metav1.GetOptions{})
	assert.NoError(t, err, "a deleted object is created again")
}

// The priority levels of the FlowSchemas exist: they are ours, or Kubernetes creates them.
func TestPriorityLevelsExist(t *testing.T) {
	client := fake.NewClientset().FlowcontrolV1()
	require.True(t, apply(t.Context(), client, load(t)))
	levels := map[string]bool{}
	for _, level := range append(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations...) {
		levels[level.Name] = true
	}
	ours, err := client.PriorityLevelConfigurations().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, level := range ours.Items {
		levels[level.Name] = true
	}
	schemas, err := client.FlowSchemas().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, schema := range schemas.Items {
		assert.True(t, levels[schema.Spec.PriorityLevelConfiguration.Name], "priority level of FlowSchema %s", schema.Name)
	}
}

// The role of macrack-apiserver permits exactly the changes of these objects.
func TestRole(t *testing.T) {
	data, err := os.ReadFile("../../../artifacts/deploy/base/rbac-apiserver.yaml")
	require.NoError(t, err)
	permitted := map[string][]string{}
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		require.NoError(t, err)
		if role, ok := obj.(*rbacv1.ClusterRole); ok {
			for _, rule := range role.Rules {
				if rule.APIGroups[0] == flowcontrolv1.GroupName && len(rule.ResourceNames) > 0 {
					assert.Equal(t, []string{"create", "patch"}, rule.Verbs)
					permitted[rule.Resources[0]] = append(permitted[rule.Resources[0]], rule.ResourceNames...)
				}
			}
		}
	}
	wanted := map[string][]string{}
	for _, o := range load(t) {
		resource := map[string]string{"FlowSchema": "flowschemas", "PriorityLevelConfiguration": "prioritylevelconfigurations"}[o.Kind]
		wanted[resource] = append(wanted[resource], o.Name)
	}
	for resource, names := range wanted {
		assert.ElementsMatch(t, names, permitted[resource], resource)
	}
}

// A request to MacRack holds a seat while macrack-apiserver asks kube-apiserver about it. With a
// shared priority level, such requests could hold all seats, and the questions would time out.
func TestDelegatedChecksShareNoPriorityLevel(t *testing.T) {
	client := fake.NewClientset().FlowcontrolV1()
	require.True(t, apply(t.Context(), client, load(t)))
	schemas, err := client.FlowSchemas().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	checks, err := client.FlowSchemas().Get(t.Context(), "macrack-apiserver", metav1.GetOptions{})
	require.NoError(t, err)
	others := slices.Concat(bootstrap.SuggestedFlowSchemas, bootstrap.MandatoryFlowSchemas)
	for i := range schemas.Items {
		if schemas.Items[i].Name != checks.Name {
			others = append(others, &schemas.Items[i])
		}
	}
	for _, schema := range others {
		assert.NotEqual(t, checks.Spec.PriorityLevelConfiguration, schema.Spec.PriorityLevelConfiguration, schema.Name)
	}
}
