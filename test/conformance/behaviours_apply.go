package main

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
)

var applying = []behaviour{
	{name: "a second apply prints unchanged", verbs: create, do: applyTwice},
	{name: "an object reads as it was written", verbs: create, do: asWritten},
	{name: "diff is empty after apply", verbs: create, do: diffEmpty},
	{name: "server-side apply after apply conflicts with nothing", verbs: create, do: serverSideAfterApply},
	{name: "server-side apply twice keeps the resourceVersion", verbs: create, do: serverSideTwice},
	{name: "a second manager applies equal values without conflict", verbs: create, do: secondManager},
	{name: "replace with the own manifest", verbs: update, do: replaceOwn},
	{name: "replace --force with the own manifest", verbs: update, do: replaceForce},
	{name: "edit", verbs: update, do: edit},
	{name: "apply --prune", verbs: create, applies: needsFreeName, do: prune},
	{name: "ApplySet", verbs: create, applies: needsFreeName, do: applySet},
	{name: "Argo's three-way diff is empty after settling", verbs: create, do: argo},
	{name: "Terraform plans nothing after apply", verbs: create, do: terraform},
	{name: "an export is restored into its own place", verbs: create, do: exportRestore},
}

// applied applies a new object from a file, as kubectl apply does.
func applied(t *T, k *kind) (obj *unstructured.Unstructured, file string) {
	obj = k.object(t)
	k.vacate(t, obj)
	file = manifest(t, obj)
	t.kubectl(k.User, "apply", "-f", file)
	return obj, file
}

func (k *kind) get(t *T, name string) *unstructured.Unstructured {
	obj, err := k.client(t).Get(t, name, metav1Get)
	require.NoError(t, err)
	return obj
}

func applyTwice(t *T, k *kind) {
	obj, file := applied(t, k)
	out := t.kubectl(k.User, "apply", "-f", file)
	assert.Contains(t, out.stdout, "unchanged")
	assert.Empty(t, out.stderr)
	assert.EqualValues(t, 1, k.get(t, obj.GetName()).GetGeneration(), "generation")
}

// asWritten writes values in unusual forms and reads them in every encoding.
func asWritten(t *T, k *kind) {
	obj, file := applied(t, k)
	check := func(when string) {
		live := k.get(t, obj.GetName())
		assert.Subset(t, live.Object["spec"], obj.Object["spec"], when)
	}
	check("after apply")
	typed := k.new(t)
	err := t.rest(k.User, k, "application/vnd.kubernetes.protobuf").Get().AbsPath(k.path(obj.GetName())).Do(t).Into(typed)
	require.NoError(t, err)
	assert.Subset(t, toUnstructured(t, typed)["spec"], obj.Object["spec"], "read in protobuf")
	typed.SetResourceVersion("") // the reporter of the status may write at any time
	err = t.rest(k.User, k, "application/vnd.kubernetes.protobuf").Put().AbsPath(k.path(obj.GetName())).Body(typed).Do(t).Error()
	require.NoError(t, err, "update in protobuf")
	check("after an update in protobuf")
	t.kubectl(k.User, "apply", "--server-side", "--force-conflicts", "-f", file)
	check("after server-side apply")
}

func diffEmpty(t *T, k *kind) {
	obj, file := applied(t, k)
	k.quiet(t, obj.GetName()) // kubectl diff reads the object twice, and shows a status written in between
	out := t.try(k.User, "diff", "-f", file)
	assert.Zero(t, out.code, "kubectl diff: %s", out)
	t.kubectl(k.User, "delete", "-f", file)
	t.kubectl(k.User, "apply", "--server-side", "-f", file)
	k.quiet(t, obj.GetName())
	out = t.try(k.User, "diff", "--server-side", "-f", file)
	assert.Zero(t, out.code, "kubectl diff --server-side: %s", out)
}

func serverSideAfterApply(t *T, k *kind) {
	obj, file := applied(t, k)
	before := k.get(t, obj.GetName())
	out := t.try(k.User, "apply", "--server-side", "-f", file)
	require.Zero(t, out.code, out)
	after := k.get(t, obj.GetName())
	assert.Equal(t, before.Object["spec"], after.Object["spec"])
	assert.Equal(t, before.GetGeneration(), after.GetGeneration(), "generation")
}

func serverSideTwice(t *T, k *kind) {
	obj := k.object(t)
	k.vacate(t, obj)
	file := manifest(t, obj)
	t.kubectl(k.User, "apply", "--server-side", "-f", file)
	k.quiet(t, obj.GetName())
	before := k.get(t, obj.GetName())
	t.kubectl(k.User, "apply", "--server-side", "-f", file)
	after := k.get(t, obj.GetName())
	assert.Equal(t, before.GetResourceVersion(), after.GetResourceVersion(), "resourceVersion; changes: %s", changes(before, after))
}

