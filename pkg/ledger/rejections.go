package ledger

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
)

const (
	// foldFor is how long identical rejections fold into one record after the first.
	foldFor = time.Minute

	// maxObjects is how many objects have rejections of their own, within foldFor, if these are identical but
	// for the object. Those of further objects fold together: names cost a hostile tenant nothing.
	maxObjects = 16

	// maxSeparate is how many rejections that differ are recorded one by one, within foldFor, of one namespace, or by
	// the agent of one Mac. Further ones fold by their type and reason: users cost a hostile tenant nothing either.
	maxSeparate = 60

	// maxFolds bounds how many different rejections are remembered, and how many counts that could not be written.
	maxFolds = 4096

	// writeTimeout is how long a rejection may take to be written, and all counts whose minutes have ended.
	writeTimeout = 10 * time.Second

	// lastTimeout is how long all counts together may take to be written that are left when Run ends.
	lastTimeout = 5 * time.Second
)

// Rejections makes rejections durable. The first of its kind is written before Reject returns; identical ones
// within a minute are counted, and one further record has their number. So are all that are beyond what one namespace
// may have recorded one by one. What was counted within the last minute dies with a process that is killed.
type Rejections struct {
	clock clock.Clock
	write func(context.Context, *rack.AuditRecord) error
	wake  chan struct{} // has a token when there may be a fold to wait for

	mu        sync.Mutex
	folds     map[foldKey]*fold
	byAge     *list.List          // of *fold, the first to end in front
	objects   map[cause]int       // how many folds there are for a cause
	separate  map[account]int     // how many folds there are on an account
	unwritten []*rack.AuditRecord // counts that could not be written, or nobody knows
	retryAt   time.Time           // when these are written again
	stopped   bool                // whether nobody flushes any more
}

// A cause is what rejections have in common, whatever their objects.
type cause struct {
	recordType    rack.AuditRecordType
	chassis       rack.AuditChassis
	actor, tenant string
	source        string
	layer         rack.AuditLayer
	reason        string
	field         string // that somebody tampered with
}

// A foldKey is what identical rejections have in common. All objects beyond maxObjects have empty names.
type foldKey struct {
	cause
	lease, instance string
	crowd           bool // They are identical in type and reason alone, being beyond maxSeparate.
}

// An account is what maxSeparate is about: the namespace that the rejected come from. What an agent reports is on its
// Mac's account, whatever namespaces it names, lest it has a tenant's own rejections fold.
type account struct{ namespace, mac string }

// A fold is a rejection that was or is being written, and the number of identical ones since.
type fold struct {
	key     foldKey
	record  *rack.AuditRecord
	until   time.Time
	count   int64
	element *list.Element // nil if it is not among the folds
	done    chan struct{} // closed when the first is written, or cannot be
}

// NewRejections returns Rejections that write with write, which makes a record durable with AppendOnce: a record whose
// writing failed may be given to it again as it is.
func NewRejections(clock clock.Clock, write func(ctx context.Context, record *rack.AuditRecord) error) *Rejections {
	return &Rejections{
		clock:    clock,
		write:    write,
		wake:     make(chan struct{}, 1),
		folds:    map[foldKey]*fold{},
		byAge:    list.New(),
		objects:  map[cause]int{},
		separate: map[account]int{},
	}
}

// Reject makes the record of a rejection durable, or counts it if an identical one has been durable for less
// than a minute. If it returns an error, the rejection is not recorded. A client that hangs up does not stop it.
// If the record was written, record is what was written.
func (r *Rejections) Reject(ctx context.Context, record *rack.AuditRecord) error {
	ctx = context.WithoutCancel(ctx)
	identify(ctx, record)
	clean(record)
	for {
		f, mine, ended := r.join(record)
		if ended != nil {
			r.flush(context.Background(), writeTimeout, counted(ended)) // It was another's request.
		}
		if mine {
			err := r.store(ctx, record)
			r.settle(f, err)
			return err
		}
		if f == nil {
			return nil
		}
		<-f.done // at most writeTimeout; then it can be counted, or the first of its kind again
	}
}

