package main

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// pairObjects are a lease and its instance, both named pair.
func (w *world) pairObjects() []*unstructured.Unstructured {
	return []*unstructured.Unstructured{w.lease("pair", "base"), w.instance("pair", "pair")}
}

func pair(t *T) {
	namespace := "--namespace=" + namespaceFor(t, "pair")
	file := manifest(t, t.world.pairObjects()...)
	out := t.try(tenant, "apply", "--dry-run=server", "-f", file, namespace)
	assert.Zero(t, out.code, "a dry run of the pair: %s", out)
	out = t.try(tenant, "apply", "--server-side", "--dry-run=server", "-f", file, namespace)
	assert.Zero(t, out.code, "a dry run of the pair by server-side apply: %s", out)
	out = t.try(tenant, "apply", "-f", file, namespace)
	assert.Zero(t, out.code, "the pair: %s", out)
	for _, object := range []string{"macnodeleases/pair", "macosinstances/pair"} {
		out = t.try(tenant, "wait", "--for=condition=Ready", object, "--timeout=60s", namespace)
		assert.Zero(t, out.code, "wait for %s: %s", object, out)
	}
	out = t.try(tenant, "apply", "-f", file, namespace)
	assert.Equal(t, 2, strings.Count(out.stdout, "unchanged"), "apply again: %s", out)
	records := t.kubectl(tenant, "get", "auditrecords", "--field-selector=type=InstanceRejected", "-o", "name", namespace)
	assert.Empty(t, records.stdout, "the pair must not cause a rejection in the ledger")
}

// held uses the pair of the previous scenario, or creates one.
func held(t *T) {
	namespace := ensurePair(t)
	t.kubectl(tenant, "delete", "macnodeleases", "pair", "--wait=false", "--namespace="+namespace)
	leases := t.dynamic(tenant).Resource(leaseResource).Namespace(namespace)
	require.NoError(t, t.eventually(func() error {
		lease, err := leases.Get(t, "pair", metav1Get)
		if err == nil && field(lease, "status.phase") != "Held" {
			err = fmt.Errorf("the lease is %s", field(lease, "status.phase"))
		}
		return err
	}))
	out := t.try(tenant, "wait", "--for=condition=Bound", "macnodeleases/pair", "--timeout=20s", "--namespace="+namespace)
	assert.Zero(t, out.code, "wait for Bound of a Held lease: %s", out)
	out = t.try(tenant, "label", "macnodeleases", "pair", "held=yes", "--namespace="+namespace)
	assert.Zero(t, out.code, out)
}

// ensurePair returns the namespace of a pair, which it creates object by object unless it exists.
func ensurePair(t *T) string {
	namespace := namespaceFor(t, "pair")
	leases, instances := t.dynamic(tenant).Resource(leaseResource).Namespace(namespace), t.dynamic(tenant).Resource(instanceResource).Namespace(namespace)
	objects := t.world.pairObjects()
	if _, err := leases.Get(t, "pair", metav1Get); isNotFound(err) {
		_, err := leases.Create(t, objects[0], metav1Create)
		require.NoError(t, err)
	}
	require.NoError(t, t.eventually(func() error {
		lease, err := leases.Get(t, "pair", metav1Get)
		if err == nil && field(lease, "status.nodeName") == "" {
			err = fmt.Errorf("the lease is %s", field(lease, "status.phase"))
		}
		return err
	}))
	if _, err := instances.Get(t, "pair", metav1Get); isNotFound(err) {
		_, err := instances.Create(t, objects[1], metav1Create)
		require.NoError(t, err)
	}
	return namespace
}

// restoreNamespace backs up the namespace of the suite, restores its lost objects, and restores all
// objects into a fresh namespace.
func restoreNamespace(t *T) {
	leases, instances := t.dynamic(tenant).Resource(leaseResource), t.dynamic(tenant).Resource(instanceResource)
	from := ensurePair(t)
	lease, err := leases.Namespace(from).Get(t, "pair", metav1Get)
	require.NoError(t, err)
	instance, err := instances.Namespace(from).Get(t, "pair", metav1Get)
	require.NoError(t, err)

	out := t.try(tenant, "delete", "macosinstances", "pair", "--timeout=60s", "--namespace="+from)
	require.Zero(t, out.code, out)
	_, err = leases.Namespace(from).Create(t, exported(lease), metav1Create)
	assert.Equal(t, int32(409), statusOf(t, err).Code, "an existing object is left alone")
	restored, err := instances.Namespace(from).Create(t, exported(instance), metav1Create)
	require.NoError(t, err, "the instance, into its own namespace")
	assert.Equal(t, instance.Object["spec"], restored.Object["spec"])

	to := namespaceFor(t, "restored")
	freshLease, freshInstance := exported(lease), exported(instance)
	freshLease.SetNamespace(to)
	freshInstance.SetNamespace(to)
	_, err = leases.Namespace(to).Create(t, freshLease, metav1Create)
	require.NoError(t, err, "the lease, into a fresh namespace")
	_, err = instances.Namespace(to).Create(t, freshInstance, metav1Create)
	require.NoError(t, err, "the instance, into a fresh namespace")
	out = t.try(tenant, "wait", "--for=condition=GuestReady", "macosinstances/pair", "--timeout=60s", "--namespace="+to)
	assert.Zero(t, out.code, "the restored instance: %s", out)
}

func namespaceDeleted(t *T) {
	namespace := namespaceFor(t, "deleted")
	_, err := t.dynamic(tenant).Resource(leaseResource).Namespace(namespace).Create(t, t.world.lease("pending", "studio"), metav1Create)
	require.NoError(t, err)
	out := t.try(admin, "delete", "namespace", namespace, "--timeout=90s")
	assert.Zero(t, out.code, "delete namespace: %s", out)
}
