package shared

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apiclient"
)

// FieldManager is the field manager of the controllers' writes.
const FieldManager = "macrack-controllers"

// Options of the controllers' writes.
var (
	CreateOptions = metav1.CreateOptions{FieldManager: FieldManager}
	PatchOptions  = metav1.PatchOptions{FieldManager: FieldManager}
	UpdateOptions = metav1.UpdateOptions{FieldManager: FieldManager}
)

// Patcher is the method of a generated client that patches objects of one kind.
type Patcher[P any] interface {
	Patch(ctx context.Context, name string, patchType types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (P, error)
}

// Patch writes the changes from old to new, except those of the status, and returns the result.
func Patch[T any, P apiclient.Object[T]](ctx context.Context, client Patcher[P], old, new P) (P, error) {
	patch, err := apiclient.Patch(old, new)
	if err != nil {
		return nil, err
	}
	return client.Patch(ctx, old.GetName(), apiclient.PatchType, patch, PatchOptions)
}

// PatchStatus writes the changes of the status from old to new, and returns the result.
func PatchStatus[T any, P apiclient.Object[T]](ctx context.Context, client Patcher[P], old, new P) (P, error) {
	patch, err := apiclient.StatusPatch(old, new)
	if err != nil {
		return nil, err
	}
	return client.Patch(ctx, old.GetName(), apiclient.PatchType, patch, PatchOptions, "status")
}
