package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// measureMemory measures the memory of a macrack-apiserver with a fleet: after its start, lists of
// all kinds, and a report.
func (b *bench) measureMemory(ctx context.Context) error {
	if err := b.clear(ctx); err != nil {
		return err
	}
	if err := b.putFleet(ctx); err != nil {
		return err
	}
	records, err := b.records(ctx)
	if err != nil {
		return err
	}
	for _, path := range []string{records.stored, records.heads} {
		if err := putFile(ctx, b.ours.etcd, path); err != nil {
			return err
		}
	}
	var memory, peak, first, next []float64
	for range b.rounds {
		m, err := b.serveReport(ctx)
		if err != nil {
			return err
		}
		memory, peak = append(memory, m.after), append(peak, m.peak)
		first, next = append(first, m.first.Seconds()), append(next, m.next.Seconds())
	}
	b.alone(fmt.Sprintf("macrack-apiserver, %d Macs, %d instances, %d records, memory", b.macs, 2*b.macs, records.count), "MB", memory, 600)
	b.alone("the same during a report, maximum", "MB", peak, 600)
	b.alone("first report on 90 days by the API", "s", first, 2)
	b.alone("next report on 90 days by the API", "s", next, 2)
	return nil
}

// served is what a macrack-apiserver needed for two reports. The first one after its start reads
// all records, and the next one reads only the new records.
type served struct {
	after, peak float64 // memory in MB
	first, next time.Duration
}

// serveReport restarts macrack-apiserver, and requests lists of the fleet and two reports.
func (b *bench) serveReport(ctx context.Context) (served, error) {
	const server = "macrack-apiserver-1"
	if err := b.cluster.Restart(ctx, server); err != nil {
		return served{}, err
	}
	if err := b.cluster.WaitForAPI(ctx); err != nil {
		return served{}, err
	}
	sampling, stop := context.WithCancel(ctx)
	defer stop()
	peak := make(chan float64, 1)
	go func() { peak <- peakOf(sampling, b.cluster.PID(server)) }()
	for _, path := range []string{"rack.macrack.io/v1alpha1/macnodes", "rack.macrack.io/v1alpha1/macnodeleases", "instance.macrack.io/v1alpha1/macosinstances"} {
		if _, err := b.ours.do(ctx, http.MethodGet, b.ours.host+"/apis/"+path, "", nil); err != nil {
			return served{}, err
		}
	}
	report := func() (time.Duration, error) {
		start := time.Now()
		_, err := b.ours.do(ctx, http.MethodGet, b.ours.host+"/apis/rack.macrack.io/v1alpha1/compliancereports/"+reportWindow, "", nil)
		return time.Since(start), err
	}
	var m served
	var err error
	if m.first, err = report(); err != nil {
		return m, err
	}
	if m.next, err = report(); err != nil {
		return m, err
	}
	stop()
	m.peak = <-peak
	m.after, err = rss(ctx, b.cluster.PID(server))
	return m, err
}

// clear removes objects that other measurements have left.
func (b *bench) clear(ctx context.Context) error {
	for _, prefix := range []string{
		"/bench/", key("instance.macrack.io", "macosinstances") + "/", key("rack.macrack.io", "macnodeleases") + "/", key("rack.macrack.io", "macnodes") + "/",
		key("rack.macrack.io", "auditrecords") + "/",
	} {
		if _, err := b.ours.etcd.Delete(ctx, prefix, clientv3.WithPrefix()); err != nil {
			return err
		}
	}
	_, err := b.twin.etcd.Delete(ctx, key(twinGroup)+"/", clientv3.WithPrefix())
	return err
}

// putFleet writes Macs, each with a lease and two instances.
func (b *bench) putFleet(ctx context.Context) error {
	var pairs []pair
	for n := range b.macs {
		mac, err := stored(rackv1alpha1.SchemeGroupVersion, newMac(tenant, n))
		if err != nil {
			return err
		}
		lease, err := stored(rackv1alpha1.SchemeGroupVersion, newLease(tenant, n))
		if err != nil {
			return err
		}
		pairs = append(pairs, pair{key("rack.macrack.io", "macnodes", macName(n)), mac}, pair{key("rack.macrack.io", "macnodeleases", tenant, leaseName(n)), lease})
		for k := range 2 {
			one, _, err := b.bothStored(newInstance(tenant, 2*n+k, n))
			if err != nil {
				return err
			}
			pairs = append(pairs, one)
		}
	}
	return put(ctx, b.ours.etcd, pairs...)
}

// putFile writes the pairs of a file, in several batches at once.
func putFile(ctx context.Context, etcd *clientv3.Client, path string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	batches := make(chan []pair)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for pairs := range batches {
				if err := put(ctx, etcd, pairs...); err != nil {
					cancel(err)
				}
			}
		})
	}
	var pairs []pair
	send := func() error {
		select {
		case batches <- pairs:
			pairs = nil
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	err := readPairs(path, func(key string, value []byte) error {
		if pairs = append(pairs, pair{key, bytes.Clone(value)}); len(pairs) < batch {
			return nil
		}
		return send()
	})
	if err == nil && len(pairs) > 0 {
		err = send()
	}
	close(batches)
	wg.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// rss returns the memory of a process, in MB.
func rss(ctx context.Context, pid int) (float64, error) {
	out, err := output(ctx, "ps", "-o", "rss=", "-p", strconv.Itoa(pid))
	if err != nil {
		return 0, err
	}
	kib, err := strconv.ParseFloat(string(bytes.TrimSpace(out)), 64)
	return kib * 1024 / 1e6, err
}

// peakOf returns the highest memory of a process that was seen until ctx ended.
func peakOf(ctx context.Context, pid int) float64 {
	highest := 0.0
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return highest
		case <-tick.C:
			if now, err := rss(context.WithoutCancel(ctx), pid); err == nil {
				highest = max(highest, now)
			}
		}
	}
}
