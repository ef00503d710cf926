package ledger

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
)

func (m *memory) Get(_ context.Context, resource schema.GroupResource, namespace, name string, into runtime.Object) error {
	for _, record := range m.records {
		if record.Namespace == namespace && record.Name == name {
			record.DeepCopyInto(into.(*rack.AuditRecord))
			return nil
		}
	}
	return apierrors.NewNotFound(resource, name)
}

func (m *memory) Delete(_ schema.GroupResource, obj runtime.Object) error {
	record := obj.(*rack.AuditRecord)
	m.records = slices.DeleteFunc(m.records, func(r *rack.AuditRecord) bool { return nameIn(r) == nameIn(record) })
	return nil
}

// daily has one record a day of each of two Macs, from start on.
func daily(t *testing.T, days int) *memory {
	m := newMemory()
	for range days {
		m.append(t, NewNodeQuarantined(newNode("mac1")))
		m.append(t, NewNodeQuarantined(newNode("mac2")))
		m.step(24 * time.Hour)
	}
	return m
}

func (m *memory) expirer(t *testing.T, retention time.Duration) *Expirer {
	return &Expirer{
		Clock:     testingclock.NewFakeClock(m.clock.Now()),
		Retention: func(context.Context) (time.Duration, error) { return retention, nil },
		Records: func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
			return m.source()(ctx, yield)
		},
		Anchors: func(context.Context) (Anchors, error) { return m.anchors(), nil },
		Transact: func(ctx context.Context, plan func(context.Context, ExpiryTx) error) error {
			return plan(ctx, m)
		},
	}
}

// sequences returns the sequence numbers of the records of a chain that are there.
func (m *memory) sequences(chain string) (sequences []int64) {
	for _, record := range m.records {
		if name, sequence, _ := SplitName(record.Name); name == chain {
			sequences = append(sequences, sequence)
		}
	}
	return sequences
}

func TestExpire(t *testing.T) {
	ctx := context.Background()
	m := daily(t, 100) // 10 days of them are older than 90 days
	e := m.expirer(t, 90*24*time.Hour)
	require.NoError(t, e.expire(ctx, m.clock.Now()))
	assert.Len(t, m.records, 200, "nothing is deleted before a checkpoint has been there for a while")
	assert.Equal(t, int64(10), m.anchors()["c07mac1"].Checkpoint.Sequence)
	assert.Equal(t, rack.ComplianceCompliant, m.report(t, "90d").Verdict)

	require.NoError(t, e.expire(ctx, m.clock.Now()))
	assert.Len(t, m.records, 180)
	assert.Equal(t, int64(11), m.sequences("c07mac1")[0])
	status := m.report(t, "90d")
	assert.Equal(t, rack.ComplianceCompliant, status.Verdict, status.Violations)
	assert.Equal(t, int64(180), status.Records)

	require.NoError(t, e.expire(ctx, m.clock.Now()), "again changes nothing")
	assert.Len(t, m.records, 180)
	m.append(t, NewNodeRecovered(newNode("mac1"), "", ""))
	assert.Equal(t, rack.ComplianceCompliant, m.report(t, "90d").Verdict)

	m.step(5 * 24 * time.Hour)
	require.NoError(t, errors.Join(e.expire(ctx, m.clock.Now()), e.expire(ctx, m.clock.Now())))
	assert.Equal(t, int64(16), m.sequences("c07mac1")[0], "as time goes by")
	assert.Equal(t, rack.ComplianceCompliant, m.report(t, "90d").Verdict)
}

func TestExpireWholeChain(t *testing.T) {
	m := daily(t, 3)
	m.step(100 * 24 * time.Hour)
	e := m.expirer(t, 90*24*time.Hour)
	require.NoError(t, errors.Join(e.expire(context.Background(), m.clock.Now()), e.expire(context.Background(), m.clock.Now())))
	assert.Empty(t, m.records)
	assert.Equal(t, "c07mac1-000000000004", m.append(t, NewNodeRecovered(newNode("mac1"), "", "")).Name, "the chain goes on")
	assert.Equal(t, rack.ComplianceCompliant, m.report(t, "90d").Verdict)
}

func TestNoRetentionIsBelow90Days(t *testing.T) {
	m := daily(t, 100)
	e := m.expirer(t, time.Hour)
	require.NoError(t, errors.Join(e.expire(context.Background(), m.clock.Now()), e.expire(context.Background(), m.clock.Now())))
	assert.Len(t, m.records, 180)
}

func TestBrokenRecordsAreKept(t *testing.T) {
	for name, spoil := range map[string]func(m *memory){
		"missing":  func(m *memory) { m.remove(t, "c07mac1-000000000005") },
		"edited":   func(m *memory) { m.find(t, "c07mac1-000000000005").Details.Message = "x" },
		"replaced": func(m *memory) { r := m.find(t, "c07mac1-000000000004"); r.Details.Message = "x"; r.Hash = Hash(r) },
		"misplaced": func(m *memory) {
			r := m.find(t, "c07mac1-000000000005")
			r.Chassis.SerialNumber = "OTHER"
			r.Hash = Hash(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := daily(t, 100)
			spoil(m)
			before := m.report(t, "2026-08-01..2026-08-09").Violations
			require.Len(t, before, 1)
			e := m.expirer(t, 90*24*time.Hour)
			assert.ErrorContains(t, e.expire(context.Background(), m.clock.Now()), "chain c07mac1 is broken at macrack-system/c07mac1-00000000000")
			assert.Error(t, e.expire(context.Background(), m.clock.Now()))
			assert.Equal(t, int64(4), m.anchors()["c07mac1"].Checkpoint.Sequence)
			assert.Contains(t, []int64{5, 6}, m.sequences("c07mac1")[0])
			assert.Equal(t, int64(11), m.sequences("c07mac2")[0], "other chains are expired")
			after := m.report(t, "2026-08-01..2026-08-09")
			assert.Equal(t, rack.ComplianceIncomplete, after.Verdict, "what was broken still shows")
		})
	}
}

