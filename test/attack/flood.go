package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/await"
	"macrack.io/macrack/test/stats"
)

const (
	// flooders is the number of connections that write metadata as fast as they can, on the
	// instance, its lease and its pod.
	flooders = 12
	// floodRounds is the number of measurements, each without the flood and with it.
	floodRounds = 5
)

// A load is what a tenant writes during the life of an instance.
type load int

const (
	noFlood load = iota
	// otherFlood writes to other objects of the same tenant. It costs as much as ownFlood, so the
	// difference between the two is the cost of contention for one object.
	otherFlood
	ownFlood
	loads
)

// flood compares the duration of an instance's life while its tenant floods its metadata with the
// durations without a flood, and with a flood of other objects.
func (r *report) flood(ctx context.Context, w *world) {
	const (
		family = "flood"
		other  = "attack-flood-other"
	)
	if ctx.Err() != nil || r.family != "" && r.family != family {
		return
	}
	fail := func(what string, err error) {
		r.broken++
		r.line("✗", family, "globex", what, err.Error())
	}
	background := &floodedLife{world: w, name: other, took: map[string][]time.Duration{}}
	if err := errors.Join(
		does(ctx, w, post(leases("globex"), leaseBody(`"name":"`+other+`"`, `"className":"studio"`)), http.StatusCreated),
		background.step(ctx, "start"),
	); err != nil {
		fail("another instance and another lease", err)
		return
	}
	var took [loads]map[string][]time.Duration
	var writes [loads]int64
	for n := range int(loads) * floodRounds {
		now := load(n % int(loads))
		if took[now] == nil {
			took[now] = map[string][]time.Duration{}
		}
		l := &floodedLife{world: w, name: fmt.Sprintf("attack-flood-%d", n), took: took[now]}
		end := func() int64 { return 0 }
		switch now {
		case otherFlood:
			end = flood(ctx, w, other, other)
		case ownFlood:
			end = flood(ctx, w, l.name, "attack-globex")
		}
		r.legitimate++
		err := l.run(ctx)
		writes[now] += end()
		if err != nil {
			fail("a life of an instance", err)
			return
		}
	}
	if err := errors.Join(background.step(ctx, "delete"), does(ctx, w, remove(leases("globex")+"/"+other), http.StatusOK)); err != nil {
		fail("the end of the other instance and lease", err)
	}
	if writes[otherFlood] == 0 || writes[ownFlood] == 0 {
		fail("metadata as fast as it can be written", errors.New("no write succeeded"))
	}
	for _, step := range floodSteps {
		calm, others, own := stats.Median(took[noFlood][step]), stats.Median(took[otherFlood][step]), stats.Median(took[ownFlood][step])
		r.line("✓", family, "globex", step+", while 12 connections write metadata",
			fmt.Sprintf("%s, %s without: %.1f times; %s while they write to other objects: %.1f times",
				own.Round(time.Millisecond), calm.Round(time.Millisecond), float64(own)/float64(calm),
				others.Round(time.Millisecond), float64(own)/float64(others)))
	}
	r.line("✓", family, "globex", "metadata that was written meanwhile", fmt.Sprintf("%d, and %d to other objects", writes[ownFlood], writes[otherFlood]))
}

var floodSteps = []string{"start", "exec", "stop", "delete"}

type floodedLife struct {
	world *world
	name  string
	took  map[string][]time.Duration
}

func (l *floodedLife) path() string { return instances("globex") + "/" + l.name }

// flood writes metadata of an instance, its pod and a lease until end is called; end returns the
// number of writes.
func flood(ctx context.Context, w *world, instance, lease string) (end func() int64) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	var written atomic.Int64
	for n := range flooders {
		target := []call{
			{path: instances("globex") + "/" + instance, replica: 1 + n%2},
			{path: leases("globex") + "/" + lease, replica: 1 + n%2},
			{path: "/api/v1/namespaces/globex/pods/" + instance + "-vm"},
		}[n%3]
		target.method, target.contentType = http.MethodPatch, mergePatch
		group.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				target.body = fmt.Sprintf(`{"metadata":{"annotations":{"example.com/flood-%d":"%d"}}}`, n, i)
				if target.do(ctx, w, "globex").code == http.StatusOK {
					written.Add(1)
				}
			}
		})
	}
	return func() int64 {
		cancel()
		group.Wait()
		return written.Load()
	}
}

