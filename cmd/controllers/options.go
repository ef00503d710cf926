package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	componentbaseconfig "k8s.io/component-base/config"
	componentbaseoptions "k8s.io/component-base/config/options"

	"macrack.io/macrack/pkg/apiclient"
	"macrack.io/macrack/pkg/controllers"
)

const namespace = "macrack-system"

// options are the flags of the command.
type options struct {
	kubeconfig        string
	macrackKubeconfig string
	bindAddress       string
	workers           int
	qps               float32
	burst             int
	leaderElection    componentbaseconfig.LeaderElectionConfiguration
}

func newOptions() *options {
	return &options{
		bindAddress: "127.0.0.1:10270",
		workers:     controllers.DefaultWorkers,
		// The API servers' priority and fairness protects them, and not these limits: a burst of a
		// thousand instances needs thousands of requests.
		qps:   1000,
		burst: 2000,
		// A server that does not answer for 10 seconds costs no leadership, and another process
		// takes over within 15 seconds after the leader was killed.
		leaderElection: componentbaseconfig.LeaderElectionConfiguration{
			LeaderElect:       true,
			LeaseDuration:     metav1.Duration{Duration: 13 * time.Second},
			RenewDeadline:     metav1.Duration{Duration: 12 * time.Second},
			RetryPeriod:       metav1.Duration{Duration: 500 * time.Millisecond},
			ResourceLock:      resourcelock.LeasesResourceLock,
			ResourceName:      controllers.Name,
			ResourceNamespace: namespace,
		},
	}
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "The kubeconfig of the cluster. If empty, the pod's service account is used.")
	fs.StringVar(&o.macrackKubeconfig, "macrack-kubeconfig", o.macrackKubeconfig, "The kubeconfig for direct connections to macrack-apiserver. If empty, requests go through kube-apiserver.")
	fs.StringVar(&o.bindAddress, "metrics-bind-address", o.bindAddress, "The host:port that serves /healthz, /readyz and /metrics over HTTP. If empty, they are not served.")
	fs.IntVar(&o.workers, "workers", o.workers, "Number of objects of one kind that are reconciled in parallel.")
	fs.Float32Var(&o.qps, "kube-api-qps", o.qps, "Requests per second to each API server.")
	fs.IntVar(&o.burst, "kube-api-burst", o.burst, "Burst of requests to each API server above --kube-api-qps.")
	componentbaseoptions.BindLeaderElectionFlags(&o.leaderElection, fs)
}

// validate returns an error if the flags are invalid.
func (o *options) validate() error {
	var errs []error
	if o.bindAddress != "" {
		if _, _, err := net.SplitHostPort(o.bindAddress); err != nil {
			errs = append(errs, fmt.Errorf("--metrics-bind-address must be host:port: %w", err))
		}
	}
	if o.workers < 1 {
		errs = append(errs, fmt.Errorf("--workers must be 1 or more, not %d", o.workers))
	}
	if o.qps <= 0 || o.burst < 1 {
		errs = append(errs, fmt.Errorf("--kube-api-qps and --kube-api-burst must be more than 0, not %g and %d", o.qps, o.burst))
	}
	if l := o.leaderElection; l.LeaderElect {
		if l.ResourceLock != resourcelock.LeasesResourceLock {
			errs = append(errs, fmt.Errorf("--leader-elect-resource-lock must be %s, not %q", resourcelock.LeasesResourceLock, l.ResourceLock))
		}
		if l.ResourceName == "" || l.ResourceNamespace == "" {
			errs = append(errs, errors.New("--leader-elect-resource-name and --leader-elect-resource-namespace must not be empty"))
		}
		if l.RetryPeriod.Duration <= 0 || l.RenewDeadline.Duration <= l.RetryPeriod.Duration || l.LeaseDuration.Duration <= l.RenewDeadline.Duration {
			errs = append(errs, fmt.Errorf("--leader-elect-lease-duration (%s) must be longer than --leader-elect-renew-deadline (%s), and that longer than --leader-elect-retry-period (%s)",
				l.LeaseDuration.Duration, l.RenewDeadline.Duration, l.RetryPeriod.Duration))
		}
	}
	return utilerrors.NewAggregate(errs)
}

// configs returns the client configurations of the two API servers. Both use protobuf.
func (o *options) configs() (core, macrack *rest.Config, err error) {
	core, err = o.config(o.kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	macrack = rest.CopyConfig(core)
	if o.macrackKubeconfig != "" {
		if macrack, err = o.config(o.macrackKubeconfig); err != nil {
			return nil, nil, err
		}
	}
	return core, macrack, nil
}

func (o *options) config(kubeconfig string) (*rest.Config, error) {
	config, err := readKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config = apiclient.Protobuf(config)
	config.QPS, config.Burst = o.qps, o.burst
	return rest.AddUserAgent(apiclient.BoundRequests(config, apiclient.RequestTimeout), controllers.Name), nil
}

// readKubeconfig reads a kubeconfig, or the service account of the pod if file is empty.
func readKubeconfig(file string) (*rest.Config, error) {
	if file == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			err = errors.New("no kubeconfig, and this process is not in a pod; use --kubeconfig FILE")
		}
		return config, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig %q: %w", file, err)
	}
	return config, nil
}
