package ledger

import (
	"container/list"
	"context"
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

	// maxFolds bounds how many different rejections are remembered.
	maxFolds = 4096

	// writeTimeout is how long a rejection may take to be written.
	writeTimeout = 10 * time.Second
)

// Rejections makes rejections durable. The first of its kind is written before Reject returns; identical ones
// within a minute are counted, and one further record has their number.
type Rejections struct {
	clock clock.Clock
	write func(context.Context, *rack.AuditRecord) error
	wake  chan struct{} // has a token when there may be a fold to wait for

	mu      sync.Mutex
	folds   map[foldKey]*fold
	byAge   *list.List    // of *fold, the first to end in front
	objects map[cause]int // how many folds there are for a cause
	stopped bool          // whether nobody flushes any more
}

// A cause is what rejections have in common, whatever their objects.
type cause struct {
	recordType    rack.AuditRecordType
	chassis       rack.AuditChassis
	actor, tenant string
	source        string
	layer         rack.AuditLayer
	reason        string
}

// A foldKey is what identical rejections have in common. All objects beyond maxObjects have empty names.
type foldKey struct {
	cause
	lease, instance string
}

// A fold is a rejection that was or is being written, and the number of identical ones since.
type fold struct {
	key     foldKey
	record  *rack.AuditRecord
	until   time.Time
	count   int64
	element *list.Element // nil if it is not among the folds
	done    chan struct{} // closed when the first is written, or cannot be
}

// NewRejections returns Rejections that write with write, which makes a record durable: it Appends it.
func NewRejections(clock clock.Clock, write func(ctx context.Context, record *rack.AuditRecord) error) *Rejections {
	return &Rejections{
		clock:   clock,
		write:   write,
		wake:    make(chan struct{}, 1),
		folds:   map[foldKey]*fold{},
		byAge:   list.New(),
		objects: map[cause]int{},
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
			r.flush(context.Background(), ended) // It was another's request.
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
			r.flush(context.WithoutCancel(ctx), r.takeEnded()...)
		case <-r.wake:
		case <-ctx.Done():
			stop()
			r.flush(context.WithoutCancel(ctx), r.takeAll()...)
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
}

// timer returns a channel that receives when the next fold ends: never, if there is none.
func (r *Rejections) timer() (<-chan time.Time, func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	front := r.byAge.Front()
	if front == nil {
		return nil, func() {}
	}
	timer := r.clock.NewTimer(front.Value.(*fold).until.Sub(r.clock.Now()))
	return timer.C(), func() { timer.Stop() }
}

func (r *Rejections) takeEnded() []*fold {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	var ended []*fold
	for front := r.byAge.Front(); front != nil; front = r.byAge.Front() {
		f := front.Value.(*fold)
		if now.Before(f.until) {
			break
		}
		r.remove(f)
		ended = append(ended, f)
	}
	return ended
}

func (r *Rejections) takeAll() []*fold {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	var all []*fold
	for front := r.byAge.Front(); front != nil; front = r.byAge.Front() {
		f := front.Value.(*fold)
		r.remove(f)
		all = append(all, f)
	}
	return all
}

// flush writes what folds have counted. What cannot be written is counted on, if there is room.
func (r *Rejections) flush(ctx context.Context, folds ...*fold) {
	for _, f := range folds {
		r.mu.Lock()
		count := f.count
		r.mu.Unlock()
		if count == 0 {
			continue
		}
		record := f.record.DeepCopy()
		record.Details.Count = count
		if f.key == (foldKey{cause: f.key.cause}) {
			record.Lease, record.Instance = nil, nil // They were many.
		}
		err := r.store(ctx, record)
		if err == nil {
			continue
		}
		kept := r.putBack(f, count)
		klog.FromContext(ctx).Error(err, "Could not record folded rejections", "type", record.Type, "tenant", record.Tenant,
			"serialNumber", record.Chassis.SerialNumber, "reason", record.Details.Reason, "count", count, "willRetry", kept)
	}
}

func (r *Rejections) putBack(f *fold, count int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if have := r.folds[f.key]; have != nil {
		have.count += count
		return true
	}
	if len(r.folds) >= maxFolds {
		return false
	}
	f.count, f.until = count, r.clock.Now().Add(foldFor)
	r.insert(f)
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
		},
		lease:    nameOf(record.Lease),
		instance: nameOf(record.Instance),
	}
}

func nameOf(r *rack.AuditReference) string {
	if r == nil {
		return ""
	}
	return r.Namespace + "/" + r.Name
}
