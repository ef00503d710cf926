// Package cmdutil has the parts that the commands of kubectl macrack share: clients, flags, output
// and errors.
package cmdutil

import (
	"time"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apiclient"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/plugin/terminal"
)

// An Env is the environment of a command.
type Env struct {
	genericiooptions.IOStreams
	// Flags are kubectl's flags: --namespace, --context and so on.
	Flags *genericclioptions.ConfigFlags
	Clock clock.WithTicker
	// Getenv returns an environment variable.
	Getenv terminal.Getenv
	// Connect returns the clients.
	Connect func() (*Clients, error)
}

// Clients are the clients of the user.
type Clients struct {
	MacRack versioned.Interface
	Kube    kubernetes.Interface
	// Config is for connections to pods.
	Config *rest.Config
	// Namespace is the current namespace. It is Explicit if the user has set --namespace.
	Namespace string
	Explicit  bool
}

// NewEnv returns the environment of a user's command.
func NewEnv(streams genericiooptions.IOStreams, clock clock.WithTicker, getenv terminal.Getenv) *Env {
	env := &Env{IOStreams: streams, Flags: genericclioptions.NewConfigFlags(true), Clock: clock, Getenv: getenv}
	env.Flags.WithWarningPrinter(streams)
	env.Connect = env.connect
	return env
}

// Requests of one command, in a second and at once.
const (
	requestRate  = 20
	requestBurst = 50
)

func (e *Env) connect() (*Clients, error) {
	loader := e.Flags.ToRawKubeConfigLoader()
	raw, err := loader.RawConfig()
	if err != nil {
		return nil, err
	}
	// Without a kubeconfig, the flags would select a server on this machine. Pods have a variable.
	if clientcmdapi.IsConfigEmpty(&raw) && *e.Flags.APIServer == "" && e.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return nil, errNoKubeconfig
	}
	config, err := e.Flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	namespace, explicit, err := loader.Namespace()
	if err != nil {
		return nil, err
	}
	bounded := apiclient.BoundRequests(apiclient.Protobuf(config), apiclient.RequestTimeout)
	bounded.QPS, bounded.Burst = requestRate, requestBurst
	macrack, err := versioned.NewForConfig(bounded)
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(bounded)
	if err != nil {
		return nil, err
	}
	return &Clients{MacRack: macrack, Kube: kube, Config: config, Namespace: namespace, Explicit: explicit}, nil
}

// Style returns the style of the standard output, at this moment.
func (e *Env) Style() terminal.Style { return terminal.StyleOf(e.Out, e.Getenv) }

// Now returns the current time, in full seconds.
func (e *Env) Now() time.Time { return e.Clock.Now().UTC().Truncate(time.Second) }