// quiet waits until the server's own clients have stopped writing to the object.
func (k *kind) quiet(t *T, name string) {
	last, since := "", time.Now()
	require.NoError(t, t.eventually(func() error {
		if version := k.get(t, name).GetResourceVersion(); version != last {
			last, since = version, time.Now()
		}
		if time.Since(since) < 1500*time.Millisecond {
			return errStillWritten
		}
		return nil
	}))
}

func changes(before, after *unstructured.Unstructured) string {
	patch, err := jsonpatch.CreateMergePatch([]byte(toJSON(before)), []byte(toJSON(after)))
	if err != nil {
		return err.Error()
	}
	return string(patch)
}

func secondManager(t *T, k *kind) {
	obj := k.object(t)
	k.vacate(t, obj)
	file := manifest(t, obj)
	t.kubectl(k.User, "apply", "--server-side", "-f", file)
	out := t.try(k.User, "apply", "--server-side", "--field-manager=another", "-f", file)
	require.Zero(t, out.code, out)
	owned := 0
	for _, entry := range k.get(t, obj.GetName()).GetManagedFields() {
		if entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == "" {
			owned++
		}
	}
	assert.Equal(t, 2, owned, "managers that own the fields")
}

func replaceOwn(t *T, k *kind) {
	obj, file := applied(t, k)
	k.quiet(t, obj.GetName())
	before := k.get(t, obj.GetName())
	out := t.try(k.User, "replace", "-f", file)
	require.Zero(t, out.code, out)
	after := k.get(t, obj.GetName())
	assert.Equal(t, before.Object["spec"], after.Object["spec"])
	assert.Equal(t, before.GetFinalizers(), after.GetFinalizers())
	assert.Equal(t, before.GetOwnerReferences(), after.GetOwnerReferences())
	assert.Equal(t, before.GetUID(), after.GetUID())
	assert.Equal(t, before.GetGeneration(), after.GetGeneration(), "generation")

	settled := k.settled(t)
	own := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": settled.GetAPIVersion(), "kind": settled.GetKind(),
		"metadata": map[string]any{"name": settled.GetName()}, "spec": settled.Object["spec"],
	}}
	own.SetNamespace(settled.GetNamespace())
	own.SetLabels(settled.GetLabels())
	out = t.try(k.User, "replace", "-f", manifest(t, own))
	assert.Zero(t, out.code, "a settled object: %s", out)
	settledAfter := k.get(t, settled.GetName())
	assert.Equal(t, settled.GetFinalizers(), settledAfter.GetFinalizers())
	assert.Equal(t, settled.GetOwnerReferences(), settledAfter.GetOwnerReferences())
}

func replaceForce(t *T, k *kind) {
	obj, file := applied(t, k)
	before := k.get(t, obj.GetName())
	out := t.try(k.User, "replace", "--force", "--timeout=60s", "-f", file)
	require.Zero(t, out.code, out)
	assert.NotEqual(t, before.GetUID(), k.get(t, obj.GetName()).GetUID())
}

func edit(t *T, k *kind) {
	obj, _ := applied(t, k)
	k.quiet(t, obj.GetName())
	editWith := func(editor string) output {
		return t.command(k.User, "", []string{"KUBE_EDITOR=" + editor}, "kubectl", append(k.scope(), "edit", k.resource(), obj.GetName())...)
	}
	out := editWith("true")
	assert.Zero(t, out.code, out)
	assert.Contains(t, out.String(), "Edit cancelled, no changes made.")

	script := filepath.Join(t.world.dir, t.world.name()+".sh")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nsed -i 's/^  labels:/  labels:\\n    edited: by-hand/' \"$1\"\n"), 0o755))
	out = editWith(script)
	require.Zero(t, out.code, out)
	assert.Contains(t, out.stdout, "edited")
	assert.Equal(t, "by-hand", k.get(t, obj.GetName()).GetLabels()["edited"])
}

// scope returns kubectl's flags for the namespace of the kind.
func (k *kind) scope() []string {
	if k.Namespaced {
		return []string{"--namespace=" + k.namespace()}
	}
	return nil
}

func prune(t *T, k *kind) {
	obj := k.object(t)
	k.vacate(t, obj)
	set := map[string]string{runLabel: obj.GetName()}
	keep := configMap(t, set)
	args := []string{"apply", "--prune", "--selector=" + runLabel + "=" + obj.GetName(), "--prune-allowlist=" + k.Group + "/v1alpha1/" + k.Kind, "-f"}
	t.kubectl(k.User, append(args, manifest(t, keep, obj))...)
	out := t.kubectl(k.User, append(args, manifest(t, keep, obj))...)
	assert.NotContains(t, out.stdout, "pruned")
	out = t.kubectl(k.User, append(args, manifest(t, keep))...)
	assert.Contains(t, out.stdout, obj.GetName()+" pruned")
	k.gone(t, obj.GetName())
}

// configMap returns a ConfigMap in the suite's namespace that is deleted at the end.
func configMap(t *T, labels map[string]string) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	obj.SetName(t.world.name())
	obj.SetNamespace(t.world.namespace)
	obj.SetLabels(labels)
	t.cleanup(func() {
		t.try(admin, "delete", "configmap", obj.GetName(), "--namespace="+t.world.namespace, "--ignore-not-found")
	})
	return obj
}

