package tenancy

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
)

func TestAssignInstance(t *testing.T) {
	for name, tt := range map[string]struct {
		cached, lease types.UID
		live          []types.UID // the answers in turn
		admitted      bool
		asks          int // by two instances
	}{
		"the owner's lease":                            {cached: "2", lease: "2", live: []types.UID{"3"}, admitted: true},
		"a former owner's lease":                       {cached: "2", lease: "1", live: []types.UID{"2"}, asks: 1},
		"a deleted namespace":                          {cached: "2", lease: "1", live: []types.UID{""}, asks: 1},
		"another replica has seen the next owner":      {cached: "1", lease: "2", live: []types.UID{"2", "2", "2"}, admitted: true, asks: 3},
		"the namespace was made again within a second": {cached: "2", lease: "1", live: []types.UID{"1", "2", "2"}, asks: 3},
	} {
		t.Run(name, func(t *testing.T) {
			asks := 0
			o := NewOwnership(Lookup{
				Namespaces: func(context.Context, string) (types.UID, error) { return tt.cached, nil },
				Live: func(context.Context, string) (types.UID, error) {
					asks++
					return tt.live[min(asks, len(tt.live))-1], nil
				},
			})
			for range 2 {
				i := &instance.MacOSInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "vm"}}
				lease := &rack.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "build"}, Status: rack.MacNodeLeaseStatus{NamespaceUID: tt.lease}}
				err := o.AssignInstance(t.Context(), i, lease)
				if tt.admitted {
					assert.NoError(t, err)
					assert.Equal(t, tt.lease, i.Status.NamespaceUID)
				} else {
					assert.ErrorContains(t, err, "from an earlier namespace")
				}
			}
			assert.Equal(t, tt.asks, asks)
		})
	}
}
