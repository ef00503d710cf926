package txn

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
)

const (
	// maxAttempts is the maximum number of attempts of one write.
	maxAttempts = 40

	// maxWriteDuration is the maximum duration of one write with its retries.
	maxWriteDuration = 5 * time.Second
)

// retry repeats a write of the object at a path until it has no conflict. Only conflicts are
// retried, because after them nothing has been written.
func (s *store) retry(ctx context.Context, operation, path string, write func(context.Context, *Tx) error) error {
	key, err := s.resource.key(path)
	if err != nil {
		return err
	}
	return s.retryKey(ctx, operation, key, write)
}

func (s *store) retryKey(ctx context.Context, operation, key string, write func(context.Context, *Tx) error) error {
	start := time.Now()
	tx := &Tx{backend: s.backend, client: s.client, main: s.resource, mainKey: key, deadline: start.Add(maxWriteDuration)}
	tx.flow = s.backend.flow(ctx)
	ctx = context.WithValue(ctx, contextKey{}, tx)
	attempt := 1
	defer func() {
		tx.unlock()
		retries.Observe(float64(attempt - 1))
		duration.WithLabelValues(s.resource.gr.String(), operation).Observe(time.Since(start).Seconds())
	}()
	for ; ; attempt++ {
		err := write(ctx, tx)
		var conflict *conflictError
		if !errors.As(err, &conflict) {
			return err
		}
		conflicts.WithLabelValues(s.resource.gr.String()).Inc()
		if attempt == maxAttempts || time.Now().After(tx.deadline) {
			klog.FromContext(ctx).V(2).Info("Write failed after repeated conflicts", "key", key, "operation", operation, "attempts", attempt, "conflict", conflict.keys)
			return errTooManyConflicts(s.resource.gr, operation)
		}
		tx.fresh = true
		if attempt <= 3 {
			continue // the failed commit has returned the latest revisions
		}
		tx.next = nil
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rand.N(time.Millisecond << min(attempt-2, 6))): // up to 4, 8, ... 64 ms
		}
	}
}

// flow returns the flow that shares the lock of a key with other flows: the requests of a user
// with the same verb and subresource. A user who changes an object in a loop can therefore still
// stop or delete it.
func (b *Backend) flow(ctx context.Context) string {
	var name, verb, subresource string
	if u, ok := genericapirequest.UserFrom(ctx); ok {
		if name = u.GetName(); b.pacer != nil && !b.pacer.limit.Exempt(u) {
			name = b.pacer.limit.Subject(u)
		}
	}
	if info, ok := genericapirequest.RequestInfoFrom(ctx); ok {
		verb, subresource = info.Verb, info.Subresource
	}
	return strings.Join([]string{name, verb, subresource}, "\n")
}
