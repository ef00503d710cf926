package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/credentials"
	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/apiclient"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

const (
	// defaultStateDir is the state directory of the package of artifacts/macos.
	defaultStateDir = "/usr/local/var/macrack"
	// kubeconfigName and certDirName are names in the state directory.
	kubeconfigName = "kubeconfig"
	certDirName    = "pki"

	maxTokenFile = 4 << 10
)

type joinOptions struct {
	server             string
	token, tokenFile   string
	caCertHashes       []string
	unsafeSkipCA       bool
	nodeName, stateDir string
	timeout            time.Duration

	in    io.Reader
	out   io.Writer
	clock clock.Clock
}

func newJoinCommand() *cobra.Command {
	o := &joinOptions{stateDir: defaultStateDir, timeout: 5 * time.Minute, clock: clock.RealClock{}}
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Make this Mac a node of a cluster",
		Long: `Join finds the cluster, verifies its identity, requests the certificate of this Mac, and writes the agent's kubeconfig.
An administrator registers the Mac (a MacNode) and creates the token: macrack-agent token create NAME --print-join-command.
A token joins one Mac, once. An interrupted join can be repeated; on a Mac that has joined it changes nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer cancel()
			o.in, o.out = cmd.InOrStdin(), cmd.OutOrStdout()
			return o.run(ctx)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.server, "server", o.server, "Address of kube-apiserver, https://host:port. Required.")
	flags.StringVar(&o.token, "token", o.token, "Bootstrap token, abcdef.0123456789abcdef. Other users of this Mac can see it while join runs; --token-file hides it.")
	flags.StringVar(&o.tokenFile, "token-file", o.tokenFile, "File with the bootstrap token; - for standard input.")
	flags.StringSliceVar(&o.caCertHashes, "ca-cert-hash", o.caCertHashes, "Hash of the public key of the cluster's CA, sha256:<hex>. May be repeated.")
	flags.BoolVar(&o.unsafeSkipCA, "discovery-token-unsafe-skip-ca-verification", o.unsafeSkipCA, "Join without --ca-cert-hash. A server that knows the token can then impersonate the cluster.")
	flags.StringVar(&o.nodeName, "node-name", o.nodeName, "Name of the Node and of the MacNode. Default: the host name.")
	flags.StringVar(&o.stateDir, "state-dir", o.stateDir, "The agent's state directory.")
	flags.DurationVar(&o.timeout, "timeout", o.timeout, "How long to wait for the certificate.")
	return cmd
}

// completeNodeName sets a missing name to that under which the Mac joined, or else to the host
// name.
func completeNodeName(name *string, stateDir string) error {
	if *name != "" {
		return nil
	}
	_, node, err := credentials.Read(filepath.Join(stateDir, certDirName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	*name = node
	if *name == "" {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		*name = strings.TrimSuffix(strings.ToLower(host), ".local")
	}
	return nil
}

func (o *joinOptions) run(ctx context.Context) error {
	if o.server == "" {
		return errors.New("--server is required; use the address of kube-apiserver, https://host:port")
	}
	o.server = strings.TrimSuffix(o.server, "/")
	token, err := o.readToken()
	if err != nil {
		return err
	}
	if o.stateDir, err = filepath.Abs(o.stateDir); err != nil {
		return err
	}
	if err := completeNodeName(&o.nodeName, o.stateDir); err != nil {
		return err
	}
	if err := os.MkdirAll(o.stateDir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w; the installer creates %s for the logged-in user", err, defaultStateDir)
	}
	files := credentials.Options{
		NodeName: o.nodeName, Kubeconfig: filepath.Join(o.stateDir, kubeconfigName), CertDir: filepath.Join(o.stateDir, certDirName),
	}
	cert, before, err := credentials.Read(files.CertDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if before != "" && before != o.nodeName {
		return fmt.Errorf("this Mac has joined as %q; to join as %q, first run `macrack-agent uninstall --state-dir %s` and delete the old MacNode", before, o.nodeName, o.stateDir)
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()

	if cert != nil && cert.NotAfter.After(o.clock.Now()) {
		if joined, err := o.joined(ctx, cert, files); joined || err != nil {
			return err
		}
	}
	store, err := credentials.OpenStore(files.CertDir)
	if err != nil {
		return err
	}
	discovery := credentials.Discovery{
		Server: o.server, Token: token, CACertHashes: o.caCertHashes, UnsafeSkipCAVerification: o.unsafeSkipCA, Clock: o.clock,
	}
	if o.unsafeSkipCA && len(o.caCertHashes) == 0 {
		fmt.Fprintln(o.out, "Warning: without --ca-cert-hash, a server that knows the token can impersonate the cluster.")
	}
	server, err := discovery.Discover(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.out, "Cluster at %s verified. Requesting the certificate of %s.\n", o.server, o.nodeName)
	asToken := rest.CopyConfig(server)
	asToken.BearerToken = token.Bearer()
	client, err := kubernetes.NewForConfig(apiclient.Protobuf(asToken))
	if err != nil {
		return err
	}
	mac, err := o.becomeNode(ctx, store, files, server, client)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.out, "This Mac is now Node %s. Its certificate expires %s; the agent renews it before that.\n",
		o.nodeName, store.Certificate().NotAfter.Format(time.RFC3339))
	o.warnOfSerialNumber(mac)
	o.sayWhatNext()
	return nil
}

// becomeNode obtains the certificate, unless the cluster accepts an existing one, and writes the
// kubeconfig.
func (o *joinOptions) becomeNode(ctx context.Context, store *credentials.Store, files credentials.Options, server *rest.Config, client kubernetes.Interface) (*rackv1alpha1.MacNode, error) {
	if store.Valid(o.nodeName) != nil {
		if err := files.WriteKubeconfig(server); err != nil {
			return nil, err
		}
		mac, err := ownMacNode(ctx, files.Kubeconfig, o.nodeName)
		if !apierrors.IsUnauthorized(err) {
			return mac, err
		}
	}
	if err := store.Request(ctx, client, o.nodeName); err != nil {
		return nil, err
	}
	if err := files.WriteKubeconfig(server); err != nil {
		return nil, err
	}
	mac, err := ownMacNode(ctx, files.Kubeconfig, o.nodeName)
	if err != nil {
		return nil, fmt.Errorf("the certificate of this Mac is unusable: %w", err)
	}
	return mac, nil
}

// joined reports whether the Mac has already joined this cluster.
func (o *joinOptions) joined(ctx context.Context, cert *x509.Certificate, files credentials.Options) (bool, error) {
	config, err := clientcmd.BuildConfigFromFlags("", files.Kubeconfig)
	if err != nil {
		return false, nil // interrupted or damaged: the kubeconfig is written again
	}
	if config.Host != o.server {
		return false, fmt.Errorf("this Mac has joined the cluster at %s; to leave it, run `macrack-agent uninstall --state-dir %s`; if only its address has changed, edit %s",
			config.Host, o.stateDir, files.Kubeconfig)
	}
	_, err = ownMacNode(ctx, files.Kubeconfig, o.nodeName)
	switch {
	case apierrors.IsUnauthorized(err):
		return false, nil // the cluster has another CA now
	case err != nil:
		return false, err
	}
	fmt.Fprintf(o.out, "This Mac is already Node %s. Its certificate expires %s.\n", o.nodeName, cert.NotAfter.Format(time.RFC3339))
	o.sayWhatNext()
	return true, nil
}

// ownMacNode reads the Mac's MacNode with the agent's credentials.
func ownMacNode(ctx context.Context, kubeconfig, name string) (*rackv1alpha1.MacNode, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := versioned.NewForConfig(apiclient.Protobuf(config))
	if err != nil {
		return nil, err
	}
	return client.RackV1alpha1().MacNodes().Get(ctx, name, metav1.GetOptions{})
}

func (o *joinOptions) warnOfSerialNumber(mac *rackv1alpha1.MacNode) {
	here, err := host.New(o.stateDir)
	if err != nil {
		return // not a Mac
	}
	info, err := here.Info()
	if err == nil && info.SerialNumber != mac.Spec.SerialNumber {
		fmt.Fprintf(o.out, "Warning: MacNode %s has serial number %s, this Mac has %s. The MacNode will be quarantined (SerialMismatch). Join under the name of this Mac.\n",
			mac.Name, mac.Spec.SerialNumber, info.SerialNumber)
	}
}

// readToken reads the token from its flag, file or standard input.
func (o *joinOptions) readToken() (credentials.Token, error) {
	text := o.token
	switch {
	case o.token != "" && o.tokenFile != "":
		return credentials.Token{}, errors.New("use either --token or --token-file")
	case o.token == "" && o.tokenFile == "":
		return credentials.Token{}, errors.New("--token-file or --token is required; create a token with `macrack-agent token create`")
	case o.tokenFile == "-":
		data, err := io.ReadAll(io.LimitReader(o.in, maxTokenFile))
		if err != nil {
			return credentials.Token{}, err
		}
		text = string(data)
	case o.tokenFile != "":
		file, err := os.Open(o.tokenFile)
		if err != nil {
			return credentials.Token{}, err
		}
		defer file.Close()
		data, err := io.ReadAll(io.LimitReader(file, maxTokenFile))
		if err != nil {
			return credentials.Token{}, err
		}
		text = string(data)
	}
	return credentials.ParseToken(text)
}
