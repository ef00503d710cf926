//go:build testclock

package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// newClock returns a clock that follows the one of a test bed, whose URL is in an environment
// variable. No shipped program has it.
func newClock(ctx context.Context) clock.Clock {
	url := os.Getenv("MACRACK_RUNNERS_CLOCK")
	if url == "" {
		return clock.RealClock{}
	}
	c := &followed{}
	c.follow(ctx, url)
	go func() {
		for ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
			c.follow(ctx, url)
		}
	}()
	return c
}

type followed struct {
	clock.RealClock
	ahead atomic.Int64
}

// Now returns the time of the test bed.
func (c *followed) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Since returns the time since t.
func (c *followed) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func (c *followed) follow(ctx context.Context, url string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/clock", nil)
	if err != nil {
		klog.ErrorS(err, "Failed to read the clock")
		return
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return
	}
	now, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(string(text)))
	if err != nil {
		klog.ErrorS(err, "Failed to read the clock")
		return
	}
	c.ahead.Store(int64(time.Until(now)))
}
