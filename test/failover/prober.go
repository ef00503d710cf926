package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/await"
)

const (
	// interval is the time between two requests of the prober.
	interval = 20 * time.Millisecond
	// slow is the time after which a request counts as not served: ten times what one takes while
	// all components run.
	slow = 250 * time.Millisecond
	// settled is the time before and after a fault in which all requests should be served.
	settled = time.Second
	// timeout ends a request that is not answered.
	timeout = 10 * time.Second

	probed     = "probed"
	counterKey = "example.com/count"
	// counterPath is the JSON pointer to the counter.
	counterPath = "/metadata/annotations/example.com~1count"
)

var tenant = cluster.Tenants[0]

// A prober sends requests as a client, and notes which of them are served.
type prober struct {
	macrack versioned.Interface
	// count is the last value of the counter that a server has acknowledged, and lost the number of
	// acknowledged writes that were not found afterwards.
	count, lost int
}

func newProber(ctx context.Context, macrack versioned.Interface) (*prober, error) {
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Name: probed, Annotations: map[string]string{counterKey: "0"}}, Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: "studio"}}
	_, err := macrack.RackV1alpha1().MacNodeLeases(tenant).Create(ctx, lease, metav1.CreateOptions{})
	return &prober{macrack: macrack}, err
}

// An outage is the time in which requests were not served, as a client noticed it.
type outage struct {
	lasted       time.Duration
	sent, failed int
}

// A request is one that began at a time after the beginning of the probe.
type request struct {
	began, ended time.Duration
	err          error
}

// bad reports whether the request was not served.
func (r request) bad() bool { return r.err != nil || r.ended-r.began > slow }

// probe sends reads, one after each interval, and writes, one after the other, while act works. It
// returns the time from the first to the last request that was not served.
func (p *prober) probe(ctx context.Context, act func(context.Context) error) (outage, error) {
	began := time.Now()
	var mu sync.Mutex
	var requests []request
	send := func(do func(context.Context) error) error {
		r := request{began: time.Since(began)}
		bounded, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		r.err = do(bounded)
		r.ended = time.Since(began)
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, r)
		return r.err
	}
	probing, stop := context.WithCancel(ctx)
	var sending sync.WaitGroup
	sending.Go(func() {
		for probing.Err() == nil {
			sending.Go(func() { _ = send(p.read) })
			_ = await.Sleep(probing, interval)
		}
	})
	sending.Go(func() {
		for probing.Err() == nil {
			_ = send(p.write)
			_ = await.Sleep(probing, interval)
		}
	})
	err := errors.Join(await.Sleep(ctx, settled), act(ctx), await.Sleep(ctx, settled))
	stop()
	sending.Wait()
	return assess(requests), err
}

// assess returns the time from the beginning of the first request that was not served to the end of
// the last one.
func assess(requests []request) outage {
	o := outage{sent: len(requests)}
	bad := slices.DeleteFunc(requests, func(r request) bool { return !r.bad() })
	for _, r := range bad {
		if r.err != nil {
			o.failed++
		}
	}
	if len(bad) > 0 {
		first := slices.MinFunc(bad, func(a, b request) int { return cmp.Compare(a.began, b.began) })
		last := slices.MaxFunc(bad, func(a, b request) int { return cmp.Compare(a.ended, b.ended) })
		o.lasted = last.ended - first.began
	}
	return o
}

func (p *prober) read(ctx context.Context) error {
	_, err := p.macrack.RackV1alpha1().MacNodeLeases(tenant).Get(ctx, probed, metav1.GetOptions{})
	return err
}

// write increments the counter if it has the last acknowledged value. Otherwise, a write without an
// answer has happened, or an acknowledged write was lost.
func (p *prober) write(ctx context.Context) error {
	patch := fmt.Appendf(nil, `[{"op":"test","path":%[1]q,"value":"%[2]d"},{"op":"replace","path":%[1]q,"value":"%[3]d"}]`, counterPath, p.count, p.count+1)
	leases := p.macrack.RackV1alpha1().MacNodeLeases(tenant)
	_, err := leases.Patch(ctx, probed, types.JSONPatchType, patch, metav1.PatchOptions{})
	if err == nil {
		p.count++
		return nil
	}
	lease, getErr := leases.Get(ctx, probed, metav1.GetOptions{})
	if getErr != nil {
		return err
	}
	stored, getErr := strconv.Atoi(lease.Annotations[counterKey])
	if getErr != nil {
		return errors.Join(err, getErr)
	}
	p.lost += max(0, p.count-stored)
	p.count = stored
	return err
}

// noticed returns the time until the controllers have noticed a new lease.
func (p *prober) noticed(ctx context.Context, name string) (time.Duration, error) {
	leases := p.macrack.RackV1alpha1().MacNodeLeases(tenant)
	began := time.Now()
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: "studio"}}
	if err := await.Success(ctx, 2*time.Minute, interval, func() error {
		_, err := leases.Create(ctx, lease, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}); err != nil {
		return 0, err
	}
	if err := await.Success(ctx, 2*time.Minute, interval, func() error {
		lease, err := leases.Get(ctx, name, metav1.GetOptions{})
		if err == nil && meta.FindStatusCondition(lease.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionBound) == nil {
			err = errors.New("the controllers have not noticed the lease")
		}
		return err
	}); err != nil {
		return 0, err
	}
	took := time.Since(began)
	return took, leases.Delete(ctx, name, metav1.DeleteOptions{})
}
