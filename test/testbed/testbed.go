// Package testbed runs macrack inside this program, against a real Kubernetes control plane, with a
// clock that can be put forward: 24 hours pass in a moment. No shipped program can do that.
package testbed

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"macrack.io/macrack/test/cluster/await"
	"macrack.io/macrack/test/cluster/kubeconfig"
	"macrack.io/macrack/test/cluster/process"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/test/cluster"
)

// Options are the parts of a Testbed. The zero value is a control plane in a temporary folder with
// macrack, the example's catalogue and tenants, and its three Macs.
type Options struct {
	// Dir holds the state. Empty: a temporary folder, which Stop removes.
	Dir string
	// Macs is the number of simulated Macs, all of class base, named mac-1, mac-2, ... Default: 3,
	// those of the example.
	Macs int
	// NoAgents leaves the agents of the example's Macs to the caller.
	NoAgents bool
	// GuestAgent makes each guest run the real guest agent, built into .dev/bin, so that commands
	// and startup scripts run.
	GuestAgent bool
	// Progress receives progress messages. Default: standard error.
	Progress io.Writer
}

// Testbed is a running cluster.
type Testbed struct {
	// Cluster is the control plane and macrack's etcd, each component a process.
	Cluster *cluster.Cluster
	// Clock is the clock of all macrack components.
	Clock *Clock
	// Kubeconfig is the path of a kubeconfig with the contexts admin (current), acme and globex,
	// and direct, direct-acme and direct-globex, which reach macrack-apiserver without
	// kube-apiserver.
	Kubeconfig string
	// APIServer is the macrack-apiserver that kube-apiserver forwards to.
	APIServer *APIServer
	// Log is the path of the log of the components inside this program.
	Log string

	guestAgent      bool
	progress        io.Writer
	stop            []func() // in the start order
	stopControllers func()

	mu     sync.Mutex
	err    error         // the first failure of a component
	broken chan struct{} // closed after the first failure
}

// exampleMacs is the number of Macs in artifacts/example.
const exampleMacs = 3

// startTimeout is the time in which the components inside this program must serve.
const startTimeout = 3 * time.Minute

// Start starts a testbed and returns when all Macs can be leased.
func Start(ctx context.Context, opts Options) (*Testbed, error) {
	switch {
	case opts.NoAgents:
		opts.Macs = 0
	case opts.Macs == 0:
		opts.Macs = exampleMacs
	}
	if opts.Progress == nil {
		opts.Progress = os.Stderr
	}
	c, err := cluster.Start(ctx, cluster.Options{Dir: opts.Dir, Direct: true, Progress: opts.Progress})
	if err != nil {
		return nil, err
	}
	tb := &Testbed{Cluster: c, Clock: NewClock(), Log: c.LogFile("testbed"), guestAgent: opts.GuestAgent, progress: opts.Progress, broken: make(chan struct{})}
	if err := tb.start(ctx, opts.Macs); err != nil {
		return nil, errors.Join(err, tb.Stop())
	}
	return tb, nil
}

func (tb *Testbed) start(ctx context.Context, macs int) error {
	if err := tb.logToFile(); err != nil {
		return err
	}
	if err := tb.restoreClock(); err != nil {
		return err
	}
	path, err := tb.Cluster.WriteUserKubeconfig()
	if err != nil {
		return err
	}
	tb.Kubeconfig = path
	port := tb.Cluster.Port("balancer")
	if err := tb.Cluster.AggregateTo(ctx, port, tb.Cluster.ServingCA()); err != nil {
		return err
	}
	fmt.Fprintln(tb.progress, "starting macrack inside this program")
	listener, err := process.Listen(port)
	if err != nil {
		return err
	}
	server, err := tb.StartAPIServer(listener, tb.Cluster.MacrackEtcd())
	if err != nil {
		return err
	}
	tb.APIServer = server
	tb.onStop(server.Stop)
	// A server waits for its watchers. Watchers through kube-apiserver end with this; they keep no
	// state and need not wait.
	tb.onStop(func() {
		if err := tb.Cluster.Kill(context.Background(), "kube-apiserver"); err != nil {
			tb.failed(err)
		}
	})
	if err := tb.Cluster.WaitForAPI(ctx); err != nil {
		return err
	}
	if err := tb.serveRegistry(); err != nil {
		return err
	}
	if err := tb.Cluster.ApplyExample(ctx); err != nil {
		return err
	}
	if err := tb.StartControllers(); err != nil {
		return err
	}
	for n := 1; n <= macs; n++ {
		if err := tb.startMac(ctx, n); err != nil {
			return err
		}
	}
	if err := tb.waitForTenants(ctx); err != nil {
		return err
	}
	return tb.waitForMacs(ctx, macs)
}

// waitForTenants waits until kube-controller-manager has added macrack's roles to the tenants'.
func (tb *Testbed) waitForTenants(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("waited %s", startTimeout))
	defer cancel()
	for _, tenant := range cluster.Tenants {
		client, err := tb.Kubernetes(tenant)
		if err != nil {
			return err
		}
		for _, may := range []authorizationv1.ResourceAttributes{
			{Namespace: tenant, Verb: "create", Group: "rack.macrack.io", Resource: "macnodeleases"},
			{Namespace: tenant, Verb: "get", Group: "rack.macrack.io", Resource: "macnodeleases"},
		} {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &may}}
			err := await.Poll(ctx, func(ctx context.Context) (bool, error) {
				answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
				return err == nil && answer.Status.Allowed, nil
			})
			if err != nil {
				return fmt.Errorf("%s may not %s leases yet: %w", tenant, may.Verb, err)
			}
		}
	}
	return nil
}

