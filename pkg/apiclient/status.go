package apiclient

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// PatchType is the type of the patches of this package: lists with keys, such as conditions, are
// merged entry by entry.
const PatchType = types.StrategicMergePatchType

// Object is a pointer to a versioned object.
type Object[T any] interface {
	*T
	metav1.Object
}

// StatusPatch returns the patch of the subresource status from before to after. It has the
// differences and the UID, but no resource version: writes of other fields do not conflict, and a
// later object with the same name is not patched. Two writers of one field do not detect each
// other, so the server must validate each transition.
func StatusPatch[T any, P Object[T]](before, after P) ([]byte, error) {
	patch, err := diff(before, after)
	if err != nil {
		return nil, err
	}
	patch["metadata"] = map[string]any{"uid": before.GetUID()}
	if err := replaceStructs(patch, before, after); err != nil {
		return nil, err
	}
	return json.Marshal(patch)
}

// replaceStructs makes a patch replace each changed struct of a status as a whole, because a mix of
// two reports would be wrong.
func replaceStructs(patch map[string]any, before, after any) error {
	changed, _ := patch["status"].(map[string]any)
	oldStatus, err := statusOf(before)
	if err != nil {
		return err
	}
	newStatus, err := statusOf(after)
	if err != nil {
		return err
	}
	for name := range changed {
		// A server ignores a replacement of a field that is not set.
		if _, had := oldStatus[name].(map[string]any); !had {
			continue
		}
		if whole, has := newStatus[name].(map[string]any); has {
			whole["$patch"] = "replace"
			changed[name] = whole
		}
	}
	return nil
}

func statusOf(obj any) (map[string]any, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	status, _ := content["status"].(map[string]any)
	return status, err
}

// Patch is [StatusPatch] for the rest of an object.
func Patch[T any, P Object[T]](before, after P) ([]byte, error) {
	patch, err := diff(before, after)
	if err != nil {
		return nil, err
	}
	metadata, _ := patch["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		patch["metadata"] = metadata
	}
	metadata["uid"] = before.GetUID()
	return json.Marshal(patch)
}

func diff[T any, P Object[T]](before, after P) (map[string]any, error) {
	if before.GetUID() != after.GetUID() || before.GetResourceVersion() != after.GetResourceVersion() {
		return nil, fmt.Errorf("%T %q was read twice: a patch is made of one version of an object", before, before.GetName())
	}
	oldJSON, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	newJSON, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	data, err := strategicpatch.CreateTwoWayMergePatch(oldJSON, newJSON, new(T))
	if err != nil {
		return nil, err
	}
	patch := map[string]any{}
	return patch, json.Unmarshal(data, &patch)
}
