package values

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
)

func at(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(seconds, 0)) }

func atPointer(seconds int64) *metav1.Time {
	t := at(seconds)
	return &t
}

func managed(t metav1.Time, raw string) metav1.ObjectMeta {
	return metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", Time: &t, FieldsV1: metav1.NewFieldsV1(raw)}}}
}

var poisons = map[string]struct {
	obj  runtime.Object
	path string
}{
	"created after the year 9999":       {&rack.MacNode{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(253402300800)}}, "metadata.creationTimestamp"},
	"created before the year 0":         {&rack.MacNode{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(-62167219201)}}, "metadata.creationTimestamp"},
	"deleted so late that years wrap":   {&rack.MacNode{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: atPointer(math.MaxInt64)}}, "metadata.deletionTimestamp"},
	"deleted so early that years wrap":  {&rack.MacNode{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: atPointer(math.MinInt64)}}, "metadata.deletionTimestamp"},
	"managed late":                      {&rack.MacNode{ObjectMeta: managed(at(1e12), "{}")}, "metadata.managedFields[0].time"},
	"managed fields that are no JSON":   {&rack.MacNode{ObjectMeta: managed(at(0), "{")}, "metadata.managedFields[0].fieldsV1"},
	"managed fields that are no fields": {&rack.MacNode{ObjectMeta: managed(at(0), `{"x":{}}`)}, "metadata.managedFields[0].fieldsV1"},
	"managed fields that are no UTF-8":  {&rack.MacNode{ObjectMeta: managed(at(0), "{\"f:\xff\":{}}")}, "metadata.managedFields[0].fieldsV1"},
	"label with NUL":                    {&rack.MacNode{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "\x00"}}}, "metadata.labels[a]"},
	"annotation whose key is no UTF-8":  {&rack.MacNode{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"\xff": "x"}}}, "metadata.annotations[?]"},
	"finalizer that is no UTF-8":        {&rack.MacNode{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"ok", "\xff"}}}, "metadata.finalizers[1]"},
	"owner's UID with NUL":              {&rack.MacNode{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{UID: "\x00"}}}}, "metadata.ownerReferences[0].uid"},
	"text of a condition":               {&rack.MacNode{Status: rack.MacNodeStatus{Conditions: []metav1.Condition{{Message: "\xc0"}}}}, "status.conditions[0].message"},
	"time of a condition":               {&rack.MacNode{Status: rack.MacNodeStatus{Conditions: []metav1.Condition{{LastTransitionTime: at(1e12)}}}}, "status.conditions[0].lastTransitionTime"},
	"phase":                             {&rack.MacNode{Status: rack.MacNodeStatus{Phase: "\xc0"}}, "status.phase"},
	"time behind a pointer":             {&rack.MacNodeLease{Status: rack.MacNodeLeaseStatus{BoundAt: atPointer(1e12)}}, "status.boundAt"},
	"address":                           {&instance.MacOSInstance{Status: instance.MacOSInstanceStatus{IPAddress: &instance.IPAddress{Value: "\xff"}}}, "status.ipAddress.value"},
}

func TestCheck(t *testing.T) {
	for name, tt := range poisons {
		errs := Check(tt.obj)
		if assert.Len(t, errs, 1, name) {
			assert.Equal(t, tt.path, errs[0].Field, name)
			assert.Equal(t, field.ErrorTypeInvalid, errs[0].Type, name)
		}
	}
	many := &rack.MacNode{}
	for range 1000 {
		many.Finalizers = append(many.Finalizers, "\xff")
	}
	assert.Len(t, Check(many), maxErrors)
}

func TestOwnersOfStatusesAreNotStored(t *testing.T) {
	entry := func(op metav1.ManagedFieldsOperationType, subresource string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: "m", Operation: op, Subresource: subresource}
	}
	spec, applied := entry(metav1.ManagedFieldsOperationUpdate, ""), entry(metav1.ManagedFieldsOperationApply, "status")
	node := &rack.MacNode{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		entry(metav1.ManagedFieldsOperationUpdate, "status"), spec, applied,
	}}}
	stored, ok := withBoundedManagedFields(node).(*rack.MacNode)
	require.True(t, ok)
	assert.Equal(t, []metav1.ManagedFieldsEntry{spec, applied}, stored.ManagedFields)
	assert.Len(t, node.ManagedFields, 3, "the caller's object stays as it is")
}

