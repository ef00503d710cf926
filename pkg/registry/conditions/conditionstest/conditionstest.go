// Package conditionstest formats conditions for tests.
package conditionstest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// KStatus returns the status of an object according to kstatus, which helm, Flux and kustomize
// tools use for waiting.
func KStatus(t testing.TB, meta metav1.ObjectMeta, conditions []metav1.Condition) string {
	t.Helper()
	type object struct {
		APIVersion        string `json:"apiVersion"`
		Kind              string `json:"kind"`
		metav1.ObjectMeta `json:"metadata"`
		Status            struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	obj := object{APIVersion: "macrack.io/v1", Kind: "Any", ObjectMeta: meta}
	obj.Status.Conditions = conditions
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&obj)
	require.NoError(t, err)
	return Compute(t, &unstructured.Unstructured{Object: content})
}

// Compute returns the status that kstatus computes.
func Compute(t testing.TB, obj *unstructured.Unstructured) string {
	t.Helper()
	result, err := status.Compute(obj)
	require.NoError(t, err)
	return string(result.Status)
}

// Lines returns conditions as "Type=Status Reason: message", in the order of their types.
func Lines(conditions []metav1.Condition) []string {
	var lines []string
	for _, c := range conditions {
		lines = append(lines, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	slices.Sort(lines)
	return lines
}
