// Package kubeconfig writes kubeconfigs, and makes clients of them.
package kubeconfig

import (
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/test/cluster/pki"
	"macrack.io/macrack/test/cluster/process"
)

// Context is an entry of a kubeconfig: a user of a server.
type Context struct {
	Name, Namespace string
	Server          string
	User            string
	// CA and Cert are the names of certificates.
	CA, Cert string
}

// Add adds contexts, with certificates from a folder.
func Add(config *clientcmdapi.Config, certs pki.Dir, contexts ...Context) error {
	for _, c := range contexts {
		ca, err := os.ReadFile(certs.CertFile(c.CA))
		if err != nil {
			return err
		}
		cert, err := os.ReadFile(certs.CertFile(c.Cert))
		if err != nil {
			return err
		}
		key, err := os.ReadFile(certs.KeyFile(c.Cert))
		if err != nil {
			return err
		}
		config.Clusters[c.CA] = &clientcmdapi.Cluster{Server: c.Server, CertificateAuthorityData: ca}
		config.AuthInfos[c.User] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
		config.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.CA, AuthInfo: c.User, Namespace: c.Namespace}
	}
	return nil
}

// Write writes a kubeconfig. It does not rewrite an unchanged file, because components read these
// files at any time.
func Write(path string, config *clientcmdapi.Config) error {
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(path); err == nil && string(have) == string(data) {
		return nil
	}
	return process.WriteFile(path, data, 0o600)
}

// Redirect writes a copy of a kubeconfig with another server.
func Redirect(from, to string, server func(server string) string) error {
	config, err := clientcmd.LoadFromFile(from)
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = server(cluster.Server)
	}
	return Write(to, config)
}

// Config returns a client configuration, without a limit on requests, of a context of a kubeconfig;
// of the current context if the name is empty.
func Config(path, context string) (*rest.Config, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// Clients are the clients of a user.
type Clients struct {
	Kube    *kubernetes.Clientset
	MacRack *versioned.Clientset
	Config  *rest.Config
}

// ClientsOf returns the clients of a configuration.
func ClientsOf(config *rest.Config) (c Clients, err error) {
	c.Config = config
	if c.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return c, err
	}
	c.MacRack, err = versioned.NewForConfig(config)
	return c, err
}

// Load returns the clients of the current context of a kubeconfig.
func Load(path string) (Clients, error) {
	config, err := Config(path, "")
	if err != nil {
		return Clients{}, err
	}
	return ClientsOf(config)
}
