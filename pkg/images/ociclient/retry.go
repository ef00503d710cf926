package ociclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// The retries of the library end with the header of a response, ignore some forms of Retry-After,
// and retry by a clock of their own. So this package has its own.
const (
	maxWait = time.Minute
	// maxRetryAfter is the limit of a registry's Retry-After.
	maxRetryAfter = 5 * time.Minute
	// progress is the number of bytes received that resets the count of failures.
	progress = 1 << 20
)

// permanent is an error that a retry does not fix.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

func retryable(err error) bool {
	var p permanent
	var status *StatusError
	var tlsErr *tls.CertificateVerificationError
	switch {
	case errors.As(err, &p), errors.As(err, &tlsErr), errors.Is(err, context.Canceled):
		return false
	case errors.As(err, &status):
		return status.Code == http.StatusRequestTimeout || status.Code == http.StatusTooManyRequests || status.Code >= 500
	}
	return true
}

// backoff counts failures and waits between attempts.
type backoff struct {
	c        *Client
	failures int
}

// again waits after a failure, or returns the error if a retry is pointless.
func (b *backoff) again(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err = b.c.explain(err)
	if !retryable(err) {
		return err
	}
	b.failures++
	if b.failures >= b.c.opts.Attempts {
		return fmt.Errorf("%d attempts failed, the last with: %w", b.failures, err)
	}
	wait := min(b.c.opts.Wait<<min(b.failures-1, 16), maxWait)
	wait = wait/2 + rand.N(wait/2+1)
	var status *StatusError
	if errors.As(err, &status) && status.RetryAfter > 0 {
		if status.RetryAfter > maxRetryAfter {
			return fmt.Errorf("the registry requests a wait of %s, which exceeds the limit: %w", status.RetryAfter, err)
		}
		wait = max(wait, status.RetryAfter)
	}
	b.c.opts.Retrying(err, wait)
	timer := b.c.opts.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C():
		return nil
	}
}

// retry repeats attempt until it succeeds or a retry is pointless.
func (c *Client) retry(ctx context.Context, attempt func(context.Context) error) error {
	b := backoff{c: c}
	for {
		err := attempt(ctx)
		if err == nil {
			return nil
		}
		if err := b.again(ctx, err); err != nil {
			return err
		}
	}
}
