package values

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Limits of the managed fields of an object. An object and its companions are written in one
// transaction, whose size etcd limits, and no write may be refused because of the fields of other
// managers.
const (
	maxManagers      = 64
	maxManagedFields = 64 << 10 // bytes, as stored
)

// withBoundedManagedFields returns obj, or a copy with its managed fields reduced to the limits and
// without updates of the status. Only the components of MacRack write statuses, so server-side
// apply has no conflict to find there, and the fields are a fifth of an instance in etcd and in
// each event of a watch.
func withBoundedManagedFields(obj runtime.Object) runtime.Object {
	m, err := meta.Accessor(obj)
	if err != nil {
		return obj
	}
	entries := m.GetManagedFields()
	kept := bound(slices.DeleteFunc(slices.Clone(entries), isStatusUpdate))
	if len(kept) == len(entries) {
		return obj
	}
	obj = obj.DeepCopyObject()
	if m, err = meta.Accessor(obj); err == nil {
		m.SetManagedFields(kept)
	}
	return obj
}

func isStatusUpdate(e metav1.ManagedFieldsEntry) bool {
	return e.Subresource == "status" && e.Operation == metav1.ManagedFieldsOperationUpdate
}

// bound returns the entries within the limits: it drops the largest first, then the oldest.
func bound(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	size, sizes := 0, make([]int, len(entries))
	for i := range entries {
		sizes[i] = entries[i].Size()
		size += sizes[i]
	}
	if size <= maxManagedFields && len(entries) <= maxManagers {
		return entries
	}
	order := make([]int, len(entries)) // of what goes first
	for i := range order {
		order[i] = i
	}
	drop := make([]bool, len(entries))
	left := len(entries)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(sizes[b], sizes[a]) })
	for _, i := range order {
		if size <= maxManagedFields {
			break
		}
		drop[i], size, left = true, size-sizes[i], left-1
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch ta, tb := entries[a].Time, entries[b].Time; {
		case ta.Before(tb):
			return -1
		case tb.Before(ta):
			return 1
		}
		return cmp.Compare(a, b)
	})
	for _, i := range order {
		if left > maxManagers && !drop[i] {
			drop[i], left = true, left-1
		}
	}
	kept := make([]metav1.ManagedFieldsEntry, 0, left)
	for i := range entries {
		if !drop[i] {
			kept = append(kept, entries[i])
		}
	}
	return kept
}
