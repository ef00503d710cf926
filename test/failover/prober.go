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
	// slow is the time after which a request counts as not served.
	slow = time.Second
	// timeout ends a request that is not answered.
	timeout = 10 * time.Second

	probed     = "probed"
	counterKey = "example.com/count"
)

var tenant = cluster.Tenants[0]

// A prober sends requests as a client, and notes which of them are served.
type prober struct {
	macrack versioned.Interface
	// count is the last value of the counter that a server has acknowledged.
	count int
}

func newProber(ctx context.Context, macrack versioned.Interface) (*prober, error) {
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Name: probed}, Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: "studio"}}
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
	began time.Duration
	bad   bool
	err   error
}

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
		r.bad = r.err != nil || time.Since(began)-r.began > slow
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
	err := errors.Join(await.Sleep(ctx, slow), act(ctx), await.Sleep(ctx, slow))
	stop()
	sending.Wait()
	return p.assess(ctx, requests, err)
}

func (p *prober) assess(ctx context.Context, requests []request, err error) (outage, error) {
	slices.SortFunc(requests, func(a, b request) int { return cmp.Compare(a.began, b.began) })
	o := outage{sent: len(requests)}
	bad := slices.DeleteFunc(requests, func(r request) bool { return !r.bad })
	for _, r := range bad {
		if r.err != nil {
			o.failed++
		}
	}
	if len(bad) > 0 {
		o.lasted = bad[len(bad)-1].began - bad[0].began + interval
	}
	return o, errors.Join(err, p.checkCount(ctx))
}

func (p *prober) read(ctx context.Context) error {
	_, err := p.macrack.RackV1alpha1().MacNodeLeases(tenant).Get(ctx, probed, metav1.GetOptions{})
	return err
}

// write increments the counter. A write without an answer may have happened.
func (p *prober) write(ctx context.Context) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, counterKey, strconv.Itoa(p.count+1))
	_, err := p.macrack.RackV1alpha1().MacNodeLeases(tenant).Patch(ctx, probed, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		p.count++
	}
	return err
}

// checkCount fails if an acknowledged write was lost.
func (p *prober) checkCount(ctx context.Context) error {
	lease, err := p.macrack.RackV1alpha1().MacNodeLeases(tenant).Get(ctx, probed, metav1.GetOptions{})
	if err != nil {
		return err
	}
	stored, err := strconv.Atoi(lease.Annotations[counterKey])
	if err != nil || stored < p.count || stored > p.count+1 {
		return fmt.Errorf("an acknowledged write is lost: %d is stored, %d was acknowledged: %w", stored, p.count, err)
	}
	return nil
}

// noticed returns the time until the controllers have noticed a new lease.
func (p *prober) noticed(ctx context.Context, name string) (time.Duration, error) {
	leases := p.macrack.RackV1alpha1().MacNodeLeases(tenant)
	began := time.Now()
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: "studio"}}
	if _, err := leases.Create(ctx, lease, metav1.CreateOptions{}); err != nil {
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
