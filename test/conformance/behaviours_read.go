package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

var reading = []behaviour{
	{name: "discovery shows names, scope, category, verbs and subresources", do: discovered},
	{name: "aggregated discovery has the kind", do: aggregated},
	{name: "api-resources lists the kind", do: apiResources},
	{name: "short names belong to the kind alone", verbs: read, do: shortNames},
	{name: "get in every output format", verbs: read, do: formats},
	{name: "explain describes every field", do: explained},
	{name: "describe", verbs: read, do: described},
	{name: "the table has the object, its metadata or neither", verbs: read, do: tables},
	{name: "field selectors", verbs: read, do: fieldSelectors},
	{name: "label selectors", verbs: create, do: labelSelectors},
	{name: "limit and continue", verbs: read, do: chunks},
	{name: "an absent object is a 404 that names it", verbs: read, do: absent},
	{name: "auth can-i answers as the request does", verbs: read, do: canI},
	{name: "events are in describe", verbs: read, applies: needsConditions, do: events},
}

func discovered(t *T, k *kind) {
	resource := k.discover(t)
	assert.Equal(t, k.Kind, resource.Kind)
	assert.Equal(t, k.Namespaced, resource.Namespaced)
	assert.Equal(t, strings.ToLower(k.Kind), resource.SingularName)
	assert.ElementsMatch(t, k.ShortNames, resource.ShortNames, "short names")
	assert.Equal(t, []string{k.Category}, resource.Categories, "categories")
	assert.ElementsMatch(t, k.Verbs, resource.Verbs, "verbs")
	var sub []string
	for _, r := range k.discoverAll(t) {
		if name, ok := strings.CutPrefix(r.Name, k.Resource+"/"); ok {
			sub = append(sub, name)
		}
	}
	assert.ElementsMatch(t, k.Subresources, sub, "subresources")
}

func (k *kind) discoverAll(t *T) []metav1.APIResource {
	client, err := discovery.NewDiscoveryClientForConfig(t.config(admin))
	require.NoError(t, err)
	list, err := client.ServerResourcesForGroupVersion(k.gvk().GroupVersion().String())
	require.NoError(t, err)
	return list.APIResources
}

func (k *kind) discover(t *T) metav1.APIResource {
	all := k.discoverAll(t)
	at := slices.IndexFunc(all, func(r metav1.APIResource) bool { return r.Name == k.Resource })
	require.GreaterOrEqual(t, at, 0, "%s is not in discovery", k.Resource)
	return all[at]
}

func aggregated(t *T, k *kind) {
	client, err := discovery.NewDiscoveryClientForConfig(t.config(admin))
	require.NoError(t, err)
	_, resources, failed, err := client.GroupsAndMaybeResources()
	require.NoError(t, err)
	assert.Empty(t, failed)
	require.NotNil(t, resources, "kube-apiserver does not serve aggregated discovery")
	list := resources[k.gvk().GroupVersion()]
	require.NotNil(t, list, "%s is not in aggregated discovery", k.Group)
	assert.True(t, slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == k.Resource && r.Kind == k.Kind }))
}

func apiResources(t *T, k *kind) {
	out := t.kubectl(k.User, "api-resources", "--api-group="+k.Group, "--categories="+k.Category, "--no-headers")
	assert.Contains(t, out.stdout, k.Kind, "category %s", k.Category)
	assert.Empty(t, out.stderr)
}

// shortNames checks that kubectl finds the kind by its short names, and that no kind of another
// group uses them.
func shortNames(t *T, k *kind) {
	client, err := discovery.NewDiscoveryClientForConfig(t.config(admin))
	require.NoError(t, err)
	_, lists, err := client.ServerGroupsAndResources()
	require.NoError(t, err)
	want := t.kubectl(k.User, "get", k.resource(), "-o", "name").stdout
	for _, short := range append([]string{k.Resource, strings.ToLower(k.Kind)}, k.ShortNames...) {
		taken := ""
		for _, list := range lists {
			for _, r := range list.APIResources {
				if r.Kind != k.Kind && (r.Name == short || slices.Contains(r.ShortNames, short)) {
					taken = r.Name + " of " + list.GroupVersion
				}
			}
		}
		if short == "leases" { // the name of coordination.k8s.io's kind; MacRack's only directly at macrack-apiserver
			assert.Equal(t, want, t.kubectl(k.User, "get", "leases."+k.Group, "-o", "name").stdout)
			continue
		}
		if assert.Empty(t, taken, "short name %s", short) {
			assert.Equal(t, want, t.kubectl(k.User, "get", short, "-o", "name").stdout, "kubectl get %s", short)
		}
	}
}