// Run writes the counts of folded rejections as their minutes end, and those that are left when ctx ends. It
// returns when these are written; from then on every rejection is written by itself.
func (r *Rejections) Run(ctx context.Context) {
	for {
		timer, stop := r.timer()
		select {
		case <-timer:
			r.flush(context.WithoutCancel(ctx), writeTimeout, r.takeEnded()...)
		case <-r.wake:
		case <-ctx.Done():
			stop()
			r.flush(context.WithoutCancel(ctx), lastTimeout, r.takeAll()...)
			return
		}
		stop()
	}
}

// join counts a rejection and returns nil; or returns the fold to wait for; or a new one, which is the caller's
// to write and settle. ended is a fold that is over and that the caller is to flush.
func (r *Rejections) join(record *rack.AuditRecord) (f *fold, mine bool, ended *fold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return &fold{done: make(chan struct{})}, true, nil
	}
	now := r.clock.Now()
	key := keyOf(record)
	if r.folds[key] == nil && r.objects[key.cause] >= maxObjects {
		key = foldKey{cause: key.cause}
	}
	if r.folds[key] == nil && r.separate[accountOf(record)] >= maxSeparate {
		key = crowdOf(record)
	}
	if f := r.folds[key]; f != nil {
		select {
		case <-f.done:
		default:
			return f, false, nil
		}
		if now.Before(f.until) {
			f.count++
			return nil, false, nil
		}
		r.remove(f)
		ended = f
	} else if len(r.folds) >= maxFolds {
		ended = r.byAge.Front().Value.(*fold)
		r.remove(ended)
	}
	f = &fold{key: key, record: record.DeepCopy(), until: now.Add(foldFor), done: make(chan struct{})}
	r.insert(f)
	return f, true, ended
}

// settle tells those who wait for a fold how the writing of its first rejection went.
func (r *Rejections) settle(f *fold, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.remove(f)
	}
	close(f.done)
}

func (r *Rejections) insert(f *fold) {
	f.element = r.byAge.PushBack(f)
	r.folds[f.key] = f
	r.objects[f.key.cause]++
	if !f.key.crowd {
		r.separate[accountOf(f.record)]++
	}
	r.wakeUp()
}

func (r *Rejections) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Rejections) remove(f *fold) {
	if f.element == nil {
		return
	}
	r.byAge.Remove(f.element)
	f.element = nil
	delete(r.folds, f.key)
	if r.objects[f.key.cause]--; r.objects[f.key.cause] == 0 {
		delete(r.objects, f.key.cause)
	}
	if f.key.crowd {
		return
	}
	a := accountOf(f.record)
	if r.separate[a]--; r.separate[a] == 0 {
		delete(r.separate, a)
	}
}

// timer returns a channel that receives when the next fold ends, or counts are to be written again: never, if there
// are none.
func (r *Rejections) timer() (<-chan time.Time, func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var next time.Time
	if front := r.byAge.Front(); front != nil {
		next = front.Value.(*fold).until
	}
	if len(r.unwritten) > 0 && (next.IsZero() || r.retryAt.Before(next)) {
		next = r.retryAt
	}
	if next.IsZero() {
		return nil, func() {}
	}
	timer := r.clock.NewTimer(next.Sub(r.clock.Now()))
	if !r.clock.Now().Before(next) { // The timer of a clock that is turned by hand may have missed it.
		timer.Stop()
		due := make(chan time.Time)
		close(due)
		return due, func() {}
	}
	return timer.C(), func() { timer.Stop() }
}

// takeEnded returns the counts that are to be written now.
func (r *Rejections) takeEnded() []*rack.AuditRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	var records []*rack.AuditRecord
	if !now.Before(r.retryAt) {
		records, r.unwritten = r.unwritten, nil
	}
	for front := r.byAge.Front(); front != nil; front = r.byAge.Front() {
		f := front.Value.(*fold)
		if now.Before(f.until) {
			break
		}
		r.remove(f)
		records = append(records, counted(f))
	}
	return records
}

// takeAll returns all counts that are left.
func (r *Rejections) takeAll() []*rack.AuditRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	records := r.unwritten
	r.unwritten = nil
	for front := r.byAge.Front(); front != nil; front = r.byAge.Front() {
		f := front.Value.(*fold)
		r.remove(f)
		records = append(records, counted(f))
	}
	return records
}

