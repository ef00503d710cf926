package chart

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubernetesscheme "k8s.io/client-go/kubernetes/scheme"

	"macrack.io/macrack/pkg/version"
)

const runnersDir = artifacts + "/charts/macrack-runners"

// runners renders the chart macrack-runners for a tenant.
func runners(t *testing.T, values map[string]any) (map[string]*unstructured.Unstructured, error) {
	t.Helper()
	chart, err := loader.Load(runnersDir)
	require.NoError(t, err)
	return renderChart(t, chart, common.ReleaseOptions{Name: "runners", Namespace: "acme", Revision: 1, IsInstall: true}, values)
}

func runnerSet(name, source string, settings map[string]any) map[string]any {
	return map[string]any{
		"name": name, "leases": map[string]any{"max": 2}, "instances": map[string]any{"className": "small", "imageName": "xcode"}, source: settings,
	}
}

// A tenant installs the chart in its namespace: all its objects are in it, and its pod passes the
// Pod Security Standard "restricted".
func TestRunners(t *testing.T) {
	github := map[string]any{"url": "https://github.com/acme", "secretName": "github-app"}
	objects, err := runners(t, map[string]any{"dashboard": true, "sets": []any{
		runnerSet("ios", "github", github), runnerSet("mac", "github", github), runnerSet("gitlab", "gitlab", map[string]any{}),
	}})
	require.NoError(t, err)
	for key, object := range objects {
		want, err := kubernetesscheme.Scheme.New(object.GroupVersionKind())
		require.NoError(t, err, key)
		assert.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, want, true), key)
		assert.Contains(t, []string{"ConfigMap", "Deployment", "Role", "RoleBinding", "ServiceAccount"}, object.GetKind(), "namespaced")
	}
	pod := typed[appsv1.Deployment](t, objects["Deployment /macrack-runners"]).Spec.Template.Spec
	assert.True(t, *pod.SecurityContext.RunAsNonRoot)
	assert.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
	require.Len(t, pod.Containers, 1)
	assert.False(t, *pod.Containers[0].SecurityContext.AllowPrivilegeEscalation)
	assert.Equal(t, []corev1.Capability{"ALL"}, pod.Containers[0].SecurityContext.Capabilities.Drop)
	assert.Equal(t, "macrack.io/macrack-runners:"+version.Version, pod.Containers[0].Image)

	rules := typed[rbacv1.Role](t, objects["Role /macrack-runners"]).Rules
	assert.Equal(t, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"github-app"}, Verbs: []string{"get"},
	}, rules[len(rules)-1], "it reads the Secrets of its sets only")

	file := t.TempDir() + "/config.yaml"
	config := typed[corev1.ConfigMap](t, objects["ConfigMap /macrack-runners"]).Data["config.yaml"]
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	check := exec.CommandContext(t.Context(), "go", "run", "-C", "../../../runners", "./cmd/macrack-runners", "--config", file, "--check")
	out, err := check.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Contains(t, string(out), "is valid: 3 sets")
}

func TestRunnersValues(t *testing.T) {
	sets := []any{runnerSet("ios", "gitlab", map[string]any{})}
	for path, values := range map[string]map[string]any{
		"sets":           {},
		"replicas":       {"sets": sets, "replicas": 0},
		"tolerance":      {"sets": sets, "tolerance": "all"},
		"digest":         {"sets": sets, "image": map[string]any{"digest": "latest"}},
		"serviceAccount": {"sets": sets, "serviceAccount": map[string]any{"name": ""}},
	} {
		_, err := runners(t, values)
		assert.ErrorContains(t, err, path)
	}
	objects, err := runners(t, map[string]any{"sets": sets, "serviceAccount": map[string]any{"create": false, "name": "mine"}})
	require.NoError(t, err)
	assert.Len(t, objects, 2, "the Deployment and its ConfigMap")
	assert.Equal(t, "mine", typed[appsv1.Deployment](t, objects["Deployment /macrack-runners"]).Spec.Template.Spec.ServiceAccountName)
}

func TestRunnersLint(t *testing.T) {
	for _, message := range lint.RunAll(runnersDir, map[string]any{"sets": []any{runnerSet("ios", "gitlab", map[string]any{})}}, "acme").Messages {
		assert.LessOrEqual(t, message.Severity, support.InfoSev, message)
	}
	chart, err := loader.Load(runnersDir)
	require.NoError(t, err)
	assert.Equal(t, version.Version, chart.Metadata.AppVersion)
	assert.Equal(t, strings.TrimPrefix(version.Version, "v"), chart.Metadata.Version)
}
