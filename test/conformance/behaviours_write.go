package main

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

var writing = []behaviour{
	{name: "every type of patch", verbs: update, do: patches},
	{name: "label and annotate", verbs: update, do: labelAndAnnotate},
	{name: "a dry run changes nothing and answers as the real request", verbs: update, do: dryRuns},
	{name: "each condition is waited for after a change", verbs: update, applies: needsConditions, do: conditions},
	{name: "generateName", verbs: create, do: generateName},
	{name: "a stale resourceVersion is a 409", verbs: update, do: staleVersion},
	{name: "an update without a resourceVersion is unconditional", verbs: update, do: unconditional},
	{name: "the status is not written through the main resource", verbs: update, applies: needsStatus, do: statusIgnored},
	{name: "unknown fields cause a warning, or an error on request", verbs: create, do: unknownFields},
	{name: "a second object of the same name is a 409", verbs: create, do: alreadyExists},
	{name: "an invalid value is a 422 that names the field", verbs: update, do: invalidValue},
	{name: "a change of an immutable field is a 422 that names the field", verbs: update, applies: needsImmutable, do: immutableField},
	{name: "the generation counts changes of the spec only", verbs: update, do: generations},
}

func patches(t *T, k *kind) {
	obj := k.create(t)
	client := k.client(t)
	for _, p := range []struct {
		kind types.PatchType
		body string
	}{
		{types.JSONPatchType, `[{"op":"add","path":"/metadata/labels/json","value":"yes"}]`},
		{types.MergePatchType, `{"metadata":{"labels":{"merge":"yes"}}}`},
		{types.StrategicMergePatchType, `{"metadata":{"labels":{"strategic":"yes"}}}`},
		{types.ApplyYAMLPatchType, fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, labels: {apply: 'yes'}}\nspec: %s\n",
			obj.GetAPIVersion(), obj.GetKind(), obj.GetName(), toJSON(obj.Object["spec"]))},
	} {
		force := true
		options := metav1.PatchOptions{FieldManager: "conformance"}
		if p.kind == types.ApplyYAMLPatchType {
			options.Force = &force
		}
		_, err := client.Patch(t, obj.GetName(), p.kind, []byte(p.body), options)
		assert.NoError(t, err, p.kind)
	}
	live := k.get(t, obj.GetName())
	for _, label := range []string{"json", "merge", "strategic", "apply"} {
		assert.Equal(t, "yes", live.GetLabels()[label], label)
	}
	assert.Equal(t, obj.Object["spec"], live.Object["spec"])
	for _, kind := range []string{"json", "merge", "strategic"} {
		body := `{"metadata":{"annotations":{"kubectl":"` + kind + `"}}}`
		if kind == "json" {
			body = `[{"op":"add","path":"/metadata/annotations","value":{"kubectl":"json"}}]`
		}
		out := t.try(k.User, "patch", k.resource(), obj.GetName(), "--type="+kind, "-p", body)
		assert.Zero(t, out.code, "kubectl patch --type=%s: %s", kind, out)
	}
	// A test that fails, and a patch that cannot be made.
	_, err := client.Patch(t, obj.GetName(), types.JSONPatchType, []byte(`[{"op":"test","path":"/kind","value":"Other"}]`), metav1Patch)
	assert.Equal(t, int32(http.StatusUnprocessableEntity), statusOf(t, err).Code)
	_, err = client.Patch(t, obj.GetName(), types.MergePatchType, []byte(`[]`), metav1Patch)
	assert.Equal(t, int32(http.StatusBadRequest), statusOf(t, err).Code)
}

func labelAndAnnotate(t *T, k *kind) {
	name := k.create(t).GetName()
	t.kubectl(k.User, "label", k.resource(), name, "team=ios")
	assert.NotZero(t, t.try(k.User, "label", k.resource(), name, "team=macos").code, "a label is not overwritten without --overwrite")
	t.kubectl(k.User, "label", k.resource(), name, "team=macos", "--overwrite")
	t.kubectl(k.User, "annotate", k.resource(), name, "note=hello world")
	live := k.get(t, name)
	assert.Equal(t, "macos", live.GetLabels()["team"])
	assert.Equal(t, "hello world", live.GetAnnotations()["note"])
	t.kubectl(k.User, "label", k.resource(), name, "team-")
	t.kubectl(k.User, "annotate", k.resource(), name, "note-")
	live = k.get(t, name)
	assert.NotContains(t, live.GetLabels(), "team")
	assert.NotContains(t, live.GetAnnotations(), "note")
}

