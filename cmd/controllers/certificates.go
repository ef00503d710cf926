package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apiclient"
	"macrack.io/macrack/pkg/certissuer"
)

type certificateOptions struct {
	kubeconfig string
	issue      []string
	interval   time.Duration
}

// newCertificatesCommand returns the command of a Deployment of its own: the controllers have no
// access to the keys.
func newCertificatesCommand() *cobra.Command {
	o := &certificateOptions{interval: time.Minute}
	for _, name := range certissuer.Certificates() {
		o.issue = append(o.issue, string(name))
	}
	cmd := &cobra.Command{
		Use:   "certificates",
		Short: "Issue and renew the certificates of macrack-apiserver and etcd",
		Long: `Certificates makes the authorities, the certificates of macrack-apiserver and of its etcd, renews them before they
expire, and copies the authority of macrack-apiserver to spec.caBundle of the APIServices. With --issue=, it only does
the last, for certificates that another program makes, such as cert-manager.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(*cobra.Command, []string) error {
			issuer, err := o.issuer()
			if err != nil {
				return err
			}
			return issuer.Run(genericapiserver.SetupSignalContext())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "The kubeconfig of the cluster. If empty, the pod's service account is used.")
	flags.StringSliceVar(&o.issue, "issue", o.issue, "The certificates to issue: serving, etcd, or none.")
	flags.DurationVar(&o.interval, "interval", o.interval, "Time between two checks.")
	return cmd
}

func (o *certificateOptions) issuer() (*certissuer.Issuer, error) {
	if o.interval < time.Second {
		return nil, fmt.Errorf("--interval must be 1s or more, not %s", o.interval)
	}
	var issue []certissuer.Issue
	for _, name := range o.issue {
		if !slices.Contains(certissuer.Certificates(), certissuer.Issue(name)) {
			return nil, fmt.Errorf("invalid --issue %q; use %v", name, certissuer.Certificates())
		}
		issue = append(issue, certissuer.Issue(name))
	}
	config, err := readKubeconfig(o.kubeconfig)
	if err != nil {
		return nil, err
	}
	config = rest.AddUserAgent(apiclient.BoundRequests(config, apiclient.RequestTimeout), certissuer.Name)
	client, err := kubernetes.NewForConfig(apiclient.Protobuf(config))
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &certissuer.Issuer{
		Secrets:     client.CoreV1().Secrets(namespace),
		APIServices: objects.Resource(certissuer.APIServiceResource),
		Namespace:   namespace,
		Issue:       issue,
		Clock:       clock.RealClock{},
		Interval:    o.interval,
	}, nil
}
