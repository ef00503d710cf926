package macnodelease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tableconvertor/tabletest"
)

func TestTable(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	at := func(hours int) *metav1.Time {
		t := metav1.NewTime(now.Add(time.Duration(hours) * time.Hour))
		return &t
	}
	list := &rack.MacNodeLeaseList{Items: []rack.MacNodeLease{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "ci", CreationTimestamp: *at(-6)},
			Spec:       rack.MacNodeLeaseSpec{ClassName: "m4"},
			Status: rack.MacNodeLeaseStatus{
				Phase: rack.MacNodeLeaseHeld, BoundAt: at(-5), EarliestReleaseAt: at(19), NodeName: "mac-a1", SerialNumber: "C07DR00AQ6NV",
				Instances: make([]rack.LeaseSlot, 2),
			},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "old", CreationTimestamp: *at(-30)},
			Spec:       rack.MacNodeLeaseSpec{ClassName: "m4"},
			Status:     rack.MacNodeLeaseStatus{Phase: rack.MacNodeLeaseReleasing, BoundAt: at(-25), EarliestReleaseAt: at(-1), NodeName: "mac-a2", SerialNumber: "C07DR00AQ6NW"},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "this-one", CreationTimestamp: *at(0)},
			Spec:       rack.MacNodeLeaseSpec{ClassName: "m4", SerialNumber: "C07DR00AQ6NX"},
			Status:     rack.MacNodeLeaseStatus{Phase: rack.MacNodeLeasePending},
		},
	}}
	clock := clocktesting.NewFakePassiveClock(now)
	assert.Equal(t, []string{
		"NAME      CLASS  SERIAL        PHASE      VMS  BOUND-AT              RELEASE-AT            REMAINING  AGE  |  NODE",
		"ci        m4     C07DR00AQ6NV  Held       2/2  2026-11-01T07:00:00Z  2026-11-02T07:00:00Z  19h        6h   |  mac-a1",
		"old       m4     C07DR00AQ6NW  Releasing  0/2  2026-10-31T11:00:00Z  2026-11-01T11:00:00Z  0s         30h  |  mac-a2",
		"this-one  m4     C07DR00AQ6NX  Pending    0/2  <none>                <none>                -          0s   |  <none>",
	}, tabletest.Print(t, NewTableConvertor(clock), list))

	clock.SetTime(now.Add(18 * time.Hour))
	list.Items = list.Items[:1]
	assert.Equal(t, []string{
		"NAME  CLASS  SERIAL        PHASE  VMS  BOUND-AT              RELEASE-AT            REMAINING  AGE  |  NODE",
		"ci    m4     C07DR00AQ6NV  Held   2/2  2026-11-01T07:00:00Z  2026-11-02T07:00:00Z  60m        24h  |  mac-a1",
	}, tabletest.Print(t, NewTableConvertor(clock), list))
}