// dryRuns makes every request twice, the first time as a dry run.
func dryRuns(t *T, k *kind) {
	client := k.client(t)
	dry := []string{metav1.DryRunAll}
	obj := k.object(t)
	k.vacate(t, obj)
	name := obj.GetName()

	would, err := client.Create(t, obj, metav1.CreateOptions{DryRun: dry})
	require.NoError(t, err, "dry run of create")
	_, err = client.Get(t, name, metav1Get)
	assert.True(t, isNotFound(err), "a dry run of create stored the object")
	is, err := client.Create(t, obj, metav1Create)
	require.NoError(t, err)
	assert.Equal(t, answer(would), answer(is), "create")

	k.quiet(t, name)
	for what, do := range map[string]func(dry []string) (*unstructured.Unstructured, error){
		"update": func(dry []string) (*unstructured.Unstructured, error) {
			live := k.get(t, name)
			live.SetAnnotations(map[string]string{"updated": "yes"})
			return client.Update(t, live, metav1.UpdateOptions{DryRun: dry})
		},
		"patch": func(dry []string) (*unstructured.Unstructured, error) {
			return client.Patch(t, name, mergePatch, []byte(`{"metadata":{"labels":{"patched":"yes"}}}`), metav1.PatchOptions{DryRun: dry})
		},
		"apply": func(dry []string) (*unstructured.Unstructured, error) {
			labelled := obj.DeepCopy()
			labelled.SetLabels(map[string]string{runLabel: name, "applied": "yes"})
			return client.Apply(t, name, labelled, metav1.ApplyOptions{FieldManager: "dry", Force: true, DryRun: dry})
		},
	} {
		before := k.get(t, name)
		would, err := do(dry)
		require.NoError(t, err, "dry run of "+what)
		assert.Equal(t, before.GetResourceVersion(), k.get(t, name).GetResourceVersion(), "a dry run of %s wrote", what)
		is, err := do(nil)
		require.NoError(t, err, what)
		assert.Equal(t, answer(would), answer(is), what)
	}
	_, err = client.Patch(t, name, mergePatch, []byte(toJSON(k.Invalid.Patch)), metav1.PatchOptions{DryRun: dry})
	would422 := statusOf(t, err)
	_, err = client.Patch(t, name, mergePatch, []byte(toJSON(k.Invalid.Patch)), metav1Patch)
	assert.Equal(t, would422, statusOf(t, err), "the dry run of an invalid patch")

	before := k.get(t, name)
	require.NoError(t, client.Delete(t, name, metav1.DeleteOptions{DryRun: dry}), "dry run of delete")
	after := k.get(t, name)
	assert.Equal(t, before.GetResourceVersion(), after.GetResourceVersion(), "a dry run of delete wrote")
	assert.Nil(t, after.GetDeletionTimestamp())
	for _, verb := range [][]string{{"label", k.resource(), name, "dry=run"}, {"annotate", k.resource(), name, "dry=run"}, {"delete", k.resource(), name}} {
		t.kubectl(k.User, append(verb, "--dry-run=server")...)
	}
	assert.Equal(t, before.GetResourceVersion(), k.get(t, name).GetResourceVersion(), "kubectl --dry-run=server wrote")
}

// answer returns an object without the fields that differ between two requests.
func answer(obj *unstructured.Unstructured) map[string]any {
	out := obj.DeepCopy()
	for _, drop := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields"} {
		unstructured.RemoveNestedField(out.Object, "metadata", drop)
	}
	return out.Object
}

// conditions changes the spec of a settled object, where a kind allows that, and waits for each
// condition.
func conditions(t *T, k *kind) {
	name := k.settled(t).GetName()
	if k.Change != nil {
		before := k.get(t, name)
		after := k.mustPatch(t, name, t.world.expand(k.Change).(map[string]any))
		assert.Equal(t, before.GetGeneration()+1, after.GetGeneration(), "generation")
	}
	t.kubectl(k.User, "label", k.resource(), name, "changed="+t.world.name(), "--overwrite")
	for _, condition := range k.Conditions {
		out := t.try(k.User, "wait", "--for=condition="+condition, k.resource()+"/"+name, "--timeout=20s")
		assert.Zero(t, out.code, "kubectl wait --for=condition=%s: %s", condition, out)
	}
	live := k.get(t, name)
	list, _, _ := unstructured.NestedSlice(live.Object, "status", "conditions")
	for _, item := range list {
		condition := item.(map[string]any)
		assert.EqualValues(t, live.GetGeneration(), condition["observedGeneration"], "observedGeneration of %s", condition["type"])
		assert.NotEmpty(t, condition["reason"], "reason of %s", condition["type"])
		assert.NotEmpty(t, condition["lastTransitionTime"], "lastTransitionTime of %s", condition["type"])
	}
}

