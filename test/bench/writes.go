package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/stats"
)

// A side is one of the two implementations, as seen by clients of kube-apiserver.
type side struct {
	name    string
	version string // group/version of its MacOSInstances
	host    string
	tls     *tls.Config
	http    *http.Client
	etcd    *clientv3.Client // where its objects are stored
	again   *atomic.Int64    // number of retries
}

func newSide(name string, config *rest.Config, version string, etcd *clientv3.Client) (*side, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	s := &side{name: name, version: version, host: config.Host, tls: tlsConfig, etcd: etcd, again: &atomic.Int64{}}
	s.http = s.newClient()
	return s, nil
}

// newClient returns a client with its own connection.
func (s *side) newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: s.tls.Clone(), ForceAttemptHTTP2: true, DisableCompression: true}}
}

func (s *side) instances(namespace string) string {
	return s.host + "/apis/" + s.version + "/namespaces/" + namespace + "/macosinstances"
}

// do sends a request and returns the body of the answer, which must be 200 or 201. After 429 (busy)
// or 503 (unavailable) it retries, on the client's time.
func (s *side) do(ctx context.Context, method, url, contentType string, body []byte) ([]byte, error) {
	const backOff, attempts = 100 * time.Millisecond, 300
	for n := 1; ; n++ {
		status, answer, err := s.once(ctx, method, url, contentType, body)
		switch {
		case err != nil:
			return nil, err
		case status < http.StatusMultipleChoices:
			return answer, nil
		case status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable || n == attempts:
			return nil, fmt.Errorf("%s: %s %s: %d: %s", s.name, method, url, status, answer)
		}
		s.again.Add(1)
		time.Sleep(backOff)
	}
}

func (s *side) once(ctx context.Context, method, url, contentType string, body []byte) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Accept", "application/json")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

var operations = []string{"create", "update", "delete"}