func formats(t *T, k *kind) {
	obj := k.settled(t)
	name := obj.GetName()
	get := func(format string) string {
		out := t.kubectl(k.User, "get", k.resource(), name, "-o", format)
		assert.Empty(t, out.stderr, format)
		return out.stdout
	}
	for _, format := range []string{"wide"} {
		table := get(format)
		assert.Contains(t, table, name)
		for _, bad := range []string{"<unknown>", "<invalid>", "<nil>", "%!"} {
			assert.NotContains(t, table, bad)
		}
	}
	assert.Equal(t, strings.ToLower(k.Kind)+"."+k.Group+"/"+name+"\n", get("name"))
	assert.Equal(t, name+" "+k.Kind, get("jsonpath={.metadata.name} {.kind}"))
	assert.Equal(t, []string{"N", "K", name, k.Kind}, strings.Fields(get("custom-columns=N:.metadata.name,K:.kind")))
	fromJSON, fromYAML := map[string]any{}, map[string]any{}
	require.NoError(t, json.Unmarshal([]byte(get("json")), &fromJSON))
	require.NoError(t, yaml.Unmarshal([]byte(get("yaml")), &fromYAML))
	assert.Equal(t, withoutNow(fromJSON), withoutNow(fromYAML), "JSON and YAML")
}

// withoutNow drops fields that may change between two reads.
func withoutNow(obj map[string]any) map[string]any {
	obj = maps.Clone(obj)
	delete(obj, "status")
	if meta, ok := obj["metadata"].(map[string]any); ok {
		meta = maps.Clone(meta)
		delete(meta, "resourceVersion")
		delete(meta, "managedFields")
		delete(meta, "creationTimestamp")
		obj["metadata"] = meta
	}
	return obj
}

// explained reads the OpenAPI document as kubectl explain does, and every field of it.
func explained(t *T, k *kind) {
	out := t.kubectl(k.User, "explain", k.Resource+"."+k.Group, "--recursive")
	assert.Contains(t, out.stdout, "KIND:       "+k.Kind)
	assert.NotContains(t, out.stdout, "<empty>")

	client := t.rest(admin, k, "application/json")
	raw, err := client.Get().AbsPath("/openapi/v3/apis/" + k.Group + "/v1alpha1").DoRaw(t)
	require.NoError(t, err)
	doc := struct {
		Components struct {
			Schemas map[string]map[string]any `json:"schemas"`
		} `json:"components"`
	}{}
	require.NoError(t, json.Unmarshal(raw, &doc))
	root := ""
	for name, schema := range doc.Components.Schemas {
		if strings.Contains(toJSON(schema["x-kubernetes-group-version-kind"]), `"kind":"`+k.Kind+`"`) && !strings.HasSuffix(name, "List") {
			root = name
		}
	}
	require.NotEmpty(t, root, "the OpenAPI document has no schema of the kind")
	seen := map[string]bool{}
	var walk func(path string, schema map[string]any)
	walk = func(path string, schema map[string]any) {
		for ref := range references(schema) {
			if !seen[ref] && strings.Contains(ref, "macrack") {
				seen[ref] = true
				walk(path, doc.Components.Schemas[ref])
			}
		}
		properties, _ := schema["properties"].(map[string]any)
		for name, value := range properties {
			property := value.(map[string]any)
			if description, _ := property["description"].(string); description == "" {
				t.Errorf("%s.%s has no description", path, name)
			}
			walk(path+"."+name, property)
		}
	}
	walk(k.Kind, doc.Components.Schemas[root])
}

