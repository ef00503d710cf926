package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/controllers"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

var (
	errLeadershipLost = errors.New("leadership lost to another process; restart to wait for it")
	errElectionEnded  = errors.New("the leader election ended unexpectedly")
)

// run runs the controllers while this process leads, until ctx is done.
func run(ctx context.Context, o *options) error {
	core, macrack, err := o.configs()
	if err != nil {
		return err
	}
	manager, err := newManager(o, core, macrack)
	if err != nil {
		return err
	}
	legacyregistry.CustomMustRegister(manager.Metrics())
	h := &health{manager: manager}
	if o.leaderElection.LeaderElect {
		h.leader = leaderelection.NewLeaderHealthzAdaptor(20 * time.Second)
	}
	if o.bindAddress != "" {
		stop, err := serve(ctx, o.bindAddress, h)
		if err != nil {
			return err
		}
		defer stop()
	}
	if !o.leaderElection.LeaderElect {
		return manager.Run(ctx, controllers.Alone)
	}
	return manager.Run(ctx, func(ctx context.Context, work func(context.Context) error) error {
		return lead(ctx, o, core, h, work)
	})
}

func newManager(o *options, core, macrack *rest.Config) (*controllers.Manager, error) {
	coreClient, err := kubernetes.NewForConfig(core)
	if err != nil {
		return nil, err
	}
	// Events get their own client, and with it their own rate limit.
	eventsClient, err := kubernetes.NewForConfig(rest.AddUserAgent(rest.CopyConfig(core), "events"))
	if err != nil {
		return nil, err
	}
	macrackClient, err := versioned.NewForConfig(macrack)
	if err != nil {
		return nil, err
	}
	return controllers.New(controllers.Config{MacRack: macrackClient, Core: coreClient, Events: eventsClient.CoreV1(), Workers: o.workers})
}

// lead waits for the leadership and calls work while it leads. It releases the leadership only
// after work has returned, so that two processes never work at the same time. If the leadership is
// lost, lead fails: the process must restart without its cached state.
func lead(ctx context.Context, o *options, core *rest.Config, h *health, work func(context.Context) error) error {
	config := rest.AddUserAgent(rest.CopyConfig(core), "leader-election")
	config.Timeout = o.leaderElection.RenewDeadline.Duration / 2
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	lock, err := resourcelock.New(o.leaderElection.ResourceLock, o.leaderElection.ResourceNamespace, o.leaderElection.ResourceName,
		client.CoreV1(), client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("%s_%s", host, uuid.NewUUID())})
	if err != nil {
		return err
	}
	return elect(ctx, o, lock, h, work)
}

func elect(ctx context.Context, o *options, lock resourcelock.Interface, h *health, work func(context.Context) error) error {
	// The election continues while work returns.
	electing, endElection := context.WithCancel(context.WithoutCancel(ctx))
	defer endElection()
	result := make(chan error, 1)
	var working atomic.Bool
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: o.leaderElection.LeaseDuration.Duration,
		RenewDeadline: o.leaderElection.RenewDeadline.Duration,
		RetryPeriod:   o.leaderElection.RetryPeriod.Duration,
		WatchDog:      h.leader,
		// The elector would release the leadership before it cancels the work.
		ReleaseOnCancel: false,
		Name:            controllers.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				working.Store(true)
				workCtx, stop := context.WithCancel(leading)
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				err := work(workCtx)
				if leading.Err() != nil && ctx.Err() == nil {
					err = errors.Join(errLeadershipLost, err)
				}
				result <- err
				endElection()
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				klog.FromContext(ctx).Info("Leader elected", "leader", identity, "self", identity == lock.Identity())
			},
		},
	})
	if err != nil {
		return err
	}
	if h.leader != nil {
		h.leader.SetLeaderElection(elector)
	}
	defer context.AfterFunc(ctx, func() {
		if !working.Load() {
			endElection()
		}
	})()
	elector.Run(electing)
	if !working.Load() {
		if ctx.Err() == nil {
			return errElectionEnded
		}
		return nil
	}
	err = <-result
	releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.leaderElection.RenewDeadline.Duration)
	defer cancel()
	if err := release(releasing, lock); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to release the leadership; it expires by itself")
	}
	return err
}

// release gives up the leadership of this process, so that another process need not wait until its
// lease expires.
func release(ctx context.Context, lock resourcelock.Interface) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		record, _, err := lock.Get(ctx)
		if err != nil || record.HolderIdentity != lock.Identity() {
			return err
		}
		now := metav1.Now()
		return lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaseDurationSeconds: 1, // 0 is not valid
			AcquireTime:          now,
			RenewTime:            now,
			LeaderTransitions:    record.LeaderTransitions,
		})
	})
}

// health answers the probes.
type health struct {
	manager interface{ Synced() bool }
	leader  *leaderelection.HealthzAdaptor
}

// ready fails until the caches are synced. A process that waits for the leadership is ready.
func (h *health) ready(*http.Request) error {
	if !h.manager.Synced() {
		return errors.New("the caches of the controllers are not synced yet")
	}
	return nil
}

// handler serves /healthz, /livez, /readyz and /metrics.
func (h *health) handler() http.Handler {
	mux := http.NewServeMux()
	alive := []healthz.HealthChecker{healthz.PingHealthz}
	if h.leader != nil {
		alive = append(alive, h.leader)
	}
	healthz.InstallHandler(mux, alive...)
	healthz.InstallLivezHandler(mux, alive...)
	healthz.InstallReadyzHandler(mux, append(alive, healthz.NamedCheck("controllers", h.ready))...)
	mux.Handle("/metrics", legacyregistry.Handler())
	return mux
}

// serve listens at address and returns a function that stops it.
func serve(ctx context.Context, address string, h *health) (stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--metrics-bind-address: %w", err)
	}
	server := &http.Server{Handler: h.handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "Failed to serve probes and metrics")
		}
	}()
	klog.FromContext(ctx).Info("Serving probes and metrics", "address", listener.Addr().String())
	return func() { _ = server.Close() }, nil
}