func applySet(t *T, k *kind) {
	obj := k.object(t)
	k.vacate(t, obj)
	keep := configMap(t, nil)
	parent := "configmap/" + t.world.name()
	t.cleanup(func() { t.try(admin, "delete", parent, "--namespace="+t.world.namespace, "--ignore-not-found") })
	if !k.Namespaced { // cluster-scoped members need a cluster-scoped parent, or a parent without a member list
		keep.SetNamespace(t.world.namespace)
	}
	apply := func(objects ...*unstructured.Unstructured) output {
		return t.command(k.User, "", []string{"KUBECTL_APPLYSET=true"}, "kubectl", "apply", "--namespace="+t.world.namespace,
			"--prune", "--applyset="+parent, "-f", manifest(t, objects...))
	}
	out := apply(keep, obj)
	require.Zero(t, out.code, out)
	out = apply(keep, obj)
	require.Zero(t, out.code, out)
	assert.NotContains(t, out.stdout, "pruned")
	assert.Contains(t, out.stdout, obj.GetName()+" unchanged")
	out = apply(keep)
	require.Zero(t, out.code, out)
	assert.Contains(t, out.stdout, obj.GetName()+" pruned")
	k.gone(t, obj.GetName())
}

// gone waits until an object is deleted.
func (k *kind) gone(t *T, name string) {
	out := t.try(k.User, "wait", "--for=delete", k.resource()+"/"+name, "--timeout=60s")
	assert.Zero(t, out.code, "wait --for=delete: %s", out)
}

// argo computes the diff of GitOps tools: last applied, desired and live.
func argo(t *T, k *kind) {
	obj, _ := applied(t, k)
	k.quiet(t, obj.GetName())
	live := k.get(t, obj.GetName())
	last := live.GetAnnotations()["kubectl.kubernetes.io/last-applied-configuration"]
	require.NotEmpty(t, last)
	last = strings.Replace(last, `"annotations":{},`, "", 1) // written by kubectl only
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch([]byte(last), []byte(toJSON(obj)), []byte(toJSON(live)))
	require.NoError(t, err)
	assert.JSONEq(t, `{}`, string(patch), "live differs from desired")
}

// terraform plans by a dry run of server-side apply, and compares the plan with the state of its
// last apply.
func terraform(t *T, k *kind) {
	obj := k.object(t)
	k.vacate(t, obj)
	apply := func(dryRun ...string) *unstructured.Unstructured {
		out, err := k.client(t).Apply(t, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "Terraform", DryRun: dryRun})
		require.NoError(t, err)
		return out
	}
	planned := apply(metav1.DryRunAll)
	state := apply()
	assert.Equal(t, planned.Object["spec"], state.Object["spec"], "the result must equal the plan; Terraform reports any difference as an inconsistent result")
	k.quiet(t, obj.GetName())
	again := apply(metav1.DryRunAll)
	live := k.get(t, obj.GetName())
	assert.Equal(t, state.Object["spec"], live.Object["spec"], "refresh")
	assert.Equal(t, live.Object["spec"], again.Object["spec"], "the second plan")
	assert.Equal(t, live.GetGeneration(), again.GetGeneration(), "generation")
	assert.Equal(t, live.GetLabels(), again.GetLabels(), "labels")
}

// exported returns an object as Velero restores it: without status, and with a part of the
// metadata, finalizers and managed fields included.
func exported(obj *unstructured.Unstructured) *unstructured.Unstructured {
	out := obj.DeepCopy()
	unstructured.RemoveNestedField(out.Object, "status")
	for _, drop := range []string{"generateName", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences"} {
		unstructured.RemoveNestedField(out.Object, "metadata", drop)
	}
	labels := out.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels["velero.io/backup-name"], labels["velero.io/restore-name"] = "backup", "restore"
	out.SetLabels(labels)
	return out
}

func exportRestore(t *T, k *kind) {
	obj, file := applied(t, k)
	k.quiet(t, obj.GetName())
	backup := exported(k.get(t, obj.GetName()))
	require.NoError(t, k.client(t).Delete(t, obj.GetName(), metav1Delete))
	k.gone(t, obj.GetName())
	restored, err := k.client(t).Create(t, backup, metav1Create)
	require.NoError(t, err, "restore")
	assert.Equal(t, backup.Object["spec"], restored.Object["spec"])
	k.quiet(t, obj.GetName())
	out := t.try(k.User, "diff", "-f", file)
	assert.NotContains(t, out.stdout, " spec:", "the original manifest must still match")
	assert.LessOrEqual(t, out.code, 1, out)
}

// mustPatch patches an object.
func (k *kind) mustPatch(t *T, name string, patch map[string]any) *unstructured.Unstructured {
	obj, err := k.client(t).Patch(t, name, mergePatch, []byte(toJSON(patch)), metav1Patch)
	require.NoError(t, err)
	return obj
}
