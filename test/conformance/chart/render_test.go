// Package chart tests the Helm charts in artifacts/charts.
package chart

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"macrack.io/macrack/pkg/generated/clientset/versioned/scheme"
	"macrack.io/macrack/pkg/version"
)

const (
	system    = "macrack-system"
	artifacts = "../../../artifacts"
	chartDir  = artifacts + "/charts/macrack"
)

func load(t *testing.T) *chartv2.Chart {
	t.Helper()
	chart, err := loader.Load(chartDir)
	require.NoError(t, err)
	return chart
}

// render returns the objects of the chart with values in the syntax of helm's --set.
func render(t *testing.T, values map[string]any) (map[string]*unstructured.Unstructured, error) {
	t.Helper()
	return renderChart(t, load(t), common.ReleaseOptions{Name: "macrack", Namespace: system, Revision: 1, IsInstall: true}, values)
}

func renderChart(t *testing.T, chart *chartv2.Chart, options common.ReleaseOptions, values map[string]any) (map[string]*unstructured.Unstructured, error) {
	t.Helper()
	all, err := util.ToRenderValues(chart, values, options, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	found := map[string]*unstructured.Unstructured{}
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") {
			decode(t, found, text)
		}
	}
	return found, nil
}

func decode(t *testing.T, into map[string]*unstructured.Unstructured, text string) {
	t.Helper()
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if err == io.EOF {
			return
		}
		require.NoError(t, err, text)
		if len(object.Object) == 0 {
			continue
		}
		key := fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())
		require.NotContains(t, into, key)
		into[key] = object
	}
}

func kustomize(t *testing.T, dir string, into map[string]*unstructured.Unstructured) {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(artifacts, dir))
	require.NoError(t, err)
	text, err := resources.AsYaml()
	require.NoError(t, err)
	decode(t, into, string(text))
}

// With its default values, the chart makes the objects of the kustomizations.
func TestEqualsKustomizations(t *testing.T) {
	want := map[string]*unstructured.Unstructured{}
	kustomize(t, "deploy", want)
	kustomize(t, "policies", want)
	delete(want, "Namespace /"+system) // helm makes it
	have, err := render(t, nil)
	require.NoError(t, err)
	assert.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(have)))
	for key, object := range want {
		if have[key] != nil {
			assert.Equal(t, normal(object), normal(have[key]), key)
		}
	}
}

// normal returns an object without the label that kustomize adds to all, and without the chart's
// imagePullPolicy, which is the default.
func normal(object *unstructured.Unstructured) map[string]any {
	object = object.DeepCopy()
	labels := object.GetLabels()
	delete(labels, "app.kubernetes.io/part-of")
	object.SetLabels(nil)
	if len(labels) > 0 {
		object.SetLabels(labels)
	}
	containers, _, _ := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
	for _, c := range containers {
		if c.(map[string]any)["imagePullPolicy"] == "IfNotPresent" {
			delete(c.(map[string]any), "imagePullPolicy")
		}
	}
	if containers != nil {
		_ = unstructured.SetNestedSlice(object.Object, containers, "spec", "template", "spec", "containers")
	}
	return collapse(object.Object).(map[string]any)
}

// collapse replaces the white space in each text by single spaces, because kustomize adds line
// breaks to folded texts.
func collapse(value any) any {
	switch value := value.(type) {
	case string:
		return strings.Join(strings.Fields(value), " ")
	case []any:
		for i := range value {
			value[i] = collapse(value[i])
		}
	case map[string]any:
		for k := range value {
			value[k] = collapse(value[k])
		}
	}
	return value
}

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // helm logs each link in the chart
	os.Exit(m.Run())
}

func TestLint(t *testing.T) {
	for _, message := range lint.RunAll(chartDir, nil, system).Messages {
		assert.LessOrEqual(t, message.Severity, support.InfoSev, message)
	}
}

func TestVersions(t *testing.T) {
	metadata := load(t).Metadata
	assert.Equal(t, version.Version, metadata.AppVersion)
	assert.Equal(t, strings.TrimPrefix(version.Version, "v"), metadata.Version)
}

// set returns values as helm's --set does.
func set(path string, value any) map[string]any {
	first, rest, nested := strings.Cut(path, ".")
	if nested {
		value = set(rest, value)
	}
	return map[string]any{first: value}
}

func TestSchema(t *testing.T) {
	for path, value := range map[string]any{
		"policies.enabled":      false,
		"network.enabled":       false,
		"apiserver.extraArgs":   []any{"--disable-admission-plugins=MacRackControllerRestriction"},
		"etcd.replicas":         2,
		"certificates.mode":     "None",
		"etcd.external.servers": []any{"http://etcd:2379"},
		"image.digests":         map[string]any{"apiserver": "latest"},
		"backup.recipients":     []any{"AGE-SECRET-KEY-1QQQ"},
		"backup.encryption":     false,
	} {
		_, err := render(t, set(path, value))
		assert.ErrorContains(t, err, strings.Split(path, ".")[0], path)
	}
}

func args(t *testing.T, object *unstructured.Unstructured, field string) []string {
	t.Helper()
	require.NotNil(t, object)
	containers, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
	require.NoError(t, err)
	list, _, err := unstructured.NestedStringSlice(containers[0].(map[string]any), field)
	require.NoError(t, err)
	return list
}

