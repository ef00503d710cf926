package testbed

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/rest"

	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/test/cluster"
)

// APIServer is a macrack-apiserver inside this program.
type APIServer struct {
	// Address is its address: 127.0.0.1:port.
	Address string

	tb     *Testbed
	cancel context.CancelFunc
	ended  chan struct{}
}

// StartAPIServer starts a macrack-apiserver on listener, with its objects in etcd. It delegates
// authentication and authorization to kube-apiserver, and uses the testbed's clock. It does not
// wait until it serves.
func (tb *Testbed) StartAPIServer(listener net.Listener, etcd cluster.EtcdAccess) (*APIServer, error) {
	kubeconfig, err := tb.Cluster.APIServerKubeconfig()
	if err != nil {
		return nil, err
	}
	o := apiserver.NewOptions()
	o.Clock = tb.Clock
	o.ShutdownDelay = 0 // no balancer
	o.UserQPS = 0       // tests send requests without pause
	r := o.Recommended
	address := listener.Addr().(*net.TCPAddr)
	r.SecureServing.Listener = listener
	r.SecureServing.BindAddress, r.SecureServing.BindPort = address.IP, address.Port
	cert := &r.SecureServing.ServerCert.CertKey
	cert.CertFile, cert.KeyFile = tb.Cluster.ServingFiles()
	r.Etcd.StorageConfig.Transport = storagebackend.TransportConfig{
		ServerList: etcd.Servers, TrustedCAFile: etcd.CAFile, CertFile: etcd.CertFile, KeyFile: etcd.KeyFile,
	}
	r.Authentication.RemoteKubeConfigFile = kubeconfig
	r.Authorization.RemoteKubeConfigFile = kubeconfig
	r.CoreAPI.CoreAPIKubeconfigPath = kubeconfig
	if err := o.Validate(); err != nil {
		return nil, err
	}
	config, err := o.Config()
	if err != nil {
		return nil, err
	}
	server, err := config.New()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &APIServer{Address: listener.Addr().String(), tb: tb, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		if err := server.Generic.PrepareRun().RunWithContext(ctx); err != nil && ctx.Err() == nil {
			tb.failed(fmt.Errorf("macrack-apiserver has ended: %w", err))
		}
	}()
	return s, nil
}

// Stop stops the server and waits for its end.
func (s *APIServer) Stop() {
	s.cancel()
	<-s.ended
}

// RESTConfig returns a client configuration for this server, as a user with a certificate of the
// cluster.
func (s *APIServer) RESTConfig(user string) (*rest.Config, error) {
	config, err := s.tb.RESTConfig("direct")
	if user != cluster.Admin {
		config, err = s.tb.RESTConfig("direct-" + user)
	}
	if err != nil {
		return nil, err
	}
	config.Host = "https://" + s.Address
	return config, nil
}

// Ready returns the answer of /readyz?verbose.
func (s *APIServer) Ready(ctx context.Context) (status int, body string, err error) {
	config, err := s.RESTConfig(cluster.Admin)
	if err != nil {
		return 0, "", err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return 0, "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz?verbose", nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(answer), err
}
