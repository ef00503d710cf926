// Package strategytest tests the shared parts of the strategies of all kinds.
package strategytest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Context returns the context of a request in a namespace.
func Context(namespace string) context.Context {
	return genericapirequest.WithNamespace(genericapirequest.NewContext(), namespace)
}

// Create prepares and validates obj as the server does for a create request.
func Create(t *testing.T, strategy rest.RESTCreateStrategy, obj runtime.Object) error {
	t.Helper()
	accessor, err := meta.Accessor(obj)
	require.NoError(t, err)
	rest.FillObjectMetaSystemFields(accessor)
	return rest.BeforeCreate(strategy, Context(accessor.GetNamespace()), obj)
}

// Update prepares and validates obj as the server does for an update of old.
func Update(t *testing.T, strategy rest.RESTUpdateStrategy, obj, old runtime.Object) error {
	t.Helper()
	accessor, err := meta.Accessor(obj)
	require.NoError(t, err)
	accessor.SetResourceVersion("1")
	return rest.BeforeUpdate(strategy, Context(accessor.GetNamespace()), obj, old)
}

// Selectors asserts that the selectable fields of a kind are set and are those that the scheme
// accepts.
func Selectors(t *testing.T, scheme *runtime.Scheme, gvk schema.GroupVersionKind, set fields.Set) {
	t.Helper()
	for label, value := range set {
		gotLabel, gotValue, err := scheme.ConvertFieldLabel(gvk, label, value)
		if assert.NoError(t, err) {
			assert.Equal(t, [2]string{label, value}, [2]string{gotLabel, gotValue})
			assert.NotEmpty(t, value, "the value of %s", label)
		}
	}
	for _, label := range []string{"spec", "status", "spec.clearance", "metadata.labels", ""} {
		_, _, err := scheme.ConvertFieldLabel(gvk, label, "x")
		assert.Error(t, err, "the field %q", label)
	}
}

// KeepsMetadata asserts that a write of the status does not change the metadata that a client can
// set.
func KeepsMetadata(t *testing.T, strategy rest.RESTUpdateStrategy, oldObj runtime.Object) {
	t.Helper()
	obj := oldObj.DeepCopyObject()
	accessor, err := meta.Accessor(obj)
	require.NoError(t, err)
	old, err := meta.Accessor(oldObj)
	require.NoError(t, err)
	accessor.SetLabels(map[string]string{"forged": "yes"})
	accessor.SetAnnotations(map[string]string{"forged": "yes"})
	accessor.SetFinalizers([]string{"example.com/forged"})
	accessor.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "forged", UID: "forged"}})
	require.NoError(t, Update(t, strategy, obj, oldObj))
	assert.Equal(t, old.GetLabels(), accessor.GetLabels())
	assert.Equal(t, old.GetAnnotations(), accessor.GetAnnotations())
	assert.Equal(t, old.GetFinalizers(), accessor.GetFinalizers())
	assert.Equal(t, old.GetOwnerReferences(), accessor.GetOwnerReferences())
}
