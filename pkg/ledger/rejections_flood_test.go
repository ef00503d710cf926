package ledger

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
)

func TestAFloodOfNamesFolds(t *testing.T) {
	clock := testingclock.NewFakeClock(start)
	b := &book{}
	r := NewRejections(clock, b.write)
	stop := run(r)
	for i := range 10_000 {
		require.NoError(t, r.Reject(as("alice"), refusal("acme", "build", fmt.Sprint("vm-", i))))
	}
	require.NoError(t, r.Reject(as("bob"), refusal("acme", "build", "vm")))
	assert.Len(t, b.counts(), 16+1+1, "16 by name, the first of all others, and bob's")
	stop()
	last := b.records[len(b.records)-1]
	assert.Equal(t, int64(10_000-17), last.Details.Count)
	assert.Nil(t, last.Instance, "they were many")
	assert.Equal(t, "C07MAC1", last.Chassis.SerialNumber)
	assert.Equal(t, int64(10_001), b.total())
}

func TestAFloodOfTenantsIsBounded(t *testing.T) {
	b := &book{}
	r := NewRejections(testingclock.NewFakeClock(start), b.write)
	stop := run(r)
	for i := range 3 * maxFolds {
		for range 2 {
			tenant := fmt.Sprint("tenant-", i)
			require.NoError(t, r.Reject(as(tenant), refusal(tenant, "build", "vm")))
		}
	}
	assert.LessOrEqual(t, len(r.folds), maxFolds)
	assert.Equal(t, len(r.folds), r.byAge.Len())
	assert.LessOrEqual(t, len(r.objects), maxFolds)
	stop()
	assert.Equal(t, int64(6*maxFolds), b.total(), "what makes room is written")
	for _, record := range b.records {
		require.Equal(t, record.Tenant, record.Actor.Username, "and stays the rejection of whom it was")
	}
	assert.Empty(t, r.folds)
	assert.Empty(t, r.objects)
}

// A namespace has only so many records of its own, whatever its users are called and whatever they
// name.
func TestOneNamespaceCannotFloodTheLedger(t *testing.T) {
	for name, attempt := range map[string]func(i int) (user string, record *rack.AuditRecord){
		"users that are made up": func(i int) (string, *rack.AuditRecord) {
			return fmt.Sprint("system:serviceaccount:acme:s", i), refusal("acme", "build", "third")
		},
		"users and names": func(i int) (string, *rack.AuditRecord) {
			return fmt.Sprint("system:serviceaccount:acme:s", i%100), refusal("acme", "build", fmt.Sprint("vm-", i))
		},
		"Macs of another": func(i int) (string, *rack.AuditRecord) {
			node := newNode(fmt.Sprint("mac", i))
			node.Status.LeaseRef = &rack.LeaseReference{Namespace: "globex", Name: "theirs"}
			return "alice", NewCrossTenantRejected("acme", node, rack.LayerRegistry, "MacIsLeased", "no")
		},
	} {
		t.Run(name, func(t *testing.T) {
			clock := testingclock.NewFakeClock(start)
			b := &book{}
			r := NewRejections(clock, b.write)
			stop := run(r)
			const rivals = 20_000
			for i := range rivals {
				user, record := attempt(i)
				require.NoError(t, r.Reject(as(user), record))
			}
			assert.Len(t, b.counts(), maxSeparate+1, "the first of all others too")
			require.NoError(t, r.Reject(as("bob"), refusal("initech", "build", "vm")))
			assert.Len(t, b.counts(), maxSeparate+2, "another namespace has its own")
			tooBig := refusal("acme", "build", "vm-1")
			tooBig.Details.Reason = "TooBig"
			require.NoError(t, r.Reject(as("alice"), tooBig))
			assert.Len(t, b.counts(), maxSeparate+3, "the first for another reason is recorded as it is")
			assert.Equal(t, "alice", b.records[maxSeparate+2].Actor.Username)
			stop()
			assert.Equal(t, int64(rivals+2), b.total(), "all are counted")
			assert.LessOrEqual(t, len(b.records), 2*maxSeparate+4)
			assert.Empty(t, r.separate)

			last := b.records[len(b.records)-1]
			assert.Greater(t, last.Details.Count, int64(1000))
			assert.Empty(t, last.Actor, "they were many")
			assert.Empty(t, last.Chassis)
			assert.Nil(t, last.Lease)
			assert.Nil(t, last.Instance)
			assert.Contains(t, last.Details.Message, "beyond the 60 a minute of namespace acme")
			_, record := attempt(0)
			assert.Equal(t, record.Type, last.Type)
			assert.Equal(t, record.Tenant, last.Tenant)
			assert.Equal(t, record.Details.Reason, last.Details.Reason)
			assert.Equal(t, record.Details.SourceNamespace, last.Details.SourceNamespace)
		})
	}
}

// TestAnAgentSpendsNoNamespacesRecords checks that reports of an agent are on the account of its
// Mac and do not cause the rejections of the reported namespace to be folded.
func TestAnAgentSpendsNoNamespacesRecords(t *testing.T) {
	b := &book{}
	r := NewRejections(testingclock.NewFakeClock(start), b.write)
	stop := run(r)
	for i := range 200 {
		record := refusal("acme", "build", "third")
		record.Details.Layer, record.Details.Reason = rack.LayerAgent, fmt.Sprint("reason-", i%100)
		record.Chassis = rack.AuditChassis{NodeName: "mac1", SerialNumber: "C07MAC1"}
		require.NoError(t, r.Reject(as("system:node:mac1"), record))
	}
	before := len(b.counts())
	for i := range maxSeparate {
		require.NoError(t, r.Reject(as(fmt.Sprint("user-", i)), refusal("acme", "build", "third")))
	}
	assert.Len(t, b.counts(), before+maxSeparate)
	stop()
	assert.Equal(t, int64(200+maxSeparate), b.total())
	last := b.records[len(b.records)-1]
	assert.Equal(t, "C07MAC1", last.Chassis.SerialNumber)
	assert.Contains(t, last.Details.Message, "of Mac mac1")
}
