package tableconvertor

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// Rows have the metadata without the managed fields, and what is listed (it may be the cache's)
// keeps them.
func TestRowsWithoutManagedFields(t *testing.T) {
	convertor := New([]metav1.TableColumnDefinition{Name()}, func(n *rack.MacNode) []any { return []any{n.Name} })
	node := &rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-a1", UID: "uid", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}}}
	for _, options := range []*metav1.TableOptions{{}, {IncludeObject: metav1.IncludeMetadata}} {
		table, err := convertor.ConvertToTable(context.Background(), node, options)
		require.NoError(t, err)
		m, err := meta.Accessor(table.Rows[0].Object.Object)
		require.NoError(t, err)
		assert.EqualValues(t, "uid", m.GetUID())
		assert.Empty(t, m.GetManagedFields())
	}
	table, err := convertor.ConvertToTable(context.Background(), node, &metav1.TableOptions{IncludeObject: metav1.IncludeObject})
	require.NoError(t, err)
	assert.Same(t, node, table.Rows[0].Object.Object)
	assert.Len(t, node.ManagedFields, 1)
}

func TestConvertToTable(t *testing.T) {
	columns := []metav1.TableColumnDefinition{Name(), Wide(Number("VMs", "Virtual machines."))}
	convertor := New(columns, func(n *rack.MacNode) []any { return []any{n.Name, int64(n.Status.RunningVMs)} })
	node := rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-a1", ResourceVersion: "7"}}
	list := &rack.MacNodeList{
		ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "more", RemainingItemCount: ptr.To(int64(3))},
		Items:    []rack.MacNode{node, {ObjectMeta: metav1.ObjectMeta{Name: "mac-a2"}, Status: rack.MacNodeStatus{RunningVMs: 2}}},
	}

	table, err := convertor.ConvertToTable(context.Background(), list, &metav1.TableOptions{})
	require.NoError(t, err)
	assert.Equal(t, metav1.ListMeta{ResourceVersion: "9", Continue: "more", RemainingItemCount: ptr.To(int64(3))}, table.ListMeta)
	assert.Equal(t, columns, table.ColumnDefinitions)
	assert.Equal(t, int32(1), table.ColumnDefinitions[1].Priority)
	require.Len(t, table.Rows, 2)
	assert.Equal(t, []any{"mac-a1", int64(0)}, table.Rows[0].Cells)
	assert.Equal(t, []any{"mac-a2", int64(2)}, table.Rows[1].Cells)

	table, err = convertor.ConvertToTable(context.Background(), list, &metav1.TableOptions{IncludeObject: metav1.IncludeObject})
	require.NoError(t, err)
	assert.Equal(t, "mac-a2", table.Rows[1].Object.Object.(*rack.MacNode).Name, "the rows have the objects, for those who ask for them")

	table, err = convertor.ConvertToTable(context.Background(), &node, nil)
	require.NoError(t, err)
	assert.Equal(t, "7", table.ResourceVersion)
	assert.Len(t, table.Rows, 1)
	assert.NotEmpty(t, table.ColumnDefinitions)

	table, err = convertor.ConvertToTable(context.Background(), &rack.MacNodeList{}, &metav1.TableOptions{NoHeaders: true})
	require.NoError(t, err)
	assert.Empty(t, table.Rows)
	assert.Empty(t, table.ColumnDefinitions, "a watch has the headers once")

	for _, other := range []runtime.Object{&rack.MacNodeLease{}, &rack.MacNodeLeaseList{Items: make([]rack.MacNodeLease, 1)}} {
		_, err = convertor.ConvertToTable(context.Background(), other, nil)
		var status apierrors.APIStatus
		require.True(t, errors.As(err, &status), "%T", other)
		assert.Equal(t, int32(406), status.Status().Code)
	}
}

func TestCells(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(now)
	at := func(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(d))) }
	tests := map[string]struct{ want, got string }{
		"text":              {"a", Text("a")},
		"no text":           {"<none>", Text("")},
		"time":              {"2026-11-02T12:00:00Z", Time(at(24 * time.Hour))},
		"time elsewhere":    {"2026-11-01T12:00:00Z", Time(ptr.To(metav1.NewTime(now.In(time.FixedZone("CET", 3600)))))},
		"no time":           {"<none>", Time(nil)},
		"age":               {"5d", Age(clock, *at(-5 * 24 * time.Hour))},
		"no age":            {"<unknown>", Age(clock, metav1.Time{})},
		"remaining":         {"19h", Remaining(clock, at(19*time.Hour+time.Minute))},
		"a day remaining":   {"24h", Remaining(clock, at(24*time.Hour))},
		"passed":            {"0s", Remaining(clock, at(-time.Hour))},
		"not bound":         {"-", Remaining(clock, nil)},
		"quantity":          {"16Gi", Quantity(scalar.MustParse("16Gi"))},
		"decimal quantity":  {"512G", Quantity(scalar.MustParse("512G"))},
		"no quantity":       {"<none>", Quantity(scalar.Quantity{})},
		"gibibytes":         {"60Gi", Bytes(60 << 30)},
		"broken gibibytes":  {"1.5Gi", Bytes(3 << 29)},
		"rounded down":      {"93Gi", Bytes(100_000_000_000)},
		"mebibytes":         {"300Mi", Bytes(300 << 20)},
		"bytes":             {"12", Bytes(12)},
		"no bytes":          {"<none>", Bytes(0)},
		"less than nothing": {"<none>", Bytes(-1)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tt.want, tt.got) })
	}
}
