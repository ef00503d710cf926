package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"macrack.io/macrack/pkg/apiclient"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	"macrack.io/macrack/pkg/generated/informers/externalversions"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/cluster/await"
	"macrack.io/macrack/test/cluster/kubeconfig"
	"macrack.io/macrack/test/cluster/process"
)

// agentsCommand starts this program as many light agents. It prints the line started.
const agentsCommand = "agents"

// agentsPerSecond limits how many light agents connect in a second. Each makes a connection with
// TLS and three watches, in two servers on this machine.
const agentsPerSecond = 20

// nodeStatusInterval is that of an agent.
const nodeStatusInterval = 5 * time.Minute

// startAgents starts the light agents of Macs in a process.
func (s *scale) startAgents(ctx context.Context, from, to int) (*process.Child, error) {
	kube := filepath.Join(s.dir, "scale-kube")
	if err := os.MkdirAll(kube, 0o700); err != nil {
		return nil, err
	}
	for n := from; n < to; n++ {
		path, err := s.cluster.Kubeconfig("system:node:" + fleetMac(n))
		if err != nil {
			return nil, err
		}
		if err := os.Symlink(path, filepath.Join(kube, fleetMac(n))); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	p := &process.Child{
		Name: fmt.Sprintf("the light agents from %d on", from), Prints: started,
		Args: []string{agentsCommand, "-kube", kube, "-from", fmt.Sprint(from), "-to", fmt.Sprint(to)},
	}
	return p, p.Start()
}

// runAgents runs light agents until it is terminated. A light agent sends the requests of an idle
// agent over its own connection, and does nothing with the answers: it watches the same objects,
// renews the Lease of its Node and looks for images at the intervals that the fleet requires, and
// reports the status of its Node.
func runAgents(args []string) error {
	flags := flag.NewFlagSet(agentsCommand, flag.ContinueOnError)
	kube := flags.String("kube", "", "folder of the kubeconfigs")
	from, to := flags.Int("from", 0, "the first Mac"), flags.Int("to", 0, "the Mac after the last")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var times intervals
	if err := times.follow(ctx, filepath.Join(*kube, fleetMac(*from))); err != nil {
		return err
	}
	fmt.Println(started)
	ticker := time.NewTicker(time.Second / agentsPerSecond)
	defer ticker.Stop()
	for n := *from; n < *to; n++ {
		a, err := newLightAgent(filepath.Join(*kube, fleetMac(n)), fleetMac(n), &times)
		if err != nil {
			return err
		}
		a.start(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
	<-ctx.Done()
	return nil
}

// intervals are those of an agent.
type intervals struct{ heartbeats, images atomic.Int64 }

// follow keeps the intervals at those of the RackConfig.
func (i *intervals) follow(ctx context.Context, path string) error {
	clients, err := kubeconfig.Load(path)
	if err != nil {
		return err
	}
	see := func(obj any) {
		if config, ok := obj.(*configv1alpha1.RackConfig); ok {
			heartbeats, fleet := config.Heartbeats(), config.Status.HeartbeatInterval.Value()
			i.heartbeats.Store(int64(heartbeats.AgentInterval(fleet)))
			i.images.Store(int64(heartbeats.ImageCheckInterval(fleet)))
		}
	}
	informer := externalversions.NewSharedInformerFactory(clients.MacRack, 0).Config().V1alpha1().RackConfigs().Informer()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }})
	if err != nil {
		return err
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return ctx.Err()
	}
	if i.heartbeats.Load() == 0 {
		return errors.New("the cluster has no RackConfig")
	}
	return nil
}

type lightAgent struct {
	name, host string
	http       *http.Client
	leases     coordinationclient.LeaseInterface
	*intervals
	last *coordinationv1.Lease
}

func newLightAgent(path, name string, times *intervals) (*lightAgent, error) {
	config, err := kubeconfig.Config(path, "")
	if err != nil {
		return nil, err
	}
	config = apiclient.Protobuf(config)
	config.QPS = -1
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tls, ForceAttemptHTTP2: true, DisableCompression: true}}
	config.TLSClientConfig = rest.TLSClientConfig{}
	coordination, err := coordinationclient.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	return &lightAgent{name: name, host: config.Host, http: client, leases: coordination.Leases(corev1.NamespaceNodeLease), intervals: times}, nil
}

