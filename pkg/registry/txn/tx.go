package txn

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
)

// maxOps is the maximum number of keys in a transaction: the default of etcd's --max-txn-ops.
const maxOps = 128

// Tx collects the companions of one write of one object, the main object.
// It is not safe for concurrent use, and must not be used after the planner has returned.
type Tx struct {
	backend *Backend
	client  *client
	main    *resource
	mainKey string

	// Of the write.
	fresh    bool      // whether reads must come from etcd
	next     *snapshot // the state found by the last, failed commit
	known    []string  // the keys of the last plan, read together with the first
	locks    []keyLock // the locks of this write, except mainLock
	flow     string    // the user and the verb; each flow has the same share of a lock
	paced    bool      // whether the user may write now
	mainLock *keyLock  // the lock of an existing main object, if the write waited for it

	replanned bool      // whether a plan was discarded because its commit was known to fail
	deadline  time.Time // the time until which this write may wait

	// Of the plan being made.
	snap  *snapshot // the state in etcd; nil before the first read
	stale bool      // whether any read was from memory
	ops   []op
	err   error // the first error of the methods below other than "not found"

	committed int64 // the revision of the commit, or 0
}

// An op expects the key to be at rev, and writes it unless write is nil.
type op struct {
	resource *resource // nil for an index key
	key      string
	end      string // if set, the op expects that there is no key from key to end
	rev      int64
	write    *clientv3.Op
}

// id identifies the key or range of an op.
func (o op) id() string { return o.key + o.end }

func (o op) compare() clientv3.Cmp {
	if o.end != "" {
		return clientv3.Compare(clientv3.CreateRevision(o.key), "=", 0).WithRange(o.end)
	}
	return clientv3.Compare(clientv3.ModRevision(o.key), "=", o.rev)
}

func (o op) get() clientv3.Op {
	if o.end != "" {
		return clientv3.OpGet(o.key, clientv3.WithRange(o.end), clientv3.WithLimit(1))
	}
	return clientv3.OpGet(o.key)
}

// A snapshot is the state of keys in etcd at one revision; nil stands for absence. The main object
// is always included.
type snapshot struct {
	rev  int64
	keys map[string]*mvccpb.KeyValue
}

// Get reads a companion and makes the commit depend on it, or on its absence. The writes of the
// same plan are not visible. If the object does not exist, [apierrors.IsNotFound] is true for the
// error.
func (t *Tx) Get(ctx context.Context, gr schema.GroupResource, namespace, name string, into runtime.Object) error {
	found, err := t.get(ctx, gr, namespace, name, into)
	if err != nil {
		return t.fail(err)
	}
	if !found {
		return apierrors.NewNotFound(gr, name)
	}
	return nil
}

func (t *Tx) get(ctx context.Context, gr schema.GroupResource, namespace, name string, into runtime.Object) (found bool, err error) {
	r, path, key, err := t.backend.locate(gr, namespace, name)
	if err != nil {
		return false, err
	}
	if r.kind != nil && reflect.TypeOf(into) != r.kind {
		return false, fmt.Errorf("txn: %s is of type %v, not %T", gr, r.kind, into)
	}
	var kv *mvccpb.KeyValue
	if cache := r.cache.Load(); cache.ready() && !t.fresh {
		t.stale = true
		rev, err := cache.get(ctx, path, into)
		if err != nil {
			return false, err
		}
		last, newer := t.backend.revisions.newerThan(key, rev)
		if !newer {
			return rev != 0, t.add(op{resource: r, key: key, rev: rev})
		}
		kv = last.kv
	} else if kv, err = t.read(ctx, key); err != nil {
		return false, err
	}
	if err := runtime.SetZeroValue(into); err != nil { // decoding would merge
		return false, err
	}
	if err := t.add(op{resource: r, key: key, rev: modRevision(kv)}); err != nil || kv == nil {
		return false, err
	}
	data, _, err := r.transformer.TransformFromStorage(ctx, kv.Value, value.DefaultContext(key))
	if err != nil {
		return false, storage.NewInternalError(err)
	}
	if err := r.decoder.Decode(data, into, kv.ModRevision); err != nil {
		return true, &DecodeError{err}
	}
	return true, nil
}

// A DecodeError is the error of a transaction that reads an object that cannot be decoded.
type DecodeError struct{ error }

// Unwrap returns the error of the decoder.
func (e *DecodeError) Unwrap() error { return e.error }

// Create makes the commit create obj, which must not exist. obj must be complete, including UID and
// creation timestamp, because no strategy is applied to it.
func (t *Tx) Create(ctx context.Context, gr schema.GroupResource, obj runtime.Object) error {
	return t.fail(t.put(ctx, gr, obj, false))
}

// Update makes the commit replace the version of the object that obj was made from, as given by its
// resource version.
func (t *Tx) Update(ctx context.Context, gr schema.GroupResource, obj runtime.Object) error {
	return t.fail(t.put(ctx, gr, obj, true))
}

// Delete makes the commit delete obj at its resource version. Finalizers are ignored.
func (t *Tx) Delete(gr schema.GroupResource, obj runtime.Object) error {
	r, key, rev, err := t.identify(gr, obj, true)
	if err != nil {
		return t.fail(err)
	}
	del := clientv3.OpDelete(key)
	return t.fail(t.add(op{resource: r, key: key, rev: rev, write: &del}))
}