func TestExternalEtcd(t *testing.T) {
	objects, err := render(t, set("etcd.external", map[string]any{"servers": []any{"https://a:2379", "https://b:2379"}, "secretName": "mine"}))
	require.NoError(t, err)
	for key := range objects {
		assert.NotContains(t, key, "/macrack-etcd")
	}
	server := objects["Deployment macrack-system/macrack-apiserver"]
	assert.Contains(t, args(t, server, "args"), "--etcd-servers=https://a:2379,https://b:2379")
	volumes, _, err := unstructured.NestedSlice(server.Object, "spec", "template", "spec", "volumes")
	require.NoError(t, err)
	assert.Contains(t, volumes, map[string]any{"name": "etcd", "secret": map[string]any{"secretName": "mine"}})
	assert.Equal(t, []string{"certificates", "--issue=serving"}, args(t, objects["Deployment macrack-system/macrack-certificates"], "args"))
	rules, _, err := unstructured.NestedSlice(objects["Role macrack-system/macrack-certificates"].Object, "rules")
	require.NoError(t, err)
	assert.Equal(t, []any{"macrack-apiserver-tls", "macrack-serving-ca"}, rules[1].(map[string]any)["resourceNames"])
}

func TestOneEtcd(t *testing.T) {
	objects, err := render(t, set("etcd.replicas", 1))
	require.NoError(t, err)
	command := args(t, objects["StatefulSet macrack-system/macrack-etcd"], "command")
	assert.Contains(t, command, "--initial-cluster=macrack-etcd-0=https://macrack-etcd-0.macrack-etcd.macrack-system.svc:2380")
	assert.Contains(t, args(t, objects["Deployment macrack-system/macrack-apiserver"], "args"), "--etcd-servers=https://macrack-etcd-0.macrack-etcd.macrack-system.svc:2379")
}

// With certificates of others, MacRack writes no Secret.
func TestOtherCertificates(t *testing.T) {
	for _, mode := range []string{"CertManager", "External"} {
		objects, err := render(t, set("certificates.mode", mode))
		require.NoError(t, err)
		assert.Equal(t, []string{"certificates", "--issue="}, args(t, objects["Deployment macrack-system/macrack-certificates"], "args"))
		rules, _, err := unstructured.NestedSlice(objects["Role macrack-system/macrack-certificates"].Object, "rules")
		require.NoError(t, err)
		require.Len(t, rules, 1)
		assert.Equal(t, []any{"get"}, rules[0].(map[string]any)["verbs"])
		var certificates []string
		for key := range objects {
			if name, ok := strings.CutPrefix(key, "Certificate macrack-system/"); ok {
				certificates = append(certificates, name)
			}
		}
		if mode == "CertManager" {
			assert.ElementsMatch(t, []string{"macrack-serving-ca", "macrack-apiserver-tls", "macrack-etcd-ca", "macrack-etcd-tls", "macrack-etcd-client-tls"}, certificates)
		} else {
			assert.Empty(t, certificates)
		}
	}
}

func TestNetworkValues(t *testing.T) {
	objects, err := render(t, set("network", map[string]any{"apiserverCIDRs": []any{"10.0.0.0/24", "0.0.0.0/0"}, "podCIDRs": []any{"10.1.0.0/16", "fd00::/48"}}))
	require.NoError(t, err)
	ingress, _, err := unstructured.NestedSlice(objects["NetworkPolicy macrack-system/macrack-apiserver"].Object, "spec", "ingress")
	require.NoError(t, err)
	from := ingress[0].(map[string]any)["from"].([]any)
	assert.Equal(t, map[string]any{"ipBlock": map[string]any{"cidr": "10.0.0.0/24"}}, from[0])
	assert.Equal(t, map[string]any{"ipBlock": map[string]any{"cidr": "0.0.0.0/0", "except": []any{"10.1.0.0/16"}}}, from[1])
}

func TestImages(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	objects, err := render(t, map[string]any{"image": map[string]any{
		"registry": "registry.example.com/macrack", "pullSecrets": []any{"pull"}, "digests": map[string]any{"controllers": digest},
	}})
	require.NoError(t, err)
	image := func(name string) any {
		containers, _, err := unstructured.NestedSlice(objects["Deployment macrack-system/"+name].Object, "spec", "template", "spec", "containers")
		require.NoError(t, err)
		return containers[0].(map[string]any)["image"]
	}
	assert.Equal(t, "registry.example.com/macrack/macrack-apiserver:"+version.Version, image("macrack-apiserver"))
	assert.Equal(t, "registry.example.com/macrack/macrack-controllers:"+version.Version+"@"+digest, image("macrack-certificates"))
	secrets, _, err := unstructured.NestedSlice(objects["Deployment macrack-system/macrack-controllers"].Object, "spec", "template", "spec", "imagePullSecrets")
	require.NoError(t, err)
	assert.Equal(t, []any{map[string]any{"name": "pull"}}, secrets)
}

// The starter catalogue has no unknown field and nothing of the example's tenants.
func TestCatalogue(t *testing.T) {
	found := map[string]*unstructured.Unstructured{}
	kustomize(t, "catalogue", found)
	kinds := map[string]int{}
	for key, object := range found {
		kinds[object.GetKind()]++
		typed, err := scheme.Scheme.New(object.GroupVersionKind())
		require.NoError(t, err, key)
		assert.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, typed, true), key)
	}
	assert.Equal(t, map[string]int{"MacNodeClass": 6, "InstanceClass": 3, "RackConfig": 1}, kinds)
}