func TestRepair(t *testing.T) {
	for name, tt := range poisons {
		obj := tt.obj.DeepCopyObject()
		Repair(obj)
		assert.Empty(t, Check(obj), name)
	}
	node := &rack.MacNode{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(1e12), Labels: map[string]string{"a\x00": "x", "b": "c"}, Annotations: map[string]string{"a": "b\xff"}}}
	Repair(node)
	assert.Equal(t, lastTime, node.CreationTimestamp.UTC())
	assert.Equal(t, map[string]string{"b": "c"}, node.Labels)
	assert.Equal(t, map[string]string{"a": "b\uFFFD"}, node.Annotations)
}

func TestValidObjectIsUnchanged(t *testing.T) {
	zero := metav1.NewTime(firstTime)
	node := &rack.MacNode{
		ObjectMeta: metav1.ObjectMeta{
			CreationTimestamp: metav1.NewTime(lastTime), DeletionTimestamp: &zero, Annotations: map[string]string{"a": "ü\n\t\uFFFD"},
			ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:a":{}}}}`)}, {}},
		},
	}
	require.Empty(t, Check(node))
	repaired := node.DeepCopy()
	Repair(repaired)
	assert.True(t, equality.Semantic.DeepEqual(node, repaired))
}

func TestBoundManagedFields(t *testing.T) {
	entry := func(manager string, seconds int64, size int) metav1.ManagedFieldsEntry {
		time := at(seconds)
		return metav1.ManagedFieldsEntry{Manager: manager, Time: &time, FieldsV1: metav1.NewFieldsV1(string(make([]byte, size)))}
	}
	names := func(entries []metav1.ManagedFieldsEntry) (names []string) {
		for _, e := range entries {
			names = append(names, e.Manager)
		}
		return names
	}
	few := []metav1.ManagedFieldsEntry{entry("a", 1, 30<<10), entry("b", 2, 30<<10)}
	assert.Equal(t, []string{"a", "b"}, names(bound(few)))
	assert.Equal(t, []string{"a", "c"}, names(bound([]metav1.ManagedFieldsEntry{entry("a", 1, 100), entry("b", 2, 60<<10), entry("c", 3, 40<<10)})), "the largest goes")
	assert.Empty(t, bound([]metav1.ManagedFieldsEntry{entry("a", 1, 100<<10)}))
	var many []metav1.ManagedFieldsEntry
	for i := range 70 {
		many = append(many, entry("m", int64(i), 10))
	}
	kept := bound(many)
	assert.Len(t, kept, maxManagers)
	assert.Equal(t, int64(6), kept[0].Time.Unix(), "the oldest go")
}

func BenchmarkCheck(b *testing.B) {
	record := &rack.AuditRecord{ObjectMeta: metav1.ObjectMeta{Name: "c07aaaaa0001-000000000001", Namespace: "acme", UID: "6a1ee0bc-8d1e-4d0e-8e0e-000000000000", CreationTimestamp: at(1)}}
	for b.Loop() {
		if len(Check(record)) > 0 {
			b.Fatal("it is sound")
		}
	}
}

func BenchmarkBound(b *testing.B) {
	for _, n := range []int{2_000, 20_000, 200_000} {
		entries := make([]metav1.ManagedFieldsEntry, n)
		for i := range entries {
			time := at(int64(i * 7919 % n))
			entries[i] = metav1.ManagedFieldsEntry{Manager: fmt.Sprint(i), Operation: metav1.ManagedFieldsOperationApply, Time: &time, FieldsV1: metav1.NewFieldsV1("{}")}
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				bound(entries)
			}
		})
	}
}