// references returns the names of the schemas that a schema refers to, excluding those of its
// properties.
func references(schema map[string]any) map[string]bool {
	found := map[string]bool{}
	add := func(value any) {
		if ref, ok := value.(string); ok {
			found[strings.TrimPrefix(ref, "#/components/schemas/")] = true
		}
	}
	add(schema["$ref"])
	for _, key := range []string{"items", "additionalProperties"} {
		if inner, ok := schema[key].(map[string]any); ok {
			maps.Copy(found, references(inner))
		}
	}
	all, _ := schema["allOf"].([]any)
	for _, inner := range all {
		maps.Copy(found, references(inner.(map[string]any)))
	}
	return found
}

func described(t *T, k *kind) {
	name := k.settled(t).GetName()
	out := t.kubectl(k.User, "describe", k.resource(), name)
	assert.Empty(t, out.stderr)
	assert.Regexp(t, `Name: +`+name, out.stdout)
	assert.Contains(t, out.stdout, "Kind:")
	assert.NotContains(t, out.stdout, "<nil>")
	if k.serves("update") {
		assert.Contains(t, out.stdout, "Events:")
	}
}

func tables(t *T, k *kind) {
	name := k.settled(t).GetName()
	for include, want := range map[string]string{"Object": k.Kind, "Metadata": "PartialObjectMetadata", "None": ""} {
		raw, err := t.rest(k.User, k, "application/json").Get().AbsPath(k.path(name)).Param("includeObject", include).
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t)
		require.NoError(t, err)
		table := metav1.Table{}
		require.NoError(t, json.Unmarshal(raw, &table))
		require.Len(t, table.Rows, 1)
		assert.Equal(t, name, table.Rows[0].Cells[0])
		assert.Len(t, table.Rows[0].Cells, len(table.ColumnDefinitions), "cells and columns")
		for _, column := range table.ColumnDefinitions {
			assert.NotEmpty(t, column.Description, "description of column %s", column.Name)
		}
		obj := unstructured.Unstructured{}
		if len(table.Rows[0].Object.Raw) > 0 && string(table.Rows[0].Object.Raw) != "null" {
			require.NoError(t, json.Unmarshal(table.Rows[0].Object.Raw, &obj.Object))
		}
		assert.Equal(t, want, obj.GetKind(), "includeObject=%s", include)
	}
}

func fieldSelectors(t *T, k *kind) {
	obj := k.settled(t)
	list := func(selector string) []string {
		found, err := k.client(t).List(t, metav1.ListOptions{FieldSelector: selector})
		require.NoError(t, err, selector)
		names := []string{}
		for _, item := range found.Items {
			names = append(names, item.GetName())
		}
		return names
	}
	assert.Equal(t, []string{obj.GetName()}, list("metadata.name="+obj.GetName()))
	assert.NotContains(t, list("metadata.name!="+obj.GetName()), obj.GetName())
	for _, path := range k.Fields {
		value := field(obj, path)
		assert.Contains(t, list(path+"="+value), obj.GetName(), "%s=%s", path, value)
		assert.NotContains(t, list(path+"!="+value), obj.GetName(), "%s!=%s", path, value)
		assert.Empty(t, list(path+"=no-such-value"))
	}
	_, err := k.client(t).List(t, metav1.ListOptions{FieldSelector: "spec.colour=green"})
	status := statusOf(t, err)
	assert.Equal(t, int32(http.StatusBadRequest), status.Code)
	assert.Contains(t, status.Message, "spec.colour")
}

func labelSelectors(t *T, k *kind) {
	obj := k.create(t)
	name := obj.GetName()
	for selector, want := range map[string]bool{
		runLabel + "=" + name:                  true,
		runLabel + "==" + name + ",!absent":    true,
		runLabel + " in (other, " + name + ")": true,
		runLabel:                               true,
		"!" + runLabel:                         false,
		runLabel + "!=" + name:                 false,
		runLabel + " notin (" + name + ")":     false,
	} {
		list, err := k.client(t).List(t, metav1.ListOptions{LabelSelector: selector})
		require.NoError(t, err, selector)
		has := slices.ContainsFunc(list.Items, func(o unstructured.Unstructured) bool { return o.GetName() == name })
		assert.Equal(t, want, has, selector)
	}
	out := t.try(k.User, "get", k.resource(), "-l", "a in (")
	assert.NotZero(t, out.code)
}

