package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/generated/clientset/versioned/scheme"

	"macrack.io/macrack/runners/pkg/config"
	"macrack.io/macrack/runners/pkg/github"
	"macrack.io/macrack/runners/pkg/gitlab"
	"macrack.io/macrack/runners/pkg/guest"
	"macrack.io/macrack/runners/pkg/metrics"
	"macrack.io/macrack/runners/pkg/sets"
)

// component is the name of the leadership Lease and of the source of events.
const component = "macrack-runners"

// A release sets version and commit with -ldflags "-X main.version=v1.2.3".
var version, commit = "v0.1.0", "unknown"

// election are the times of the election of a leader.
type election struct {
	lease, renew, retry time.Duration
}

var defaultElection = election{lease: 15 * time.Second, renew: 10 * time.Second, retry: 2 * time.Second}

var errLeadershipLost = errors.New("leadership lost to another process; restart to wait for it")

// cluster is the access to the cluster and the namespace of the tenant.
type cluster struct {
	kubeconfig, namespace string

	config  *rest.Config
	core    kubernetes.Interface
	macrack versioned.Interface
}

// connect reads the kubeconfig, or the service account of the pod.
func (c *cluster) connect() error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	var err error
	if c.config, err = loader.ClientConfig(); err != nil {
		return err
	}
	if c.namespace == "" {
		if c.namespace, _, err = loader.Namespace(); err != nil {
			return err
		}
	}
	c.config.UserAgent = component + "/" + version
	c.config.QPS, c.config.Burst = 20, 100
	if c.core, err = kubernetes.NewForConfig(c.config); err != nil {
		return err
	}
	c.macrack, err = versioned.NewForConfig(c.config)
	return err
}

// runOptions are the flags of the sets.
type runOptions struct {
	cluster
	file        string
	bindAddress string
	election    election
}

// run runs the sets while this process leads, until ctx ends.
func (o *runOptions) run(ctx context.Context) error {
	if _, err := config.Load(o.file); err != nil {
		return err
	}
	if err := o.connect(); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	environment := sets.Environment{
		Namespace: o.namespace, MacRack: o.macrack, Self: sets.Self(o.namespace, component), Metrics: metrics.New(registry), Clock: newClock(ctx),
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: o.core.CoreV1().Events(o.namespace)})
	environment.Events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
	if o.bindAddress != "" {
		stop, err := serve(o.bindAddress, registry)
		if err != nil {
			return err
		}
		defer stop()
	}
	guests, err := guest.New(o.config)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	identity := fmt.Sprintf("%s-%d", host, os.Getpid())
	cache := sets.NewCache(o.macrack, o.namespace)
	environment.Reader = cache
	manager := &sets.Manager{
		Environment: environment, Cache: cache,
		Load: func() (*config.RunnersConfiguration, error) { return config.Load(o.file) },
		Source: func(set *config.Set) sets.Source {
			switch {
			case set.GitHub != nil:
				return github.New(environment, set, o.core.CoreV1().Secrets(o.namespace), guests, identity, version)
			case set.GitLab != nil:
				return gitlab.New(environment, set, o.core)
			}
			return sets.NewScript(set)
		},
	}
	return o.lead(ctx, identity, environment.Metrics, manager.Run)
}

// lead waits for the leadership and runs work while this process leads. It gives the leadership up
// after the end of work.
func (o *runOptions) lead(ctx context.Context, identity string, m *metrics.Metrics, work func(context.Context) error) error {
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	result, began := make(chan error, 1), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: component}, Client: o.core.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: o.election.lease, RenewDeadline: o.election.renew, RetryPeriod: o.election.retry, ReleaseOnCancel: true, Name: component,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				close(began)
				m.Leader.Set(1)
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				context.AfterFunc(leading, cancel)
				result <- work(ctx)
				stop()
			},
			OnStoppedLeading: func() { m.Leader.Set(0) },
		},
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() {
		select {
		case <-began: // work ends the election
		default:
			stop()
		}
	})
	elector.Run(electing)
	select {
	case <-began:
	default:
		return nil
	}
	err = <-result
	if err == nil && ctx.Err() == nil {
		return errLeadershipLost
	}
	return err
}

// serve serves metrics and health.
func serve(address string, registry *prometheus.Registry) (stop func(), err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.ErrorS(err, "Failed to serve metrics")
		}
	}()
	return func() { _ = server.Close() }, nil
}
