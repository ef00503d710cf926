package ledger

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
)

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