func generateName(t *T, k *kind) {
	obj := k.object(t)
	unstructured.RemoveNestedField(obj.Object, "metadata", "name")
	obj.SetGenerateName("generated-")
	created, err := k.client(t).Create(t, obj, metav1Create)
	require.NoError(t, err)
	t.cleanup(func() { k.remove(t, created.GetName()) })
	assert.Regexp(t, "^generated-[a-z0-9]{5}$", created.GetName())
	k.remove(t, created.GetName()) // a lease has room for one more instance only
	out := t.command(k.User, toJSON(obj), nil, "kubectl", append(k.scope(), "create", "--dry-run=server", "-o", "name", "-f", "-")...)
	assert.Zero(t, out.code, out)
	assert.Contains(t, out.stdout, "/generated-")
}

func staleVersion(t *T, k *kind) {
	stale := k.create(t)
	k.mustPatch(t, stale.GetName(), map[string]any{"metadata": map[string]any{"labels": map[string]any{"newer": "yes"}}})
	stale.SetAnnotations(map[string]string{"stale": "yes"})
	_, err := k.client(t).Update(t, stale, metav1Update)
	status := statusOf(t, err)
	assert.Equal(t, metav1.StatusReasonConflict, status.Reason)
	assert.Equal(t, int32(http.StatusConflict), status.Code)
	assert.Contains(t, status.Message, "the object has been modified; please apply your changes to the latest version and try again")
	assert.Contains(t, status.Message, k.Resource+"."+k.Group)
	_, err = k.client(t).Patch(t, stale.GetName(), mergePatch, []byte(`{"metadata":{"resourceVersion":"`+stale.GetResourceVersion()+`","labels":{"stale":"yes"}}}`), metav1Patch)
	assert.Equal(t, metav1.StatusReasonConflict, statusOf(t, err).Reason, "a patch with a resourceVersion")
	old := stale.GetResourceVersion()
	err = k.client(t).Delete(t, stale.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &old}})
	assert.Equal(t, metav1.StatusReasonConflict, statusOf(t, err).Reason, "a delete with a resourceVersion")
}

func unconditional(t *T, k *kind) {
	obj := k.create(t)
	k.mustPatch(t, obj.GetName(), map[string]any{"metadata": map[string]any{"labels": map[string]any{"newer": "yes"}}})
	obj.SetResourceVersion("")
	obj.SetAnnotations(map[string]string{"unconditional": "yes"})
	updated, err := k.client(t).Update(t, obj, metav1Update)
	require.NoError(t, err)
	assert.Equal(t, "yes", updated.GetAnnotations()["unconditional"])
	assert.NotContains(t, updated.GetLabels(), "newer", "an update replaces the object")
}

func statusIgnored(t *T, k *kind) {
	obj := k.object(t)
	k.vacate(t, obj)
	obj.Object["status"] = k.Status
	created, err := k.client(t).Create(t, obj, metav1Create)
	require.NoError(t, err)
	for name, value := range k.Status {
		assert.NotEqual(t, fmt.Sprint(value), field(created, "status."+name), "create wrote status.%s", name)
	}
	k.quiet(t, obj.GetName())
	live := k.get(t, obj.GetName())
	status := live.Object["status"]
	live.Object["status"] = k.Status
	updated, err := k.client(t).Update(t, live, metav1Update)
	require.NoError(t, err)
	assert.Equal(t, status, updated.Object["status"], "update")
	patched := k.mustPatch(t, obj.GetName(), map[string]any{"status": k.Status})
	assert.Equal(t, status, patched.Object["status"], "patch")
	if k.User == tenant {
		_, err = k.client(t).UpdateStatus(t, live, metav1Update)
		assert.Equal(t, metav1.StatusReasonForbidden, statusOf(t, err).Reason, "a tenant must not write a status")
	}
}

type warnings struct{ texts []string }

func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }

func unknownFields(t *T, k *kind) {
	obj := k.object(t)
	k.vacate(t, obj)
	spec := maps.Clone(obj.Object["spec"].(map[string]any))
	spec["colour"] = "green"
	obj.Object["spec"] = spec
	post := func(validation string) (rest.Result, []string) {
		w := &warnings{}
		client := t.rest(k.User, k, "application/json")
		result := client.Post().AbsPath(k.path()).Param("fieldValidation", validation).SetHeader("Content-Type", "application/json").WarningHandler(w).Body([]byte(toJSON(obj))).Do(t)
		return result, w.texts
	}
	result, _ := post("Strict")
	status := statusOf(t, result.Error())
	assert.Equal(t, int32(http.StatusBadRequest), status.Code)
	assert.Contains(t, status.Message, `unknown field "spec.colour"`)
	result, texts := post("Warn")
	require.NoError(t, result.Error())
	assert.Contains(t, strings.Join(texts, "\n"), `unknown field "spec.colour"`)
	assert.NotContains(t, k.get(t, obj.GetName()).Object["spec"], "colour")
	out := t.command(k.User, toJSON(obj), nil, "kubectl", append(k.scope(), "apply", "-f", "-")...)
	assert.NotZero(t, out.code)
	assert.Contains(t, out.stderr, `unknown field "spec.colour"`, "kubectl apply")
}

func alreadyExists(t *T, k *kind) {
	obj := k.create(t)
	again := k.named(t, obj.GetName())
	again.Object["spec"] = obj.Object["spec"]
	_, err := k.client(t).Create(t, again, metav1Create)
	status := statusOf(t, err)
	assert.Equal(t, metav1.StatusReasonAlreadyExists, status.Reason)
	assert.Equal(t, int32(http.StatusConflict), status.Code)
	assert.Contains(t, status.Message, fmt.Sprintf("%s.%s %q already exists", k.Resource, k.Group, obj.GetName()))
}

// refuses wants a 422 for a patch, with a cause that has the field.
func (k *kind) refuses(t *T, name string, r *refused) {
	_, err := k.client(t).Patch(t, name, mergePatch, []byte(toJSON(t.world.expand(r.Patch))), metav1Patch)
	status := statusOf(t, err)
	assert.Equal(t, metav1.StatusReasonInvalid, status.Reason, status.Message)
	assert.Equal(t, int32(http.StatusUnprocessableEntity), status.Code, status.Message)
	require.NotNil(t, status.Details, status.Message)
	var fields []string
	for _, cause := range status.Details.Causes {
		fields = append(fields, cause.Field)
		assert.NotEmpty(t, cause.Message)
	}
	assert.Contains(t, fields, r.Field, status.Message)
	assert.Contains(t, status.Message, r.Field)
	assert.Equal(t, k.Kind, status.Details.Kind)
	assert.Equal(t, name, status.Details.Name)
}

func invalidValue(t *T, k *kind) {
	if k.Change != nil {
		k.refuses(t, k.create(t).GetName(), k.Invalid)
	}
	// It is refused at creation too.
	obj := k.object(t)
	merged := merge(obj.Object, t.world.expand(k.Invalid.Patch).(map[string]any))
	name := k.Name
	if name == "" {
		name = obj.GetName()
	}
	_, err := k.client(t).Create(t, &unstructured.Unstructured{Object: merged}, metav1Create)
	status := statusOf(t, err)
	if k.Name != "" && status.Reason == metav1.StatusReasonAlreadyExists {
		return
	}
	require.Equal(t, metav1.StatusReasonInvalid, status.Reason, status.Message)
	assert.True(t, slices.ContainsFunc(status.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == k.Invalid.Field }), status.Message)
	assert.Equal(t, name, status.Details.Name)
}

// merge applies a merge patch that removes nothing.
func merge(base, patch map[string]any) map[string]any {
	out := maps.Clone(base)
	for key, value := range patch {
		inner, isMap := value.(map[string]any)
		old, hasMap := out[key].(map[string]any)
		if isMap && hasMap {
			out[key] = merge(old, inner)
			continue
		}
		out[key] = value
	}
	return out
}

func immutableField(t *T, k *kind) { k.refuses(t, k.settled(t).GetName(), k.Immutable) }

func generations(t *T, k *kind) {
	obj := k.create(t)
	name := obj.GetName()
	assert.EqualValues(t, 1, obj.GetGeneration(), "a new object")
	labelled := k.mustPatch(t, name, map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}})
	assert.EqualValues(t, 1, labelled.GetGeneration(), "after a label")
	if k.Change == nil {
		return
	}
	changed := k.mustPatch(t, name, t.world.expand(k.Change).(map[string]any))
	assert.EqualValues(t, 2, changed.GetGeneration(), "after a change of the spec")
}
