package values

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// What an object keeps of who wrote which of its fields. An object and its companions are written in one
// transaction, which etcd bounds, and no write may be refused for what other managers have written.
const (
	maxManagers      = 64
	maxManagedFields = 64 << 10 // bytes, as stored
)

// withBoundedManagedFields returns obj, or a copy of it with as many managed fields as there is room for.
func withBoundedManagedFields(obj runtime.Object) runtime.Object {
	m, err := meta.Accessor(obj)
	if err != nil {
		return obj
	}
	entries := m.GetManagedFields()
	kept := bound(entries)
	if len(kept) == len(entries) {
		return obj
	}
	obj = obj.DeepCopyObject()
	if m, err = meta.Accessor(obj); err == nil {
		m.SetManagedFields(kept)
	}
	return obj
}

// bound returns the entries that there is room for: the largest go first, then the oldest.
func bound(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	size := 0
	for i := range entries {
		size += entries[i].Size()
	}
	if size <= maxManagedFields && len(entries) <= maxManagers {
		return entries
	}
	kept := slices.Clone(entries)
	for size > maxManagedFields {
		largest := 0
		for i := range kept {
			if kept[i].Size() > kept[largest].Size() {
				largest = i
			}
		}
		size -= kept[largest].Size()
		kept = slices.Delete(kept, largest, largest+1)
	}
	for len(kept) > maxManagers {
		oldest := 0
		for i := range kept {
			if kept[i].Time.Before(kept[oldest].Time) {
				oldest = i
			}
		}
		kept = slices.Delete(kept, oldest, oldest+1)
	}
	return kept
}