func chunks(t *T, k *kind) {
	k.settled(t)
	if k.serves("update") && k.Name == "" {
		k.create(t)
	}
	all, err := k.client(t).List(t, metav1List)
	require.NoError(t, err)
	var names, chunked []string
	for _, item := range all.Items {
		names = append(names, item.GetName())
	}
	options := metav1.ListOptions{Limit: 1}
	for range 10000 {
		part, err := k.client(t).List(t, options)
		require.NoError(t, err)
		if k.serves("watch") {
			assert.LessOrEqual(t, len(part.Items), 1)
		}
		for _, item := range part.Items {
			chunked = append(chunked, item.GetName())
		}
		if options.Continue = part.GetContinue(); options.Continue == "" || t.Err() != nil {
			break
		}
	}
	if len(chunked) != len(names) && !k.serves("update") { // the ledger grows
		assert.Subset(t, chunked, names)
		return
	}
	assert.Equal(t, names, chunked)
	_, err = k.client(t).List(t, metav1.ListOptions{Limit: 1, Continue: "Zm9yZ2Vk"})
	if k.serves("watch") {
		assert.Equal(t, metav1.StatusReasonBadRequest, statusOf(t, err).Reason, "a forged continue token")
	}
}

func absent(t *T, k *kind) {
	_, err := k.client(t).Get(t, "absent", metav1Get)
	status := statusOf(t, err)
	assert.Equal(t, int32(http.StatusNotFound), status.Code)
	assert.Equal(t, metav1.StatusReasonNotFound, status.Reason)
	require.NotNil(t, status.Details)
	assert.Equal(t, metav1.StatusDetails{Name: "absent", Group: k.Group, Kind: k.Resource}, *status.Details)
	assert.Contains(t, status.Message, k.Resource+"."+k.Group+` "absent" not found`)
}

func canI(t *T, k *kind) {
	for _, verb := range k.Verbs {
		want := "yes"
		if k.User == tenant && k.ReadOnly != "" && !slices.Contains([]string{"get", "list", "watch"}, verb) {
			want = "no"
		}
		out := t.try(k.User, "auth", "can-i", verb, k.resource())
		assert.Equal(t, want, strings.TrimSpace(out.stdout), "%s may %s %s", k.User, verb, k.Resource)
	}
	if k.User == admin {
		want := "no"
		if k.Category == "macrack" {
			want = "yes"
		}
		out := t.try(tenant, "auth", "can-i", "list", k.resource())
		assert.Equal(t, want, strings.TrimSpace(out.stdout), "a tenant may list %s", k.Resource)
		out = t.try(tenant, "auth", "can-i", "update", k.resource())
		assert.Equal(t, "no", strings.TrimSpace(out.stdout), "a tenant may update %s", k.Resource)
	}
}

func events(t *T, k *kind) {
	name := k.settled(t).GetName()
	out := t.kubectl(k.User, "describe", k.resource(), name)
	_, list, _ := strings.Cut(out.stdout, "Events:")
	assert.NotEqual(t, "<none>", strings.TrimSpace(list), "the events of %s", name)
	assert.Contains(t, list, "Normal")
	out = t.kubectl(k.User, append(k.scope(), "events", "--for="+k.resource()+"/"+name)...)
	assert.Contains(t, out.stdout, k.Kind+"/"+name, "kubectl events --for")
}

// rest returns a REST client for the kind as a user that speaks a content type.
func (t *T) rest(user string, k *kind, contentType string) *rest.RESTClient {
	config := rest.CopyConfig(t.config(user))
	gv := k.gvk().GroupVersion()
	config.GroupVersion, config.APIPath, config.NegotiatedSerializer = &gv, "/apis", codecs
	config.ContentType, config.AcceptContentTypes = contentType, contentType
	client, err := rest.RESTClientFor(config)
	require.NoError(t, err)
	return client
}

// statusOf returns the Status of a refusal.
func statusOf(t *T, err error) metav1.Status {
	status := statusError(err)
	require.NotNil(t, status, "a refusal was expected, not %v", err)
	return status.Status()
}