func (t *Tx) put(ctx context.Context, gr schema.GroupResource, obj runtime.Object, exists bool) error {
	r, key, rev, err := t.identify(gr, obj, exists)
	if err != nil {
		return err
	}
	obj = obj.DeepCopyObject()
	if err := versioner.PrepareObjectForStorage(obj); err != nil {
		return err
	}
	data, err := runtime.Encode(r.codec, obj)
	if err != nil {
		return err
	}
	if data, err = r.transformer.TransformToStorage(ctx, data, value.DefaultContext(key)); err != nil {
		return storage.NewInternalError(err)
	}
	put := clientv3.OpPut(key, string(data))
	return t.add(op{resource: r, key: key, rev: rev, write: &put})
}

// identify returns the location of obj and its expected revision.
func (t *Tx) identify(gr schema.GroupResource, obj runtime.Object, exists bool) (*resource, string, int64, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, "", 0, err
	}
	rev, err := versioner.ObjectResourceVersion(obj)
	if err != nil {
		return nil, "", 0, err
	}
	if exists != (rev != 0) {
		return nil, "", 0, fmt.Errorf("txn: %s %q has resource version %d; omit it to create, set it to update or delete", gr, m.GetName(), rev)
	}
	r, _, key, err := t.backend.locate(gr, m.GetNamespace(), m.GetName())
	return r, key, int64(rev), err
}

// read reads a key from etcd. All reads of a plan are of one revision.
func (t *Tx) read(ctx context.Context, key string) (*mvccpb.KeyValue, error) {
	if t.snap == nil {
		keys := append([]string{t.mainKey, key}, t.known...)
		snap, err := t.client.snapshot(ctx, t, keys[:min(len(keys), maxOps)])
		if err != nil {
			return nil, err
		}
		t.snap = snap
	}
	kv, ok := t.snap.keys[key]
	if ok {
		return kv, nil
	}
	kv, err := t.client.at(ctx, key, t.snap.rev)
	if err != nil {
		return nil, err
	}
	t.snap.keys[key] = kv
	return kv, nil
}

// add adds an op. It allows one op per key and one write per resource.
func (t *Tx) add(o op) error {
	if o.key == t.mainKey {
		return fmt.Errorf("txn: %s is the main object", o.key)
	}
	at := -1
	for i, have := range t.ops {
		switch {
		case have.id() == o.id() && have.rev != o.rev:
			return &conflictError{keys: []string{o.key}}
		case have.id() == o.id() && o.write == nil:
			return nil
		case have.id() == o.id() && have.write == nil:
			at = i
		case have.id() == o.id():
			return fmt.Errorf("txn: second write of %s", o.key)
		case have.resource == o.resource && o.resource != nil && have.write != nil && o.write != nil:
			return fmt.Errorf("txn: second write of a %s: %s", o.resource.gr, o.key)
		}
	}
	if o.write != nil && o.resource == t.main {
		return fmt.Errorf("txn: second write of a %s: %s", o.resource.gr, o.key)
	}
	if at >= 0 {
		t.ops[at] = o
		return nil
	}
	if len(t.ops)+1 >= maxOps {
		return fmt.Errorf("txn: a transaction can touch %d keys, not more", maxOps)
	}
	t.ops = append(t.ops, o)
	return nil
}

// fail records an error, so that no planner can ignore it and commit.
func (t *Tx) fail(err error) error {
	if t.err == nil {
		t.err = err
	}
	return err
}

// begin starts a plan, with the state that the last commit found if that was just now.
func (t *Tx) begin() {
	t.discard()
	t.snap, t.next = t.next, nil
}

// restart is called before the storage calls the update function. It discards all state of an
// earlier attempt and releases its locks, which could block other writes.
func (t *Tx) restart() {
	t.discard()
	t.backend.commitLocks.unlock(t)
}

// discard discards a plan, except the keys that the next one is likely to read.
func (t *Tx) discard() {
	if len(t.ops) > 0 {
		t.known = nil
		for _, o := range t.ops {
			if o.end == "" {
				t.known = append(t.known, o.key)
			}
		}
	}
	t.snap, t.stale, t.ops, t.err, t.committed = nil, false, nil, nil, 0
}

// outdated reports whether the commit is known to fail.
func (t *Tx) outdated() bool {
	for _, o := range t.ops {
		if _, newer := t.backend.revisions.newerThan(o.id(), o.rev); newer {
			return true
		}
	}
	return false
}

// exclusive returns the keys of the plan that other writes may contend for: those of the
// companions, and of the main object unless it is being created.
func (t *Tx) exclusive() []string {
	keys := t.written()
	if t.mainLock != nil {
		keys = append(keys, t.mainKey)
	}
	return keys
}

// lockMain applies the write limit of the user and locks the main object before it is read. If a
// slow write holds the lock for too long, the write proceeds without it; etcd detects conflicts.
func (t *Tx) lockMain(ctx context.Context) error {
	if t.mainLock != nil {
		return nil
	}
	patient, cancel := context.WithDeadline(ctx, t.deadline)
	defer cancel()
	if !t.paced {
		if err := t.backend.pacer.wait(patient, t.mainKey); err != nil {
			return err
		}
		t.paced = true
	}
	lock, err := t.backend.mainLocks.lockKey(patient, t.mainKey, t.flow)
	if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
		return err
	}
	if err == nil {
		t.mainLock = &lock
	}
	return nil
}

// unlock releases all locks.
func (t *Tx) unlock() {
	t.backend.commitLocks.unlock(t)
	if t.mainLock != nil {
		t.backend.mainLocks.release(*t.mainLock)
		t.mainLock = nil
	}
}

// written returns the keys of the companions that the plan writes.
func (t *Tx) written() (keys []string) {
	for _, o := range t.ops {
		if o.write != nil {
			keys = append(keys, o.key)
		}
	}
	return keys
}
