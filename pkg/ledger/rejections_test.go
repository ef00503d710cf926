package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
)

// A book is where rejections are written.
type book struct {
	mu      sync.Mutex
	records []*rack.AuditRecord
	fail    error
	wrote   chan struct{} // if set, receives one token a write, whether it succeeds or not
	hold    chan struct{} // if set, a write waits for it
}

func (b *book) write(ctx context.Context, record *rack.AuditRecord) error {
	if b.hold != nil {
		<-b.hold
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wrote != nil {
		b.wrote <- struct{}{}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if b.fail == nil {
		identify(ctx, record) // as Append does
		b.records = append(b.records, record)
	}
	return b.fail
}

func (b *book) setFail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

// counts returns the counts of the records: 0 is one rejection.
func (b *book) counts() []int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var counts []int64
	for _, record := range b.records {
		counts = append(counts, record.Details.Count)
	}
	return counts
}

// total returns how many rejections the records stand for.
func (b *book) total() (total int64) {
	for _, count := range b.counts() {
		total += max(1, count)
	}
	return total
}

func refusal(tenant, lease, vm string) *rack.AuditRecord {
	l := newLease(tenant, lease)
	l.Status.SerialNumber = "C07MAC1"
	return NewInstanceRejected(newInstance(l, vm), l, rack.LayerRegistry, "NoFreeSlot", "two run")
}

func as(name string) context.Context {
	return genericapirequest.WithUser(context.Background(), &user.DefaultInfo{Name: name})
}

// run starts Run, and returns what stops it and waits for it.
func run(r *Rejections) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	return func() { cancel(); <-done }
}

func TestIdenticalRejectionsFold(t *testing.T) {
	clock := testingclock.NewFakeClock(start)
	b := &book{wrote: make(chan struct{}, 100)}
	r := NewRejections(clock, b.write)
	stop := run(r)

	for range 10_000 {
		require.NoError(t, r.Reject(as("alice"), refusal("acme", "build", "third")))
	}
	assert.Equal(t, []int64{0}, b.counts(), "the first at once, the others counted")
	<-b.wrote

	require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
	clock.Step(time.Minute)
	<-b.wrote // when the minute ends
	assert.Equal(t, []int64{0, 9999}, b.counts())
	assert.Equal(t, "alice", b.records[1].Actor.Username, "the actor is that of the rejections")
	assert.Equal(t, "acme/third", nameOf(b.records[1].Instance))

	require.NoError(t, r.Reject(as("alice"), refusal("acme", "build", "third")))
	assert.Equal(t, []int64{0, 9999, 0}, b.counts(), "the first of the next minute at once")
	require.NoError(t, r.Reject(as("alice"), refusal("acme", "build", "third")))
	stop()
	assert.Equal(t, []int64{0, 9999, 0, 1}, b.counts(), "what is left when it ends")

	require.NoError(t, r.Reject(as("alice"), refusal("acme", "build", "third")))
	require.NoError(t, r.Reject(as("alice"), refusal("acme", "build", "third")))
	assert.Equal(t, []int64{0, 9999, 0, 1, 0, 0}, b.counts(), "nothing is left uncounted after the end")
}

func TestDifferentRejectionsDoNotFold(t *testing.T) {
	base := func() *rack.AuditRecord { return refusal("acme", "build", "third") }
	for name, change := range map[string]func(*rack.AuditRecord){
		"type":     func(r *rack.AuditRecord) { r.Type = rack.CrossTenantRejected },
		"chassis":  func(r *rack.AuditRecord) { r.Chassis.SerialNumber = "C07MAC2" },
		"tenant":   func(r *rack.AuditRecord) { r.Tenant = "globex" },
		"lease":    func(r *rack.AuditRecord) { r.Lease.Name = "other" },
		"instance": func(r *rack.AuditRecord) { r.Instance.Name = "fourth" },
		"layer":    func(r *rack.AuditRecord) { r.Details.Layer = rack.LayerAgent },
		"reason":   func(r *rack.AuditRecord) { r.Details.Reason = "TooBig" },
		"source":   func(r *rack.AuditRecord) { r.Details.SourceNamespace = "globex" },
	} {
		b := &book{}
		r := NewRejections(testingclock.NewFakeClock(start), b.write)
		other := base()
		change(other)
		require.NoError(t, r.Reject(as("alice"), base()))
		require.NoError(t, r.Reject(as("alice"), other))
		assert.Equal(t, []int64{0, 0}, b.counts(), name)
	}
	b := &book{}
	r := NewRejections(testingclock.NewFakeClock(start), b.write)
	require.NoError(t, r.Reject(as("alice"), base()))
	require.NoError(t, r.Reject(as("bob"), base()))
	again := base()
	again.Instance.UID, again.Details.Message = "another try", "two still run"
	require.NoError(t, r.Reject(as("bob"), again))
	assert.Equal(t, []int64{0, 0}, b.counts(), "actors differ; a new UID and another text make no other rejection")
}

