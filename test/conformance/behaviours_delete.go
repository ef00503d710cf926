package main

import (
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var deleting = []behaviour{
	{name: "wait --for=create and --for=delete", verbs: create, do: waits},
	{name: "delete with every cascade option", verbs: create, do: cascades},
	{name: "deletecollection takes a selector", verbs: []string{"create", "deletecollection"}, do: deleteCollection},
	{name: "a user's finalizer is kept, and keeps the object", verbs: update, do: finalizers},
	{name: "is collected with its owner", verbs: create, applies: needsNamespace, do: collected},
	{name: "its dependents are collected with it", verbs: create, do: collects},
	{name: "the ways of a deletion with a wrong UID or --ignore-not-found", verbs: create, do: deletePreconditions},
}

func waits(t *T, k *kind) {
	obj := k.object(t)
	k.vacate(t, obj)
	name := obj.GetName()
	waiting := make(chan output, 1)
	go func() { waiting <- t.try(k.User, "wait", "--for=create", k.resource()+"/"+name, "--timeout=30s") }()
	time.Sleep(300 * time.Millisecond) // so that kubectl most likely waits; the result is the same if it does not yet
	_, err := k.client(t).Create(t, obj, metav1Create)
	require.NoError(t, err)
	out := <-waiting
	assert.Zero(t, out.code, "wait --for=create: %s", out)

	out = t.kubectl(k.User, "delete", k.resource(), name, "--wait=false")
	assert.Contains(t, out.stdout, "deleted")
	k.gone(t, name)
}

func cascades(t *T, k *kind) {
	for _, cascade := range []string{"background", "foreground", "orphan"} {
		name := k.create(t).GetName()
		out := t.try(k.User, "delete", k.resource(), name, "--cascade="+cascade, "--timeout=60s")
		assert.Zero(t, out.code, "delete --cascade=%s: %s", cascade, out)
		_, err := k.client(t).Get(t, name, metav1Get)
		assert.True(t, isNotFound(err), "after delete --cascade=%s: %v", cascade, err)
	}
	name := k.create(t).GetName()
	out := t.try(k.User, "delete", k.resource(), name, "--now", "--timeout=60s")
	assert.Zero(t, out.code, "delete --now: %s", out)
}

func deleteCollection(t *T, k *kind) {
	obj := k.create(t)
	others, err := k.client(t).List(t, metav1.ListOptions{LabelSelector: runLabel + "!=" + obj.GetName()})
	require.NoError(t, err)
	err = k.client(t).DeleteCollection(t, metav1Delete, metav1.ListOptions{LabelSelector: runLabel + "=" + obj.GetName()})
	require.NoError(t, err)
	k.gone(t, obj.GetName())
	after, err := k.client(t).List(t, metav1.ListOptions{LabelSelector: runLabel + "!=" + obj.GetName()})
	require.NoError(t, err)
	assert.Len(t, after.Items, len(others.Items), "unselected objects stay")

	if k.Name == "" {
		byField := k.create(t).GetName()
		out := t.kubectl(k.User, "delete", k.resource(), "--field-selector=metadata.name="+byField, "--timeout=60s")
		assert.Equal(t, 1, strings.Count(out.stdout, "deleted"), out)
		k.gone(t, byField)
	}
}

func finalizers(t *T, k *kind) {
	obj := k.object(t)
	obj.SetFinalizers([]string{finalizer})
	k.vacate(t, obj)
	created, err := k.client(t).Create(t, obj, metav1Create)
	require.NoError(t, err)
	assert.Contains(t, created.GetFinalizers(), finalizer)
	require.NoError(t, k.client(t).Delete(t, obj.GetName(), metav1Delete))
	require.NoError(t, t.eventually(func() error {
		kept, err := k.client(t).Get(t, obj.GetName(), metav1Get)
		require.NoError(t, err, "an object with a finalizer is kept")
		require.NotNil(t, kept.GetDeletionTimestamp())
		if others := without(kept.GetFinalizers(), []string{finalizer}); len(others) > 0 {
			return errStillWritten
		}
		return nil
	}), "the server's finalizers are removed when their work is done")
	k.quiet(t, obj.GetName())
	kept := k.get(t, obj.GetName())
	kept.SetFinalizers(append(kept.GetFinalizers(), "conformance.example.com/late"))
	_, err = k.client(t).Update(t, kept, metav1Update)
	assert.Contains(t, []metav1.StatusReason{metav1.StatusReasonInvalid, metav1.StatusReasonForbidden}, statusOf(t, err).Reason, "a finalizer cannot be added to an object that is being deleted")
	k.mustPatch(t, obj.GetName(), map[string]any{"metadata": map[string]any{"finalizers": []any{}}})
	k.gone(t, obj.GetName())
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

func collected(t *T, k *kind) {
	owner, err := t.dynamic(admin).Resource(configMaps).Namespace(t.world.namespace).Create(t, configMap(t, nil), metav1Create)
	require.NoError(t, err)
	obj := k.object(t)
	k.vacate(t, obj)
	obj.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.GetName(), UID: owner.GetUID()}})
	_, err = k.client(t).Create(t, obj, metav1Create)
	require.NoError(t, err)
	require.NoError(t, t.dynamic(admin).Resource(configMaps).Namespace(t.world.namespace).Delete(t, owner.GetName(), metav1Delete))
	k.gone(t, obj.GetName())
}

func collects(t *T, k *kind) {
	owner := k.create(t)
	owned := configMap(t, nil)
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID()}})
	client := t.dynamic(admin).Resource(configMaps).Namespace(t.world.namespace)
	_, err := client.Create(t, owned, metav1Create)
	require.NoError(t, err)
	require.NoError(t, k.client(t).Delete(t, owner.GetName(), metav1Delete))
	k.gone(t, owner.GetName())
	require.NoError(t, t.eventually(func() error {
		_, err := client.Get(t, owned.GetName(), metav1Get)
		if isNotFound(err) {
			return nil
		}
		return errStillWritten
	}), "the garbage collector deletes the ConfigMap")
}

func deletePreconditions(t *T, k *kind) {
	obj := k.create(t)
	wrong := obj.GetUID() + "0"
	err := k.client(t).Delete(t, obj.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
	assert.Equal(t, metav1.StatusReasonConflict, statusOf(t, err).Reason, "delete with another UID")
	err = k.client(t).Delete(t, "absent", metav1Delete)
	assert.Equal(t, metav1.StatusReasonNotFound, statusOf(t, err).Reason)
	t.kubectl(k.User, "delete", k.resource(), "absent", "--ignore-not-found")
}
