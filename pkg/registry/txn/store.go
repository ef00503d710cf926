package txn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// A store calls the planner for each write of the storage that it wraps.
type store struct {
	storage.Interface
	backend  *Backend
	resource *resource
	client   *client
	planner  Planner
}

func (s *store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return s.retry(ctx, "create", key, func(ctx context.Context, tx *Tx) error {
		planned, err := s.propose(ctx, tx, 0, nil, obj)
		if conflict := (*conflictError)(nil); errors.As(err, &conflict) && slices.Contains(conflict.keys, tx.mainKey) {
			return storage.NewKeyExistsError(tx.mainKey, 0)
		}
		if err != nil {
			return err
		}
		return s.Interface.Create(ctx, key, planned, out, ttl)
	})
}

func (s *store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
	return s.retry(ctx, "delete", key, func(ctx context.Context, tx *Tx) error {
		if err := tx.lockMain(ctx); err != nil {
			return err
		}
		return s.Interface.Delete(ctx, key, out, preconditions, func(ctx context.Context, obj runtime.Object) error {
			tx.restart()
			if err := validate(ctx, obj); err != nil {
				return err
			}
			if obj == nil { // unsafe deletion of an object that cannot be decoded
				return apierrors.NewMethodNotSupported(s.resource.gr, "unsafe delete")
			}
			rev, err := versioner.ObjectResourceVersion(obj)
			if err != nil {
				return err
			}
			_, err = s.propose(ctx, tx, rev, obj, nil)
			return err
		}, cached, opts)
	})
}

func (s *store) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	return s.retry(ctx, "update", key, func(ctx context.Context, tx *Tx) error {
		if err := tx.lockMain(ctx); err != nil {
			return err
		}
		err := s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, func(in runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
			var old runtime.Object
			if res.ResourceVersion != 0 {
				old = in.DeepCopyObject() // update may change in
			}
			tx.restart()
			obj, ttl, err := update(in, res)
			if err != nil {
				return nil, nil, err
			}
			planned, err := s.propose(ctx, tx, res.ResourceVersion, old, obj)
			return planned, ttl, err
		}, cached)
		if err != nil || tx.committed != 0 || len(tx.ops) == 0 {
			return err
		}
		// The encoded object has not changed, so the storage wrote nothing.
		if tx.stale {
			tx.fresh = true // confirm that no write was needed
			return &conflictError{}
		}
		if len(tx.written()) > 0 {
			return apierrors.NewInternalError(fmt.Errorf("txn: no change of %s, but of its companions", key))
		}
		return nil
	})
}

// propose plans a write until this process knows of no conflict with the commit, and returns the
// object to write.
func (s *store) propose(ctx context.Context, tx *Tx, rev uint64, old, new runtime.Object) (runtime.Object, error) {
	for {
		if old != nil {
			if _, newer := s.backend.revisions.newerThan(tx.mainKey, int64(rev)); newer {
				return nil, &conflictError{keys: []string{tx.mainKey}} // the storage reads it again
			}
		}
		planned, err := s.plan(ctx, tx, rev, old, new)
		if err != nil {
			return nil, err
		}
		if !s.backend.commitLocks.tryLock(tx) {
			if err := s.backend.commitLocks.lock(ctx, tx); err != nil {
				return nil, err
			}
			continue // earlier writes have changed objects that the plan relies on
		}
		if tx.replanned || !tx.outdated() {
			return planned, nil
		}
		tx.replanned = true // once, as etcd has the last word
	}
}

// plan calls the planner for a write of the main object, which was read at rev. It returns the
// object to write: new with the changes of the planner.
//
// An error of the planner is final only if everything that it read was current at one revision. If
// it read from caches, it is called again. If the main object has changed since, the error is a
// *conflictError.
func (s *store) plan(ctx context.Context, tx *Tx, rev uint64, old, new runtime.Object) (runtime.Object, error) {
	for {
		tx.begin()
		var planned runtime.Object
		if new != nil {
			planned = new.DeepCopyObject()
		}
		err := s.planner(ctx, tx, old, planned)
		switch {
		case err == nil && tx.err == nil:
			return planned, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case apierrors.IsServiceUnavailable(tx.err):
			return nil, tx.err
		case tx.stale:
			tx.fresh = true
			continue
		case tx.err != nil:
			return nil, tx.err
		}
		if tx.snap != nil && modRevision(tx.snap.keys[tx.mainKey]) != int64(rev) {
			return nil, &conflictError{keys: []string{tx.mainKey}}
		}
		return nil, err
	}
}
