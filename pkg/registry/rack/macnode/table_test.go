package macnode

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
	floor := metav1.NewTime(now.Add(19 * time.Hour))
	list := &rack.MacNodeList{Items: []rack.MacNode{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "mac-a1", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
			Spec:       rack.MacNodeSpec{SerialNumber: "C07DR00AQ6NV", ClassName: "m4", Location: rack.MacNodeLocation{Site: "fra1", Rack: "7", Shelf: "3"}},
			Status: rack.MacNodeStatus{
				Phase: rack.MacNodeLeased, LeaseRef: &rack.LeaseReference{Namespace: "acme", Name: "ci"}, EarliestReleaseAt: &floor, RunningVMs: 1,
				Hardware: &rack.MacNodeHardware{MacOSVersion: "26.1", AgentVersion: "v0.1.0", FreeStorage: scalar.MustParse("123Gi")},
			},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "mac-a2", CreationTimestamp: metav1.NewTime(now)},
			Spec:       rack.MacNodeSpec{SerialNumber: "C07DR00AQ6NW", ClassName: "m4", Location: rack.MacNodeLocation{Site: "fra1"}},
			Status:     rack.MacNodeStatus{Phase: rack.MacNodePending},
		},
	}}
	assert.Equal(t, []string{
		"NAME    SERIAL        CLASS  PHASE    TENANT  LEASE   VMS  RELEASE-AT            AGE  |  LOCATION  MACOS   AGENT   FREE",
		"mac-a1  C07DR00AQ6NV  m4     Leased   acme    ci      1/2  2026-11-02T07:00:00Z  60m  |  fra1/7/3  26.1    v0.1.0  123Gi",
		"mac-a2  C07DR00AQ6NW  m4     Pending  <none>  <none>  0/2  <none>                0s   |  fra1      <none>  <none>  <none>",
	}, tabletest.Print(t, NewTableConvertor(clocktesting.NewFakePassiveClock(now)), list))
}