// counted returns the record of what a fold that is among the folds no more has counted, or nil if that is nothing.
func counted(f *fold) *rack.AuditRecord {
	if f.count == 0 {
		return nil
	}
	record := f.record.DeepCopy()
	record.Details.Count = f.count
	switch {
	case f.key.crowd:
		record.Actor, record.RequestID, record.ClaimedRequestID = rack.AuditActor{}, "", "" // They were many.
		record.Chassis, record.Lease, record.Instance = f.key.chassis, nil, nil
		record.Details = rack.AuditDetails{
			Count: f.count, Layer: f.key.layer, SourceNamespace: f.key.source, Reason: f.key.reason,
			Message: fmt.Sprintf("%d rejections beyond the %d a minute of %s that each server records one by one, whoever was refused, and whatever they named",
				f.count, maxSeparate, accountOf(f.record)),
		}
	case f.key == foldKey{cause: f.key.cause}:
		record.Lease, record.Instance = nil, nil // They were many.
	}
	return record
}

// flush writes counts, all within a time. What cannot be written is written later, if there is room.
func (r *Rejections) flush(ctx context.Context, timeout time.Duration, records ...*rack.AuditRecord) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, record := range records {
		if record == nil {
			continue
		}
		err := ctx.Err()
		if err == nil {
			err = r.store(ctx, record)
		}
		if err == nil {
			continue
		}
		kept := r.writeLater(record)
		klog.FromContext(ctx).Error(err, "Could not record folded rejections", "type", record.Type, "tenant", record.Tenant,
			"serialNumber", record.Chassis.SerialNumber, "reason", record.Details.Reason, "count", record.Details.Count, "willRetry", kept)
	}
}

func (r *Rejections) writeLater(record *rack.AuditRecord) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped || len(r.unwritten) >= maxFolds {
		return false
	}
	if len(r.unwritten) == 0 {
		r.retryAt = r.clock.Now().Add(foldFor)
	}
	r.unwritten = append(r.unwritten, record)
	r.wakeUp()
	return true
}

func (r *Rejections) store(ctx context.Context, record *rack.AuditRecord) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return r.write(ctx, record)
}

func keyOf(record *rack.AuditRecord) foldKey {
	return foldKey{
		cause: cause{
			recordType: record.Type,
			chassis:    record.Chassis,
			actor:      record.Actor.Username,
			tenant:     record.Tenant,
			source:     record.Details.SourceNamespace,
			layer:      record.Details.Layer,
			reason:     record.Details.Reason,
			field:      fieldOf(record),
		},
		lease:    nameOf(record.Lease),
		instance: nameOf(record.Instance),
	}
}

// crowdOf returns what a rejection has in common with all of its account that are for the same reason, and go at the
// same tenant.
func crowdOf(record *rack.AuditRecord) foldKey {
	key := foldKey{crowd: true, cause: cause{
		recordType: record.Type,
		tenant:     record.Tenant,
		source:     record.Details.SourceNamespace,
		layer:      record.Details.Layer,
		reason:     record.Details.Reason,
	}}
	if accountOf(record).mac != "" {
		key.chassis = record.Chassis
	}
	return key
}

func accountOf(record *rack.AuditRecord) account {
	switch record.Details.Layer {
	case rack.LayerAgent, rack.LayerKernel:
		return account{mac: record.Chassis.NodeName}
	}
	return account{namespace: cmp.Or(record.Details.SourceNamespace, record.Tenant)}
}

func (a account) String() string {
	if a.mac != "" {
		return "Mac " + a.mac
	}
	return "namespace " + a.namespace
}

// fieldOf returns the field that a message begins with, if somebody tampered with one.
func fieldOf(record *rack.AuditRecord) string {
	if record.Type != rack.FloorTamperRejected {
		return ""
	}
	if field, _, ok := strings.Cut(record.Details.Message, ": "); ok && !strings.ContainsAny(field, " \n") {
		return field
	}
	return ""
}

func nameOf(r *rack.AuditReference) string {
	if r == nil {
		return ""
	}
	return r.Namespace + "/" + r.Name
}
