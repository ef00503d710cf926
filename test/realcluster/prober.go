package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/test/cluster/await"
)

const (
	probeInterval = 50 * time.Millisecond
	// probeTimeout ends a request that is not answered.
	probeTimeout = 5 * time.Second
)

// load is what a client noticed while it sent requests.
type load struct {
	sent, failed int
	// outage is the longest time between two served requests.
	outage time.Duration
	last   error
}

func (l load) String() string {
	return fmt.Sprintf("%d of %d requests failed, the longest outage took %s", l.failed, l.sent, round(l.outage))
}

// underLoad reads and writes a lease while act works. Requests overlap, so that a slow one does not
// delay the next.
func (w *world) underLoad(ctx context.Context, act func(context.Context) error) (load, error) {
	var (
		mu     sync.Mutex
		l      load
		served = time.Now()
	)
	request := func(n int) {
		err := w.request(ctx, n)
		mu.Lock()
		defer mu.Unlock()
		l.sent++
		if err != nil {
			l.failed++
			l.last = err
			return
		}
		now := time.Now()
		l.outage, served = max(l.outage, now.Sub(served)), now
	}
	sending, stop := context.WithCancel(ctx)
	defer stop()
	var requests sync.WaitGroup
	requests.Go(func() {
		for n := 0; sending.Err() == nil; n++ {
			requests.Go(func() { request(n) })
			_ = await.Sleep(sending, probeInterval)
		}
	})
	err := act(ctx)
	stop()
	requests.Wait()
	return l, err
}

// request sends a read, or every fourth time a write.
func (w *world) request(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	leases := w.clients.MacRack.RackV1alpha1().MacNodeLeases(team)
	if n%4 != 0 {
		_, err := leases.Get(ctx, "build", metav1.GetOptions{})
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/count":"%d"}}}`, n)
	_, err := leases.Patch(ctx, "build", types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