func (a *lightAgent) start(ctx context.Context) {
	for _, path := range []string{
		"/apis/config.macrack.io/v1alpha1/rackconfigs?",
		"/apis/rack.macrack.io/v1alpha1/macnodes?fieldSelector=" + url.QueryEscape("metadata.name="+a.name),
		"/apis/instance.macrack.io/v1alpha1/macosinstances?fieldSelector=" + url.QueryEscape("status.nodeName="+a.name),
		"/api/v1/pods?fieldSelector=" + url.QueryEscape("spec.nodeName="+a.name),
		"/api/v1/nodes?fieldSelector=" + url.QueryEscape("metadata.name="+a.name),
	} {
		go a.repeat(ctx, "watch "+path, func() time.Duration { return 0 }, func() error { return a.watch(ctx, path) })
	}
	interval := func() time.Duration { return time.Duration(a.heartbeats.Load()) }
	go a.repeat(ctx, "heartbeat", interval, func() error { return a.renew(ctx) })
	images := func() time.Duration { return time.Duration(a.images.Load()) }
	go a.repeat(ctx, "images", images, func() error {
		query := "fieldSelector=" + url.QueryEscape("status.phase=Pending") + "&resourceVersion=0"
		return a.do(ctx, http.MethodGet, "/apis/image.macrack.io/v1alpha1/macosimages?"+query, "", discard)
	})
	go func() {
		if await.Sleep(ctx, time.Duration(rand.Int64N(int64(nodeStatusInterval)))) == nil {
			a.repeat(ctx, "status of the Node", func() time.Duration { return nodeStatusInterval }, func() error { return a.reportNode(ctx) })
		}
	}()
}

// repeat calls do at an interval, and two seconds after a failure.
func (a *lightAgent) repeat(ctx context.Context, what string, interval func() time.Duration, do func() error) {
	for ctx.Err() == nil {
		pause := interval()
		if err := do(); err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "light agent %s: %s: %v\n", a.name, what, err)
			pause = 2 * time.Second
		}
		_ = await.Sleep(ctx, pause)
	}
}

// watch reads a watch until the server ends it, after five to ten minutes as for a reflector.
func (a *lightAgent) watch(ctx context.Context, path string) error {
	query := fmt.Sprintf("&watch=1&allowWatchBookmarks=true&resourceVersion=0&timeoutSeconds=%d", 300+rand.IntN(300))
	return a.do(ctx, http.MethodGet, path+query, "", discard)
}

func discard(body io.Reader) error {
	_, err := io.Copy(io.Discard, body)
	return err
}

func (a *lightAgent) do(ctx context.Context, method, path, body string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, method, a.host+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Accept", acceptProtobuf)
	if strings.Contains(path, "watch=1") {
		req.Header.Set("Accept", acceptProtobuf+";stream=watch")
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return read(resp.Body)
}

// renew renews the Lease, as an agent does.
func (a *lightAgent) renew(ctx context.Context) error {
	seconds := int32(rules.LeaseDuration(time.Duration(a.heartbeats.Load())) / time.Second)
	now := &metav1.MicroTime{Time: time.Now()}
	if a.last == nil {
		lease, err := a.leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: a.name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &a.name, LeaseDurationSeconds: &seconds, RenewTime: now},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			lease, err = a.leases.Get(ctx, a.name, metav1.GetOptions{})
		}
		if err != nil {
			return err
		}
		a.last = lease
		return nil
	}
	next := a.last.DeepCopy()
	next.Spec.LeaseDurationSeconds, next.Spec.RenewTime = &seconds, now
	written, err := a.leases.Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			a.last = nil
		}
		return err
	}
	a.last = written
	return nil
}

// reportNode reads the Node and writes the time into its status, as the library of an agent does.
func (a *lightAgent) reportNode(ctx context.Context) error {
	if err := a.do(ctx, http.MethodGet, "/api/v1/nodes/"+a.name, "", discard); err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
	return a.do(ctx, http.MethodPatch, "/api/v1/nodes/"+a.name+"/status", patch, discard)
}