func TestAFoldEndsWithoutRunToo(t *testing.T) {
	clock := testingclock.NewFakeClock(start)
	b := &book{}
	r := NewRejections(clock, b.write)
	for range 3 {
		require.NoError(t, r.Reject(as("alice"), refusal("acme", "build", "third")))
	}
	clock.Step(time.Minute)
	require.NoError(t, r.Reject(as("bob"), refusal("acme", "build", "other")))
	require.NoError(t, r.Reject(as("alice"), refusal("acme", "build", "third")))
	assert.Equal(t, []int64{0, 0, 2, 0}, b.counts())
	assert.Equal(t, "alice", b.records[2].Actor.Username)
}

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

func TestARejectionIsDurableBeforeItIsTold(t *testing.T) {
	down := errors.New("etcd is down")
	b := &book{fail: down}
	r := NewRejections(testingclock.NewFakeClock(start), b.write)
	assert.ErrorIs(t, r.Reject(as("alice"), refusal("acme", "build", "third")), down)
	assert.ErrorIs(t, r.Reject(as("alice"), refusal("acme", "build", "third")), down, "not counted on what was not written")
	b.setFail(nil)
	require.NoError(t, r.Reject(as("alice"), refusal("acme", "build", "third")))
	assert.Equal(t, []int64{0}, b.counts())

	named := refusal("acme", "build", "other")
	require.NoError(t, r.Reject(as("alice"), named))
	assert.Equal(t, "alice", named.Actor.Username, "the caller gets what was written")

	hungUp, cancel := context.WithCancel(as("bob"))
	cancel()
	require.NoError(t, r.Reject(hungUp, refusal("acme", "build", "third")))
	assert.Equal(t, "bob", b.records[2].Actor.Username, "who hangs up is recorded too")
}

func TestIdenticalRejectionsAtOnceWaitForTheFirst(t *testing.T) {
	b := &book{hold: make(chan struct{}), wrote: make(chan struct{}, 100)}
	r := NewRejections(testingclock.NewFakeClock(start), b.write)
	stop := run(r)
	const rivals = 50
	told := make(chan error, rivals)
	for range rivals {
		go func() { told <- r.Reject(as("alice"), refusal("acme", "build", "third")) }()
	}
	b.hold <- struct{}{} // lets one write continue
	<-b.wrote
	close(b.hold)
	for range rivals {
		require.NoError(t, <-told)
	}
	assert.Equal(t, []int64{0}, b.counts())
	stop()
	assert.Equal(t, []int64{0, rivals - 1}, b.counts())
}

func TestRivalsOfARejectionThatFailsWriteTheirOwn(t *testing.T) {
	down := errors.New("etcd is down")
	b := &book{fail: down, hold: make(chan struct{})}
	r := NewRejections(testingclock.NewFakeClock(start), b.write)
	const rivals = 10
	told := make(chan error, rivals)
	for range rivals {
		go func() { told <- r.Reject(as("alice"), refusal("acme", "build", "third")) }()
	}
	b.hold <- struct{}{}
	require.ErrorIs(t, <-told, down)
	b.setFail(nil)
	close(b.hold)
	for range rivals - 1 {
		require.NoError(t, <-told)
	}
	assert.Equal(t, []int64{0}, b.counts())
}

