package registry

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// managers returns the managed fields of n managers that apply.
func managers(n int) []metav1.ManagedFieldsEntry {
	at := metav1.NewTime(noon)
	entries := make([]metav1.ManagedFieldsEntry, n)
	for i := range entries {
		entries[i] = metav1.ManagedFieldsEntry{
			Manager: fmt.Sprint(i), Operation: metav1.ManagedFieldsOperationApply, APIVersion: instancev1alpha1.SchemeGroupVersion.String(), Time: &at,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:x":{}}}}`),
		}
	}
	return entries
}

// An object with more managers than any object has is refused, whichever verb writes it, and before
// the field manager looks at each of them.
func TestTooManyManagers(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "first", "build")))
	instances := f.acme.InstanceV1alpha1().MacOSInstances("acme")
	many := managers(15_000)
	list, err := json.Marshal(many)
	require.NoError(t, err)
	patch := func(kind types.PatchType, body string) func(options []string) error {
		return func(dryRun []string) error {
			_, err := instances.Patch(t.Context(), "first", kind, []byte(body), metav1.PatchOptions{DryRun: dryRun})
			return err
		}
	}
	for name, write := range map[string]func(dryRun []string) error{
		"create": func(dryRun []string) error {
			second := newInstance("acme", "second", "build")
			second.ManagedFields = many
			_, err := instances.Create(t.Context(), second, metav1.CreateOptions{DryRun: dryRun})
			return err
		},
		"update": func(dryRun []string) error {
			first := f.getInstance("acme", "first")
			first.ManagedFields = many
			_, err := instances.Update(t.Context(), first, metav1.UpdateOptions{DryRun: dryRun})
			return err
		},
		"merge patch":           patch(types.MergePatchType, `{"metadata":{"managedFields":`+string(list)+`}}`),
		"JSON patch":            patch(types.JSONPatchType, `[{"op":"replace","path":"/metadata/managedFields","value":`+string(list)+`}]`),
		"strategic merge patch": patch(types.StrategicMergePatchType, `{"metadata":{"managedFields":`+string(list)+`}}`),
	} {
		for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
			start := time.Now()
			err := write(dryRun)
			t.Log(name, dryRun, time.Since(start))
			assert.True(t, apierrors.IsInvalid(err) || apierrors.IsBadRequest(err), "%s: %.200v", name, err)
			assert.ErrorContains(t, err, "metadata.managedFields: Too many", name)
		}
	}
	first := f.getInstance("acme", "first")
	first.ManagedFields = managers(64)
	_, err = instances.Update(t.Context(), first, metav1.UpdateOptions{})
	assert.NoError(t, err, "as many as are stored of an object")
}