func TestTheOldestGoFirstOrNone(t *testing.T) {
	m := daily(t, 100)
	e := m.expirer(t, 90*24*time.Hour)
	require.NoError(t, e.expire(context.Background(), m.clock.Now()))
	transact, calls := e.Transact, 0
	down := errors.New("etcd is down")
	e.Transact = func(ctx context.Context, plan func(context.Context, ExpiryTx) error) error {
		if calls++; calls == 4 {
			return down
		}
		return transact(ctx, plan)
	}
	assert.ErrorIs(t, e.expire(context.Background(), m.clock.Now()), down)
	assert.Equal(t, int64(4), m.sequences("c07mac1")[0])
	assert.Len(t, m.sequences("c07mac1"), 97, "from there on all are there")
	assert.Equal(t, rack.ComplianceCompliant, m.report(t, "90d").Verdict)
	require.NoError(t, e.expire(context.Background(), m.clock.Now()))
	assert.Equal(t, int64(11), m.sequences("c07mac1")[0])
}

func TestOneServerAtATimeExpires(t *testing.T) {
	m := daily(t, 100)
	clock := testingclock.NewFakeClock(m.clock.Now())
	one, two := m.expirer(t, 0), m.expirer(t, 0)
	one.Clock, two.Clock = clock, clock
	claim := func(e *Expirer) bool {
		now, mine, err := e.claim(context.Background())
		require.NoError(t, err)
		assert.Equal(t, clock.Now(), now)
		return mine
	}
	assert.True(t, claim(one))
	assert.False(t, claim(two))
	clock.Step(ExpiryInterval)
	assert.True(t, claim(two))
	assert.False(t, claim(one))
	clock.SetTime(clock.Now().Add(-1000 * time.Hour))
	assert.True(t, claim(one), "a clock that was wrong does not stop it")
}

func TestAFastClockExpiresNothing(t *testing.T) {
	m := daily(t, 10)
	e := m.expirer(t, 0)
	e.Clock = testingclock.NewFakeClock(m.clock.Now().Add(1000 * 24 * time.Hour))
	e.Earliest = func(_ context.Context, tx Tx, now time.Time) (time.Time, error) {
		assert.Same(t, m, tx)
		assert.Equal(t, e.Clock.Now(), now)
		return m.clock.Now(), nil
	}
	now, mine, err := e.claim(context.Background())
	require.NoError(t, err)
	assert.True(t, mine)
	assert.Equal(t, m.clock.Now(), now)
	e.Earliest = func(context.Context, Tx, time.Time) (time.Time, error) { return time.Time{}, errors.New("broken") }
	_, _, err = e.claim(context.Background())
	assert.EqualError(t, err, "broken")
}

// runExpirer runs e, and returns what waits for n transactions, and what stops it and waits for
// that.
func runExpirer(t *testing.T, e *Expirer) (await func(n int), stop func()) {
	transact := e.Transact
	transactions := make(chan struct{}, 1000)
	e.Transact = func(ctx context.Context, plan func(context.Context, ExpiryTx) error) error {
		err := transact(ctx, plan)
		transactions <- struct{}{}
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { e.Run(ctx); close(done) }()
	require.Eventually(t, e.Clock.(*testingclock.FakeClock).HasWaiters, time.Minute, time.Millisecond)
	await = func(n int) {
		for range n {
			<-transactions
		}
	}
	return await, func() { cancel(); <-done }
}

func TestExpirerRuns(t *testing.T) {
	m := daily(t, 100)
	m.step(-2 * ExpiryInterval)
	e := m.expirer(t, 0)
	clock := e.Clock.(*testingclock.FakeClock)
	await, stop := runExpirer(t, e)
	clock.Step(ExpiryInterval)
	await(1 + 2) // the claim and two checkpoints
	require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
	clock.Step(ExpiryInterval)
	await(1 + 20) // the claim and the records
	stop()
	assert.Equal(t, int64(11), m.sequences("c07mac1")[0])
}

func TestExpirerLeavesItToAnother(t *testing.T) {
	m := daily(t, 100)
	e := m.expirer(t, 0)
	clock := e.Clock.(*testingclock.FakeClock)
	m.keys[expiryKind+"/last"] = []byte(strconv.FormatInt(clock.Now().Add(ExpiryInterval).Unix(), 10))
	await, stop := runExpirer(t, e)
	clock.Step(ExpiryInterval)
	await(1)
	stop()
	assert.Nil(t, m.anchors()["c07mac1"].Checkpoint)
}

// Servers that never run for an ExpiryInterval expire records all the same, and no sooner than
// others.
func TestExpirersThatRestartOften(t *testing.T) {
	m := daily(t, 100)
	m.step(-2 * ExpiryInterval)
	clock := testingclock.NewFakeClock(m.clock.Now())
	for range 7 { // six hours
		e := m.expirer(t, 0)
		e.Clock = clock
		await, stop := runExpirer(t, e)
		clock.Step(2 * firstLook)
		await(1)
		require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond, "it looks again later")
		require.NotNil(t, m.anchors()["c07mac1"].Checkpoint)
		stop()
		if clock.Now().Sub(m.clock.Now()) < 5*time.Hour {
			require.Len(t, m.records, 200, "a report may be under way that has not seen the checkpoint")
		}
		clock.Step(time.Hour - 2*firstLook)
	}
	assert.Len(t, m.records, 180)
}
