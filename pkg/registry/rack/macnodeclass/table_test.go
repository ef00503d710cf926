package macnodeclass

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/registry/tableconvertor/tabletest"
)

func TestTable(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	list := &rack.MacNodeClassList{Items: []rack.MacNodeClass{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "m4-pro", CreationTimestamp: metav1.NewTime(now.Add(-5 * 24 * time.Hour))},
			Spec: rack.MacNodeClassSpec{
				Model: "Mac mini (2024)", Chip: "Apple M4 Pro", SKU: "m4-pro-24h",
				Capacity: rack.MachineResources{CPU: scalar.MustParse("12"), Memory: scalar.MustParse("24Gi"), Storage: scalar.MustParse("512G")},
			},
			Status: rack.MacNodeClassStatus{Total: 10, Available: 4, Leased: 3, Held: 1, Offline: 2, Occupied: 5},
		},
		{ObjectMeta: metav1.ObjectMeta{Name: "bare"}},
	}}
	assert.Equal(t, []string{
		"NAME    CHIP          CPU     MEMORY  STORAGE  TOTAL  AVAILABLE  LEASED  HELD  UTILISATION  AGE        |  MODEL            SKU",
		"m4-pro  Apple M4 Pro  12      24Gi    512G     10     4          3       1     50%          5d         |  Mac mini (2024)  m4-pro-24h",
		"bare    <none>        <none>  <none>  <none>   0      0          0       0     <none>       <unknown>  |  <none>           <none>",
	}, tabletest.Print(t, NewTableConvertor(clocktesting.NewFakePassiveClock(now)), list))
}
