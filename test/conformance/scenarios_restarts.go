package main

import (
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// versions returns the generations of all objects of the example.
func (t *T) versions() map[string]int64 {
	out := map[string]int64{}
	list := t.kubectl(admin, "get", "macnodeclasses,instanceclasses,macosimages,macnodes,rackconfigs", "-o", "yaml")
	parsed := unstructured.UnstructuredList{}
	require.NoError(t, yaml.Unmarshal([]byte(list.stdout), &parsed))
	for _, item := range parsed.Items {
		out[item.GetKind()+"/"+item.GetName()] = item.GetGeneration()
	}
	return out
}

func restarts(t *T) {
	lease := func() *unstructured.Unstructured {
		got, err := t.dynamic(tenant).Resource(leaseResource).Namespace(t.world.namespace).Get(t, "settled", metav1Get)
		require.NoError(t, err)
		return got
	}
	instance := func() *unstructured.Unstructured {
		got, err := t.dynamic(tenant).Resource(instanceResource).Namespace(t.world.namespace).Get(t, "settled", metav1Get)
		require.NoError(t, err)
		return got
	}
	beforeLease, beforeInstance := lease(), instance()
	names := t.world.cluster.Names()
	for _, name := range names {
		if strings.HasPrefix(name, "macrack-controllers-") || strings.HasPrefix(name, "macrack-apiserver-") {
			require.NoError(t, t.world.cluster.Restart(t, name), "restart %s", name)
		}
	}
	require.True(t, slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "macrack-controllers-") }))
	// The controllers report on a new lease, so they work.
	name := t.world.name()
	leases := t.dynamic(tenant).Resource(leaseResource).Namespace(t.world.namespace)
	require.NoError(t, t.eventually(func() error {
		_, err := leases.Create(t, t.world.lease(name, "studio"), metav1Create)
		return err
	}))
	t.cleanup(func() { _ = leases.Delete(t, name, metav1Delete) })
	require.NoError(t, t.eventually(func() error {
		got, err := leases.Get(t, name, metav1Get)
		if err == nil && field(got, "status.conditions") == "" {
			err = errStillWritten
		}
		return err
	}), "the controllers report on a new lease")
	select {
	case <-time.After(3 * time.Second):
	case <-t.Done():
	}
	for _, got := range []struct{ before, after *unstructured.Unstructured }{{beforeLease, lease()}, {beforeInstance, instance()}} {
		assert.JSONEq(t, "{}", changes(unreported(got.before), unreported(got.after)), "%s was written", got.after.GetKind())
	}
}

// unreported returns an object without the time of the last report of its agent, which continues to
// report while controllers and servers restart.
func unreported(obj *unstructured.Unstructured) *unstructured.Unstructured {
	out := obj.DeepCopy()
	out.SetResourceVersion("")
	managed := out.GetManagedFields()
	for i := range managed {
		managed[i].Time = nil
	}
	out.SetManagedFields(managed)
	unstructured.RemoveNestedField(out.Object, "status", "ipAddress", "observedAt")
	return out
}