// cycle creates an instance, changes it, deletes it, and removes the finalizer that either side has
// on it. It returns the durations of the first three.
func (s *side) cycle(ctx context.Context, name, lease string) ([3]time.Duration, error) {
	var took [3]time.Duration
	manifest := fmt.Appendf(nil, `{"apiVersion":%q,"kind":"MacOSInstance","metadata":{"name":%q,"namespace":%q,"finalizers":[%q]},"spec":{"leaseName":%q,"className":%q,"imageName":%q}}`,
		s.version, name, tenant, rules.FinalizerVM, lease, className, imageName)
	all := s.instances(tenant)
	one := all + "/" + name
	start := time.Now()
	created, err := s.do(ctx, http.MethodPost, all, "application/json", manifest)
	took[0] = time.Since(start)
	if err != nil {
		return took, err
	}
	var object map[string]any
	if err := json.Unmarshal(created, &object); err != nil {
		return took, err
	}
	object["metadata"].(map[string]any)["labels"] = map[string]any{"team": "ios"}
	changed, err := json.Marshal(object)
	if err != nil {
		return took, err
	}
	start = time.Now()
	_, err = s.do(ctx, http.MethodPut, one, "application/json", changed)
	took[1] = time.Since(start)
	if err != nil {
		return took, err
	}
	start = time.Now()
	_, err = s.do(ctx, http.MethodDelete, one, "", nil)
	took[2] = time.Since(start)
	if err != nil {
		return took, err
	}
	_, err = s.do(ctx, http.MethodPatch, one, "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	return took, err
}

// load is the result of a side under a number of clients.
type load struct {
	took    [3][]time.Duration
	cycles  int
	elapsed time.Duration
}

// write runs cycles for some time with several clients, each with its own lease.
func (s *side) write(ctx context.Context, clients int, during time.Duration, round string, into *load) error {
	var mu sync.Mutex
	var firstErr error
	var wg sync.WaitGroup
	start := time.Now()
	for c := range clients {
		wg.Go(func() {
			for n := 0; time.Since(start) < during; n++ {
				took, err := s.cycle(ctx, fmt.Sprintf("%s-%d-%d", round, c, n), leaseName(c))
				mu.Lock()
				if err != nil {
					firstErr = err
					mu.Unlock()
					return
				}
				into.cycles++
				for i := range took {
					into.took[i] = append(into.took[i], took[i])
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	into.elapsed += time.Since(start)
	return firstErr
}

// checkRule checks that a side refuses the third instance of a lease, and leaves nothing behind.
func (s *side) checkRule(ctx context.Context) error {
	lease := leaseName(0)
	var refusal error
	for n := range 3 {
		_, refusal = s.do(ctx, http.MethodPost, s.instances(tenant), "application/json", fmt.Appendf(nil,
			`{"apiVersion":%q,"kind":"MacOSInstance","metadata":{"name":"third-%d"},"spec":{"leaseName":%q,"className":%q,"imageName":%q}}`, s.version, n, lease, className, imageName))
		if n < 2 && refusal != nil {
			return refusal
		}
	}
	if refusal == nil || !strings.Contains(refusal.Error(), "two VMs per Mac") {
		return fmt.Errorf("%s: the third instance of a lease: %v", s.name, refusal)
	}
	for n := range 2 {
		one := fmt.Sprintf("%s/third-%d", s.instances(tenant), n)
		if _, err := s.do(ctx, http.MethodDelete, one, "", nil); err != nil {
			return err
		}
		_, err := s.do(ctx, http.MethodPatch, one, "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		if err != nil && !strings.Contains(err.Error(), "404") { // the twin's instance had no finalizer
			return err
		}
	}
	return nil
}

// direct returns macrack without the kube-apiserver in front of it, to show the share of time of
// the way there.
func (b *bench) direct() (*side, error) {
	config, err := b.cluster.ReplicaRESTConfig(1, cluster.Admin)
	if err != nil {
		return nil, err
	}
	return newSide("macrack, direct", config, b.ours.version, b.ours.etcd)
}

var clientCounts = []int{1, 16, 64}

// measureWrites compares create, update and delete of instances through kube-apiserver: in
// MacRack's registry, with the rules, and as custom resources with a webhook that enforces one of
// them.
func (b *bench) measureWrites(ctx context.Context) error {
	most := clientCounts[len(clientCounts)-1]
	var ours, twins []pair
	for n := range most {
		lease := newLease(tenant, n)
		value, err := stored(rackv1alpha1.SchemeGroupVersion, lease)
		if err != nil {
			return err
		}
		mac, err := stored(rackv1alpha1.SchemeGroupVersion, newMac(tenant, n))
		if err != nil {
			return err
		}
		twin, err := storedTwin("MacNodeLease", lease)
		if err != nil {
			return err
		}
		ours = append(ours, pair{key("rack.macrack.io", "macnodeleases", tenant, lease.Name), value}, pair{key("rack.macrack.io", "macnodes", macName(n)), mac})
		twins = append(twins, pair{key(twinGroup, "macnodeleases", tenant, lease.Name), twin})
	}
	if err := put(ctx, b.ours.etcd, ours...); err != nil {
		return err
	}
	if err := put(ctx, b.twin.etcd, twins...); err != nil {
		return err
	}
	direct, err := b.direct()
	if err != nil {
		return err
	}
	sides := [3]*side{b.ours, b.twin, direct}
	for _, s := range sides {
		if err := s.checkRule(ctx); err != nil {
			return err
		}
		var warm load
		if err := s.write(ctx, most, b.slice, "warm", &warm); err != nil {
			return err
		}
	}
	for _, clients := range clientCounts {
		loads := make([][3]load, b.rounds)
		for round := range loads {
			for i := range sides {
				i = (i + round) % len(sides)
				if err := sides[i].write(ctx, clients, b.slice, fmt.Sprintf("c%d-r%d", clients, round), &loads[round][i]); err != nil {
					return err
				}
			}
		}
		with := "1 client"
		if clients > 1 {
			with = fmt.Sprintf("%d clients", clients)
		}
		const ours, twin, direct = 0, 1, 2
		for i, operation := range operations {
			times := func(side int, q float64) (values []float64) {
				for _, l := range loads {
					values = append(values, ms(stats.Quantile(l[side].took[i], q)))
				}
				return values
			}
			for _, q := range []float64{0.5, 0.99} {
				b.less(fmt.Sprintf("%s, %s, p%.0f", operation, with, 100*q), "ms", times(ours, q), times(twin, q), 0.7)
			}
			b.less(fmt.Sprintf("%s, %s, p50, directly at macrack-apiserver", operation, with), "ms", times(direct, 0.5), times(twin, 0.5), 0)
		}
		rates := func(side int) (values []float64) {
			for _, l := range loads {
				values = append(values, float64(l[side].cycles)/l[side].elapsed.Seconds())
			}
			return values
		}
		b.more(fmt.Sprintf("cycles of the three, %s", with), "cycles/s", rates(ours), rates(twin), 0.77)
	}
	for _, s := range sides {
		if n := s.again.Load(); n > 0 {
			fmt.Fprintf(os.Stderr, "%s answered 429 or 503 %d times; the requests were retried\n", s.name, n)
		}
	}
	return nil
}
