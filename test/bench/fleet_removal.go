package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/cluster/await"
	"macrack.io/macrack/test/stats"
)

// rejectedGoal is the goal for refused requests per object: 1.2 requests for each.
const rejectedGoal = 0.2

// A removal has the durations from the request to delete all instances until each is gone.
type removal struct {
	whole []time.Duration
	// rejected is the number of requests per instance that were refused as conflicts or as too many
	// and had to be repeated.
	rejected float64
}

// removeVMs deletes all instances at once, and waits until they and their pods are gone.
func (f *fleet) removeVMs(ctx context.Context) (r removal, err error) {
	before, err := requests(ctx, f.kube)
	if err != nil {
		return r, err
	}
	f.mu.Lock()
	total := len(f.starts)
	f.starts, f.gone = map[string]*start{}, nil
	f.mu.Unlock()
	began := time.Now()
	instances := f.macrack.InstanceV1alpha1().MacOSInstances(fleetTenant)
	if err := instances.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return r, err
	}
	if err := await.Success(ctx, 10*time.Minute, time.Second, func() error {
		left, err := instances.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		pods, err := f.kube.CoreV1().Pods(fleetTenant).List(ctx, metav1.ListOptions{})
		if err == nil && len(left.Items)+len(pods.Items) > 0 {
			err = fmt.Errorf("%d instances and %d pods are left", len(left.Items), len(pods.Items))
		}
		return err
	}); err != nil {
		return r, err
	}
	after, err := requests(ctx, f.kube)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, at := range f.gone {
		r.whole = append(r.whole, at.Sub(began))
	}
	r.rejected = rejected(before, after, total)
	return r, err
}

// requests returns the numbers of requests that kube-apiserver has answered so far, by verb,
// resource and code. Heartbeats are left out: the testbed puts them forward, and the next one of
// each Mac conflicts with that.
func requests(ctx context.Context, kube kubernetes.Interface) (map[string]float64, error) {
	text, err := kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	answered := map[string]float64{}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		labels := map[string]string{}
		for _, label := range m.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		if labels["group"] != coordinationv1.GroupName {
			resource := strings.TrimSuffix(labels["resource"]+"/"+labels["subresource"], "/")
			answered[labels["verb"]+" "+resource+" "+labels["code"]] += m.GetCounter().GetValue()
		}
	}
	return answered, nil
}

// rejected returns the number of requests for each object that were answered with 409 or 429 from
// before to after. It prints all of these and the most frequent others.
func rejected(before, after map[string]float64, objects int) float64 {
	total := 0.0
	for _, request := range slices.Sorted(maps.Keys(after)) {
		each := (after[request] - before[request]) / float64(objects)
		again := strings.HasSuffix(request, " 409") || strings.HasSuffix(request, " 429")
		if again {
			total += each
		}
		if each >= 0.1 || again && each > 0 {
			fmt.Fprintf(os.Stderr, "    %.2f for each: %s\n", each, request)
		}
	}
	return total
}

// reportRemovals adds the results of all removals.
func (f *fleet) reportRemovals(removals []removal) {
	each := func(of func(removal) float64) (values []float64) {
		for _, r := range removals {
			values = append(values, of(r))
		}
		return values
	}
	name := fmt.Sprintf("%d VMs on %d Macs, deleted at once until gone", f.fleet*rules.MaxVMsPerMac, f.fleet)
	for _, q := range []float64{0.5, 0.99} {
		f.alone(fmt.Sprintf("%s, p%.0f", name, 100*q), "ms", each(func(r removal) float64 { return ms(stats.Quantile(r.whole, q)) }), 0)
	}
	f.alone("refused and repeated requests per deleted VM", "", each(func(r removal) float64 { return r.rejected }), rejectedGoal)
}