func TestCountsThatCannotBeWrittenAreKept(t *testing.T) {
	clock := testingclock.NewFakeClock(start)
	b := &book{wrote: make(chan struct{}, 100)}
	r := NewRejections(clock, b.write)
	stop := run(r)
	for range 5 {
		require.NoError(t, r.Reject(as("alice"), refusal("acme", "build", "third")))
	}
	<-b.wrote
	b.setFail(errors.New("etcd is down"))
	require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
	clock.Step(time.Minute)
	<-b.wrote
	b.setFail(nil)
	stop()
	assert.Equal(t, []int64{0, 4}, b.counts())
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

func TestAttemptsAtDifferentFieldsDoNotFold(t *testing.T) {
	b := &book{}
	r := NewRejections(testingclock.NewFakeClock(start), b.write)
	for _, message := range []string{
		"status.boundAt: it is set once", "status.earliestReleaseAt: it never moves back", "status.boundAt: it is set once, to 12:00",
		"it is 12:00: the floor is at 13:00", "it is 12:01: the floor is at 13:00",
	} {
		require.NoError(t, r.Reject(as("alice"), NewFloorTamperRejected(newLease("acme", "build"), "FloorMoved", message)))
	}
	assert.Equal(t, []int64{0, 0, 0}, b.counts())
}

// TestCountsOfUnknownOutcomeAreCountedOnce checks that counts whose write had an unknown outcome
// are in the ledger once.
func TestCountsOfUnknownOutcomeAreCountedOnce(t *testing.T) {
	unknown := errors.New("outcome unknown")
	for name, lost := range map[string]bool{"the answer was lost": false, "the write was lost": true} {
		t.Run(name, func(t *testing.T) {
			clock := testingclock.NewFakeClock(start)
			m := newMemory()
			outcomes := make(chan error, 10)
			wrote := make(chan struct{}, 10)
			r := NewRejections(clock, func(ctx context.Context, record *rack.AuditRecord) error {
				defer func() { wrote <- struct{}{} }()
				outcome := <-outcomes
				tx := m
				if outcome != nil && lost {
					tx = newMemory()
				}
				if err := AppendOnce(clock, record)(ctx, tx); err != nil {
					return err
				}
				return outcome
			})
			stop := run(r)
			outcomes <- nil
			for range 5 {
				require.NoError(t, r.Reject(as("alice"), refusal("acme", "build", "third")))
			}
			<-wrote
			outcomes <- unknown // when the minute ends
			require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
			clock.Step(time.Minute)
			<-wrote

			outcomes <- nil
			require.NoError(t, r.Reject(as("alice"), refusal("acme", "build", "third")), "the first of the next minute")
			<-wrote
			outcomes <- nil
			require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
			clock.Step(time.Minute)
			<-wrote // again
			stop()

			var total int64
			for _, record := range m.records {
				total += max(1, record.Details.Count)
			}
			assert.Equal(t, int64(6), total)
			assert.Len(t, m.records, 3)
			assert.Equal(t, rack.ComplianceCompliant, m.report(t, "7d").Verdict)
		})
	}
}

// With etcd away, a server that is to end does not wait for each count by itself.
func TestTheLastCountsHaveOneDeadline(t *testing.T) {
	b := &book{}
	var deadlines []time.Time
	ending := false
	r := NewRejections(testingclock.NewFakeClock(start), func(ctx context.Context, record *rack.AuditRecord) error {
		if !ending {
			return b.write(ctx, record)
		}
		deadline, _ := ctx.Deadline()
		deadlines = append(deadlines, deadline)
		return errors.New("etcd is down")
	})
	for i := range 10 {
		for range 2 {
			require.NoError(t, r.Reject(as("alice"), refusal(fmt.Sprint("tenant-", i), "build", "third")))
		}
	}
	ending = true
	began := time.Now()
	run(r)()
	require.Len(t, deadlines, 10)
	for _, deadline := range deadlines {
		assert.Equal(t, deadlines[0], deadline)
	}
	assert.WithinRange(t, deadlines[0], began, time.Now().Add(lastTimeout))
}