// serveRegistry serves the registry for the images of the example.
func (tb *Testbed) serveRegistry() error {
	listener, err := process.Listen(tb.Cluster.Port("registry"))
	if err != nil {
		return err
	}
	tb.run("registry", func(ctx context.Context) error {
		return cluster.ServeRegistry(ctx, listener, filepath.Join(tb.Cluster.Dir(), "registry"))
	})
	return nil
}

// Stop stops all components.
func (tb *Testbed) Stop() error {
	for n := len(tb.stop) - 1; n >= 0; n-- {
		tb.stop[n]()
	}
	tb.stop = nil
	return errors.Join(tb.Cluster.Stop(), tb.Err())
}

func (tb *Testbed) onStop(stop func()) { tb.stop = append(tb.stop, stop) }

// Err returns the first failure of a component inside this program.
func (tb *Testbed) Err() error {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	return tb.err
}

// Failed returns a channel that is closed when a component inside this program ends before Stop.
func (tb *Testbed) Failed() <-chan struct{} { return tb.broken }

func (tb *Testbed) failed(err error) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if tb.err == nil {
		tb.err = err
		close(tb.broken)
	}
}

// run runs f until Stop, or until the returned function is called. The testbed fails if f ends
// before.
func (tb *Testbed) run(name string, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := f(ctx)
		if ctx.Err() == nil {
			tb.failed(fmt.Errorf("%s has ended: %w", name, err))
			klog.ErrorS(err, "Component ended unexpectedly", "component", name)
		}
	}()
	stop = func() {
		cancel()
		<-ended
	}
	tb.onStop(stop)
	return stop
}

// logToFile writes the log of this program, of which there is one, to a file beside those of the
// other components.
func (tb *Testbed) logToFile() error {
	f, err := os.OpenFile(tb.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := errors.Join(flags.Set("logtostderr", "false"), flags.Set("stderrthreshold", "FATAL")); err != nil {
		return err
	}
	// Lines of a higher severity are written to the lower ones too.
	klog.SetOutputBySeverity("INFO", f)
	for _, severity := range []string{"WARNING", "ERROR", "FATAL"} {
		klog.SetOutputBySeverity(severity, io.Discard)
	}
	tb.onStop(func() {
		klog.Flush()
		klog.SetOutput(io.Discard)
		_ = f.Close()
	})
	return nil
}

// Advance puts the clock forward. The Macs were online all the time, so their heartbeats are put
// forward first.
func (tb *Testbed) Advance(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := tb.beatAhead(ctx, d); err != nil {
		klog.ErrorS(err, "Macs may be Offline until their next heartbeat")
	}
	tb.Clock.Advance(d)
	if err := os.WriteFile(tb.offsetFile(), []byte(tb.Clock.Offset().String()), 0o644); err != nil {
		klog.ErrorS(err, "Failed to store the clock; after a restart of the testbed its time may run backwards")
	}
}

func (tb *Testbed) offsetFile() string { return filepath.Join(tb.Cluster.Dir(), "clock-offset") }

// restoreClock restores the clock of a testbed that is started again in its folder.
func (tb *Testbed) restoreClock() error {
	text, err := os.ReadFile(tb.offsetFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	offset, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", tb.offsetFile(), err)
	}
	tb.Clock.Advance(offset)
	return nil
}

func (tb *Testbed) beatAhead(ctx context.Context, d time.Duration) error {
	admin, err := tb.Kubernetes(cluster.Admin)
	if err != nil {
		return err
	}
	heartbeats := admin.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	all, err := heartbeats.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	beats, ctx := errgroup.WithContext(ctx)
	beats.SetLimit(32)
	for _, lease := range all.Items {
		beats.Go(func() error {
			patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, tb.Clock.Now().Add(d).UTC().Format(metav1.RFC3339Micro))
			_, err := heartbeats.Patch(ctx, lease.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		})
	}
	return beats.Wait()
}

// Kubectl runs kubectl in a context of Kubeconfig. The error of a failed command quotes its
// standard error.
func (tb *Testbed) Kubectl(ctx context.Context, context string, args ...string) (stdout, stderr string, err error) {
	return tb.KubectlInput(ctx, "", context, args...)
}

// KubectlInput is Kubectl with a standard input, for -f -.
func (tb *Testbed) KubectlInput(ctx context.Context, input, context string, args ...string) (stdout, stderr string, err error) {
	return tb.Cluster.KubectlWith(ctx, tb.Kubeconfig, input, append([]string{"--context", context}, args...)...)
}

// RESTConfig returns a client configuration of a context of Kubeconfig, without a limit on
// requests.
func (tb *Testbed) RESTConfig(context string) (*rest.Config, error) {
	return kubeconfig.Config(tb.Kubeconfig, context)
}

// Clientset returns a client of macrack's API for a context of Kubeconfig.
func (tb *Testbed) Clientset(context string) (*versioned.Clientset, error) {
	config, err := tb.RESTConfig(context)
	if err != nil {
		return nil, err
	}
	return versioned.NewForConfig(config)
}

// Kubernetes returns a client of Kubernetes for a context of Kubeconfig.
func (tb *Testbed) Kubernetes(context string) (*kubernetes.Clientset, error) {
	config, err := tb.RESTConfig(context)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}
