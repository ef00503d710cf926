package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"macrack.io/macrack/test/cluster/await"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
)

const (
	// flooders is the number of connections that write metadata as fast as they can, on the
	// instance, its lease and its pod.
	flooders = 12
	// floodRounds is the number of measurements, each without the flood and with it.
	floodRounds = 5
)

// flood compares the duration of an instance's life while its tenant floods its metadata with the
// duration without a flood.
func (r *report) flood(ctx context.Context, w *world) {
	const family = "flood"
	if ctx.Err() != nil || r.family != "" && r.family != family {
		return
	}
	took := map[bool]map[string][]time.Duration{false: {}, true: {}}
	writes := int64(0)
	for n := range 2 * floodRounds {
		flooding := n%2 == 1
		l := &floodedLife{world: w, name: fmt.Sprintf("attack-flood-%d", n), took: took[flooding]}
		end := func() int64 { return 0 }
		if flooding {
			end = l.flood(ctx)
		}
		r.legitimate++
		err := l.run(ctx)
		writes += end()
		if err != nil {
			r.broken++
			r.line("✗", family, "globex", "a life of an instance", err.Error())
			return
		}
	}
	if writes == 0 {
		r.broken++
		r.line("✗", family, "globex", "metadata as fast as it can be written", "no write succeeded")
	}
	for _, step := range floodSteps {
		calm, flooded := median(took[false][step]), median(took[true][step])
		r.line("✓", family, "globex", step+", while 12 connections write metadata",
			fmt.Sprintf("%s, %s without: %.1f times", flooded.Round(time.Millisecond), calm.Round(time.Millisecond), float64(flooded)/float64(calm)))
	}
	r.line("✓", family, "globex", "metadata that was written meanwhile", fmt.Sprint(writes))
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

var floodSteps = []string{"start", "exec", "stop", "delete"}

type floodedLife struct {
	world *world
	name  string
	took  map[string][]time.Duration
}

func (l *floodedLife) path() string { return instances("globex") + "/" + l.name }

// flood writes metadata until end is called; end returns the number of writes.
func (l *floodedLife) flood(ctx context.Context) (end func() int64) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	var written atomic.Int64
	for n := range flooders {
		target := []call{
			{path: l.path(), replica: 1 + n%2}, {path: leases("globex") + "/attack-globex", replica: 1 + n%2}, {path: "/api/v1/namespaces/globex/pods/" + l.name + "-vm"},
		}[n%3]
		target.method, target.contentType = http.MethodPatch, mergePatch
		group.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				target.body = fmt.Sprintf(`{"metadata":{"annotations":{"example.com/flood-%d":"%d"}}}`, n, i)
				if target.do(ctx, l.world, "globex").code == http.StatusOK {
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

func (l *floodedLife) run(ctx context.Context) error {
	w := l.world
	is := func(text string) func() error {
		return func() error {
			if a := get(l.path())(ctx, w, "globex"); !strings.Contains(a.body, text) {
				return fmt.Errorf("instance %s does not become %s: %s", l.name, text, short(a.text()))
			}
			return nil
		}
	}
	does := func(do step, code int) error {
		if a := do(ctx, w, "globex"); a.code != code {
			return fmt.Errorf("instance %s: %d %s", l.name, a.code, short(a.text()))
		}
		return nil
	}
	for _, s := range []struct {
		name string
		do   func() error
		done func() error
	}{
		{"start", func() error {
			return does(post(instances("globex"), instanceBody(`"name":"`+l.name+`"`, `"leaseName":"attack-globex"`)), http.StatusCreated)
		}, is(`"phase":"Running"`)},
		{"exec", func() error { return nil }, func() error { return l.exec(ctx) }},
		{"stop", func() error {
			return does(post(l.path()+"/stop", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop","gracePeriodSeconds":30,"reason":"done"}`), http.StatusCreated)
		}, is(`"phase":"Stopped"`)},
		{"delete", func() error { return does(remove(l.path()), http.StatusOK) }, func() error {
			if a := get(l.path())(ctx, w, "globex"); a.code != http.StatusNotFound {
				return fmt.Errorf("instance %s does not go: %d %s", l.name, a.code, short(a.text()))
			}
			return nil
		}},
	} {
		began := time.Now()
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		err := s.done()
		for ; err != nil && time.Since(began) < settling; err = s.done() {
			if err := await.Sleep(ctx, 20*time.Millisecond); err != nil {
				return err
			}
		}
		if err != nil {
			return fmt.Errorf("%s, after %s: %w", s.name, settling, err)
		}
		l.took[s.name] = append(l.took[s.name], time.Since(began))
	}
	return l.recorded(ctx)
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
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	url := client.CoreV1().RESTClient().Get().Namespace("globex").Resource("pods").Name(l.name+"-vm").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"true"}, Stdout: true}, kubescheme.ParameterCodec).URL()
	executor, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, url.String())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard})
}