// run takes all steps, and checks the records.
func (l *floodedLife) run(ctx context.Context) error {
	for _, name := range floodSteps {
		if err := l.step(ctx, name); err != nil {
			return err
		}
	}
	return l.recorded(ctx)
}

// step takes one step, and waits for its effect.
func (l *floodedLife) step(ctx context.Context, name string) error {
	act, done := l.actions(ctx, name)
	began := time.Now()
	if err := act(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	err := done()
	for ; err != nil && time.Since(began) < settling; err = done() {
		if err := await.Sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("%s, after %s: %w", name, settling, err)
	}
	l.took[name] = append(l.took[name], time.Since(began))
	return nil
}

// actions returns the request of a step, and the check of its effect.
func (l *floodedLife) actions(ctx context.Context, name string) (act, done func() error) {
	request := func(do step, code int) func() error {
		return func() error { return does(ctx, l.world, do, code) }
	}
	becomes := func(phase string) func() error {
		return func() error {
			if a := get(l.path())(ctx, l.world, "globex"); !strings.Contains(a.body, `"phase":"`+phase+`"`) {
				return fmt.Errorf("instance %s does not become %s: %s", l.name, phase, short(a.text()))
			}
			return nil
		}
	}
	switch name {
	case "start":
		return request(post(instances("globex"), instanceBody(`"name":"`+l.name+`"`, `"leaseName":"attack-globex"`)), http.StatusCreated), becomes("Running")
	case "exec":
		return func() error { return nil }, func() error { return l.exec(ctx) }
	case "stop":
		return request(post(l.path()+"/stop", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop","gracePeriodSeconds":30,"reason":"done"}`), http.StatusCreated), becomes("Stopped")
	case "delete":
		return request(remove(l.path()), http.StatusOK), request(get(l.path()), http.StatusNotFound)
	}
	panic("unknown step " + name)
}

// does expects a status code of a request by globex.
func does(ctx context.Context, w *world, do step, code int) error {
	if a := do(ctx, w, "globex"); a.code != code {
		return fmt.Errorf("%d %s; want %d", a.code, short(a.text()), code)
	}
	return nil
}

// recorded checks that the ledger has one start and one end of the instance.
func (l *floodedLife) recorded(ctx context.Context) error {
	a := get(records("globex"))(ctx, l.world, "globex")
	list := struct {
		Items []struct {
			Type     string `json:"type"`
			Instance struct {
				Name string `json:"name"`
				UID  string `json:"uid"`
			} `json:"instance"`
		} `json:"items"`
	}{}
	if err := json.Unmarshal([]byte(a.body), &list); err != nil || a.code != http.StatusOK {
		return fmt.Errorf("listing the records: %d %s", a.code, short(a.text()))
	}
	counts := map[string]map[string]int{} // by UID: an earlier attack had instances of the same name
	for _, record := range list.Items {
		if record.Instance.Name == l.name {
			if counts[record.Instance.UID] == nil {
				counts[record.Instance.UID] = map[string]int{}
			}
			counts[record.Instance.UID][record.Type]++
		}
	}
	if len(counts) == 0 {
		return errors.New("no record is of instance " + l.name)
	}
	for uid, types := range counts {
		for _, kind := range []string{"InstanceStarted", "InstanceStopped"} {
			if types[kind] != 1 {
				return fmt.Errorf("%d records are %s of instance %s (%s); wanted 1", types[kind], kind, l.name, uid)
			}
		}
	}
	return nil
}

func (l *floodedLife) exec(ctx context.Context) error {
	config, err := l.world.cluster.RESTConfig("globex")
	if err != nil {
		return err
	}
	return cluster.Exec(ctx, config, 30*time.Second, "globex", l.name+"-vm", "true")
}
