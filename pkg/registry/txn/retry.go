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
	// maxAttempts bounds how often one write is tried.
	maxAttempts = 40

	// patience bounds how long one write goes on.
	patience = 5 * time.Second
)

// retry tries a write of the object at a path until it meets no conflict. Only
// conflicts are tried again, as nothing has been written then.
func (s *store) retry(ctx context.Context, operation, path string, write func(context.Context, *Tx) error) error {
	key, err := s.resource.key(path)
	if err != nil {
		return err
	}
	return s.retryKey(ctx, operation, key, write)
}

func (s *store) retryKey(ctx context.Context, operation, key string, write func(context.Context, *Tx) error) error {
	start := time.Now()
	tx := &Tx{domain: s.domain, client: s.client, main: s.resource, mainKey: key, deadline: start.Add(patience)}
	tx.flow = flow(ctx)
	ctx = context.WithValue(ctx, contextKey{}, tx)
	attempt := 1
	defer func() {
		tx.leave()
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
			klog.FromContext(ctx).V(2).Info("Gave up a write that kept meeting conflicts", "key", key, "operation", operation, "attempts", attempt, "conflict", conflict.keys)
			return errTooManyConflicts(s.resource.gr, operation)
		}
		tx.fresh = true
		if attempt <= 3 {
			continue // what the failed commit found is as new as can be
		}
		tx.next = nil
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rand.N(time.Millisecond << min(attempt-2, 6))): // up to 4, 8, ... 64 ms
		}
	}
}

// flow returns what shares the turns at a key with others: the requests of a user that do the same. So a user who
// changes an object again and again can still stop or delete it.
func flow(ctx context.Context) string {
	var name, verb, subresource string
	if u, ok := genericapirequest.UserFrom(ctx); ok {
		name = u.GetName()
	}
	if info, ok := genericapirequest.RequestInfoFrom(ctx); ok {
		verb, subresource = info.Verb, info.Subresource
	}
	return strings.Join([]string{name, verb, subresource}, "\n")
}
