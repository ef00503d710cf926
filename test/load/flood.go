package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/await"
)

const (
	// floodClients is the number of connections of each kind of request.
	floodClients = 4
	floodWatches = 1000
	// openFor is how long the flood opens watches before it begins with other requests.
	openFor = 10 * time.Second
	// floodNice is the priority of the flood's process: its own use of the processors is not part
	// of the measurement.
	floodNice = 19
)

// startFlood starts the flood in a process of its own, and returns when it is at full speed. stop
// ends it and returns the number of requests by kind.
func startFlood(ctx context.Context, c *cluster.Cluster) (stop func() (map[string]int64, error), err error) {
	kubeconfig, err := c.Kubeconfig(flooder)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, floodCommand, kubeconfig)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Linux weighs sessions against each other
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(stdout)
	if line, err := lines.ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("the flood printed %q: %w", line, err), cmd.Wait())
	}
	return func() (sent map[string]int64, err error) {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return nil, err
		}
		err = json.NewDecoder(lines).Decode(&sent)
		return sent, errors.Join(err, cmd.Wait())
	}, nil
}

// A request is one of the flood; client is the number of its connection, and n counts its requests.
type request struct {
	name string
	do   func(ctx context.Context, client, n int) error
}

// runFlood floods the API until it is terminated. It prints a line when all watches are open, and
// the number of answered requests at the end.
func runFlood(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: load flood KUBECONFIG")
	}
	if err := yieldProcessors(); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return err
	}
	config.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter()
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return impatient{inner} })
	macrack, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(rest.CopyConfig(config))
	if err != nil {
		return err
	}
	watches := openWatches(ctx, macrack)
	fmt.Println("at full speed, with", watches, "watches")

	requests := floodRequests(macrack, kube)
	answered, refused := make([]atomic.Int64, len(requests)), atomic.Int64{}
	var group sync.WaitGroup
	for i, r := range requests {
		for client := range floodClients {
			group.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					switch err := r.do(ctx, client, n); {
					case apierrors.IsTooManyRequests(err):
						refused.Add(1)
					case err == nil || !apierrors.IsInternalError(err):
						answered[i].Add(1)
					}
				}
			})
		}
	}
	group.Wait()
	sent := map[string]int64{"watches": watches, "refused with 429": refused.Load()}
	for i, r := range requests {
		sent[r.name] = answered[i].Load()
	}
	return json.NewEncoder(os.Stdout).Encode(sent)
}

// yieldProcessors gives this process the lowest priority, also in relation to other sessions if the
// kernel groups processes by session (see sched(7)).
func yieldProcessors() error {
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, floodNice); err != nil {
		return err
	}
	err := os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(floodNice)), 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.EAGAIN) {
		return nil // no such groups, or another process has changed its group just now
	}
	return err
}

// An impatient client ignores Retry-After, so it repeats a refused request at once.
type impatient struct{ inner http.RoundTripper }

func (i impatient) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := i.inner.RoundTrip(req)
	if err == nil {
		resp.Header.Del("Retry-After")
	}
	return resp, err
}

// openWatches keeps opening watches, and returns how many the servers have accepted after a while.
// A client whose watch is refused tries again.
func openWatches(ctx context.Context, macrack versioned.Interface) int64 {
	var opened atomic.Int64
	for n := range floodWatches {
		open := macrack.RackV1alpha1().MacNodeLeases(flooder).Watch
		if n%2 == 1 {
			open = macrack.InstanceV1alpha1().MacOSInstances(flooder).Watch
		}
		go func() {
			for ctx.Err() == nil {
				w, err := open(ctx, metav1.ListOptions{})
				if err != nil {
					_ = await.Sleep(ctx, time.Second) // as an informer does
					continue
				}
				opened.Add(1)
				for range w.ResultChan() { //nolint:revive // a reader that never falls behind
				}
				opened.Add(-1)
			}
		}()
	}
	_ = await.Sleep(ctx, openFor)
	return opened.Load()
}

func floodRequests(macrack versioned.Interface, kube kubernetes.Interface) []request {
	leases, instances := macrack.RackV1alpha1().MacNodeLeases(flooder), macrack.InstanceV1alpha1().MacOSInstances(flooder)
	lease := func(name string) *rackv1alpha1.MacNodeLease {
		return &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: "studio"}}
	}
	return []request{
		{"creates and deletes", func(ctx context.Context, client, n int) error {
			name := "flood-" + strconv.Itoa(client) + "-" + strconv.Itoa(n)
			if _, err := leases.Create(ctx, lease(name), metav1.CreateOptions{}); err != nil {
				return err
			}
			return leases.Delete(ctx, name, metav1.DeleteOptions{})
		}},
		{"dry runs", func(ctx context.Context, _, n int) error {
			_, err := leases.Create(ctx, lease("dry-"+strconv.Itoa(n)), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}},
		{"refused instances", func(ctx context.Context, _, n int) error {
			_, err := instances.Create(ctx, &instancev1alpha1.MacOSInstance{
				ObjectMeta: metav1.ObjectMeta{Name: "flood-" + strconv.Itoa(n)},
				Spec:       instancev1alpha1.MacOSInstanceSpec{LeaseName: "absent", ClassName: "small", ImageName: imageName},
			}, metav1.CreateOptions{})
			return err
		}},
		{"requests for the other tenant's leases", func(ctx context.Context, _, n int) error {
			_, err := macrack.RackV1alpha1().MacNodeLeases(victim).Get(ctx, "flood-"+strconv.Itoa(n), metav1.GetOptions{})
			return err
		}},
		{"lists of leases", func(ctx context.Context, _, _ int) error {
			_, err := leases.List(ctx, metav1.ListOptions{})
			return err
		}},
		{"lists of images and classes", func(ctx context.Context, _, n int) error {
			if n%2 == 0 {
				_, err := macrack.ImageV1alpha1().MacOSImages().List(ctx, metav1.ListOptions{})
				return err
			}
			_, err := macrack.RackV1alpha1().MacNodeClasses().List(ctx, metav1.ListOptions{})
			return err
		}},
		{"lists of records", func(ctx context.Context, _, _ int) error {
			_, err := macrack.RackV1alpha1().AuditRecords(flooder).List(ctx, metav1.ListOptions{})
			return err
		}},
		{"lists of pods", func(ctx context.Context, _, _ int) error {
			_, err := kube.CoreV1().Pods(flooder).List(ctx, metav1.ListOptions{})
			return err
		}},
		{"patches of a pod", func(ctx context.Context, _, n int) error {
			_, err := kube.CoreV1().Pods(flooder).Patch(ctx, "absent", types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"example.com/flood":"`+strconv.Itoa(n)+`"}}}`), metav1.PatchOptions{})
			return err
		}},
	}
}
