package auditrecord

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
	list := &rack.AuditRecordList{Items: []rack.AuditRecord{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "r1"},
			Time:       metav1.NewMicroTime(now.Add(123 * time.Microsecond)),
			Type:       rack.InstanceRejected,
			Actor:      rack.AuditActor{Username: "acme"},
			Chassis:    rack.AuditChassis{NodeName: "mac-a1", SerialNumber: "C07DR00AQ6NV"},
			Lease:      &rack.AuditReference{Namespace: "acme", Name: "ci"},
			Instance:   &rack.AuditReference{Namespace: "acme", Name: "vm3"},
			Sequence:   7,
			Details:    rack.AuditDetails{Reason: "NoFreeSlot"},
		},
		{ObjectMeta: metav1.ObjectMeta{Name: "bare"}},
	}}
	assert.Equal(t, []string{
		"NAME  TIME                  TYPE              SERIAL        LEASE   INSTANCE  ACTOR   |  NODE    SEQUENCE  REASON",
		"r1    2026-11-01T12:00:00Z  InstanceRejected  C07DR00AQ6NV  ci      vm3       acme    |  mac-a1  7         NoFreeSlot",
		"bare  <unknown>             <none>            <none>        <none>  <none>    <none>  |  <none>  0         <none>",
	}, tabletest.Print(t, NewTableConvertor(clocktesting.NewFakePassiveClock(now)), list))
}
