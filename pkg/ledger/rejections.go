package ledger

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
)

const (
	// foldFor is the time after a rejection during which identical ones are folded into one record.
	foldFor = time.Minute

	// maxObjects is the maximum number of objects with separate rejections within foldFor, if the
	// rejections differ in the object only. Those of further objects are folded together, because a
	// hostile tenant can make up names at no cost.
	maxObjects = 16

	// maxSeparate is the maximum number of different rejections of one namespace, or by the agent
	// of one Mac, that are recorded separately within foldFor. Further ones are folded by type and
	// reason, because a hostile tenant can also make up users.
	maxSeparate = 60

	// maxFolds is the maximum number of different rejections in memory, and of counts that could
	// not be written.
	maxFolds = 4096

	// writeTimeout is the timeout of the write of a rejection, and of all counts whose minutes have
	// ended.
	writeTimeout = 10 * time.Second

	// lastTimeout is the timeout of the writes of all counts that remain when Run ends.
	lastTimeout = 5 * time.Second
)

// Rejections makes rejections durable. The first of its kind is written before Reject returns.
// Identical ones within a minute are counted, and a second record has their number. Rejections
// beyond the limit of a namespace are also counted. A killed process loses the counts of the last
// minute.
type Rejections struct {
	clock clock.Clock
	write func(context.Context, *rack.AuditRecord) error
	wake  chan struct{} // holds a token when there may be a fold to wait for

	mu        sync.Mutex
	folds     map[foldKey]*fold
	byAge     *list.List          // of *fold, the first to end in front
	objects   map[cause]int       // the number of folds for a cause
	separate  map[account]int     // the number of folds on an account
	unwritten []*rack.AuditRecord // counts that could not be written, or whose outcome is unknown
	retryAt   time.Time           // the time of their next write
	stopped   bool                // whether Run has returned, so that counts are no longer flushed
}

// A fold is a rejection that has been or is being written, and the number of identical ones since.
type fold struct {
	key     foldKey
	record  *rack.AuditRecord
	until   time.Time
	count   int64
	element *list.Element // nil if it is not in byAge
	done    chan struct{} // closed when the first is written or has failed
}

// NewRejections returns Rejections that call write to make a record durable. write must use
// AppendOnce, because a record whose write failed is passed to it again.
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

// Reject makes the record of a rejection durable, or counts it if an identical one was recorded
// within the last minute. If it returns an error, the rejection is not recorded. It continues even
// if the client disconnects. If the record was written, record is updated to the written version.
func (r *Rejections) Reject(ctx context.Context, record *rack.AuditRecord) error {
	rule, layer := ruleOf(record), layerOf(record)
	err := r.reject(ctx, record)
	if err == nil {
		rejectionsTotal.WithLabelValues(rule, layer).Inc()
	}
	return err
}

func (r *Rejections) reject(ctx context.Context, record *rack.AuditRecord) error {
	ctx = context.WithoutCancel(ctx)
	identify(ctx, record)
	clean(record)
	for {
		f, mine, ended := r.join(record)
		if ended != nil {
			r.flush(context.Background(), writeTimeout, counted(ended)) // These rejections are from other requests.
		}
		if mine {
			err := r.store(ctx, record)
			r.settle(f, err)
			return err
		}
		if f == nil {
			return nil
		}
		<-f.done // at most writeTimeout; then this rejection is counted, or becomes the first of its kind
	}
}

// Run writes the counts of folded rejections when their minutes end, and the remaining counts when
// ctx ends. It returns when these are written; afterwards every rejection is written separately.
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

// join counts a rejection and returns nil, returns the fold to wait for, or returns a new fold,
// which the caller must write and settle. ended is a finished fold, which the caller must flush.
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
		key = overflowOf(record)
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

// settle passes the outcome of writing the first rejection of a fold to its waiters.
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
	if !f.key.overflow {
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
	if f.key.overflow {
		return
	}
	a := accountOf(f.record)
	if r.separate[a]--; r.separate[a] == 0 {
		delete(r.separate, a)
	}
}

// timer returns a channel that receives when the next fold ends, or when counts must be written
// again; nil if there is nothing to write.
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
	if !r.clock.Now().Before(next) { // The timer of a fake clock may have missed it.
		timer.Stop()
		due := make(chan time.Time)
		close(due)
		return due, func() {}
	}
	return timer.C(), func() { timer.Stop() }
}

// takeEnded returns the counts to write now.
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

// takeAll returns all remaining counts.
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

// counted returns the record of the count of a removed fold, or nil if the count is 0.
func counted(f *fold) *rack.AuditRecord {
	if f.count == 0 {
		return nil
	}
	record := f.record.DeepCopy()
	record.Details.Count = f.count
	switch {
	case f.key.overflow:
		record.Actor, record.RequestID, record.ClaimedRequestID = rack.AuditActor{}, "", "" // They differ.
		record.Chassis, record.Lease, record.Instance = f.key.chassis, nil, nil
		record.Details = rack.AuditDetails{
			Count: f.count, Layer: f.key.layer, SourceNamespace: f.key.source, Reason: f.key.reason,
			Message: fmt.Sprintf("%d rejections beyond the %d a minute of %s that each server records separately, for any user and any object",
				f.count, maxSeparate, accountOf(f.record)),
		}
	case f.key == foldKey{cause: f.key.cause}:
		record.Lease, record.Instance = nil, nil // They differ.
	}
	return record
}

// flush writes counts, with one timeout for all. Failed counts are kept for a later write, up to
// maxFolds.
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
		klog.FromContext(ctx).Error(err, "Failed to record folded rejections", "type", record.Type, "tenant", record.Tenant,
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
