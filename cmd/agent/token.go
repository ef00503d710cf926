package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/credentials"
	"macrack.io/macrack/pkg/apiclient"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

// maxTokenTTL bounds the validity of a forgotten token.
const maxTokenTTL = 24 * time.Hour

type tokenOptions struct {
	kubeconfig  string
	context     string
	server      string
	ttl         time.Duration
	joinCommand bool
	clock       clock.PassiveClock
	out         io.Writer
	errOut      io.Writer
}

func newTokenCommand() *cobra.Command {
	o := &tokenOptions{ttl: time.Hour, clock: clock.RealClock{}}
	create := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a bootstrap token that joins the Mac of this name once",
		Long: `Create creates a bootstrap token for a registered Mac (a MacNode) and prints it. It is for administrators: it requires
permission to read MacNodes and to create Secrets in kube-system. The token is a Secret of type
bootstrap.kubernetes.io/token with auth-extra-groups system:bootstrappers:macrack,system:bootstrappers:macrack:NAME
(dots in NAME become colons), which can also be created without this command.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.out, o.errOut = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return o.create(cmd.Context(), args[0])
		},
	}
	flags := create.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "Kubeconfig of an administrator. Default: that of kubectl.")
	flags.StringVar(&o.context, "context", o.context, "Context of the kubeconfig. Default: the current one.")
	flags.StringVar(&o.server, "server", o.server, "With --print-join-command: address of kube-apiserver for the Mac. Default: that of the kubeconfig.")
	flags.DurationVar(&o.ttl, "ttl", o.ttl, "Validity of the token, at most 24h.")
	flags.BoolVar(&o.joinCommand, "print-join-command", o.joinCommand, "Print the join command for the Mac instead of the token.")
	cmd := &cobra.Command{Use: "token", Short: "Manage bootstrap tokens (for administrators)"}
	cmd.AddCommand(create)
	return cmd
}

func (o *tokenOptions) create(ctx context.Context, name string) error {
	if o.ttl <= 0 || o.ttl > maxTokenTTL {
		return fmt.Errorf("invalid --ttl %s; use more than 0 and at most %s", o.ttl, maxTokenTTL)
	}
	config, err := apiclient.Kubeconfig(o.kubeconfig, o.context)
	if err != nil {
		return err
	}
	config = apiclient.Protobuf(config)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	macrack, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	mac, err := macrack.RackV1alpha1().MacNodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("MacNode %q does not exist; register the Mac first, with its name, serial number and class: %w", name, err)
	}
	if err != nil {
		return err
	}
	if meta.IsStatusConditionTrue(mac.Status.Conditions, rackv1alpha1.MacNodeReady) {
		fmt.Fprintf(o.errOut, "Warning: the agent of Mac %s is online. The token works only after it has gone offline.\n", name)
	}
	var hashes []string
	if o.joinCommand {
		if hashes, err = credentials.Hashes(config); err != nil {
			return fmt.Errorf("hash of the cluster's CA: %w", err)
		}
		if o.server == "" {
			o.server = config.Host
		}
		if !strings.HasPrefix(o.server, "https://") {
			return errors.New("invalid --server; use https://host:port")
		}
		if isLoopback(o.server) {
			fmt.Fprintf(o.errOut, "Warning: no other machine can reach %s. If the Mac is another machine, use --server with an address of kube-apiserver that the Mac can reach.\n", o.server)
		}
	}
	token, err := credentials.CreateToken(ctx, kube, name, o.clock.Now().Add(o.ttl))
	if err != nil {
		return err
	}
	if !o.joinCommand {
		fmt.Fprintln(o.out, token.Bearer())
		return nil
	}
	fmt.Fprintf(o.out, "macrack-agent join --server %s --node-name %s", o.server, name)
	for _, hash := range hashes {
		fmt.Fprintf(o.out, " --ca-cert-hash %s", hash)
	}
	fmt.Fprintf(o.out, " --token-file - <<<%s\n", token.Bearer())
	return nil
}

// isLoopback reports whether only this machine can reach a server.
func isLoopback(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	if u.Hostname() == "localhost" || strings.HasSuffix(u.Hostname(), ".localhost") {
		return true
	}
	address, err := netip.ParseAddr(u.Hostname())
	return err == nil && (address.IsLoopback() || address.IsUnspecified())
}
