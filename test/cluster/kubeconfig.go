package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Tenants are the users of artifacts/example, each with rights in the namespace of the same name.
var Tenants = []string{"acme", "globex"}

// Kubeconfig returns the path of a kubeconfig for kube-apiserver with a client certificate of the
// user, and creates it if necessary. Groups that follow from the name (system:masters for admin,
// those of service accounts and nodes) are added.
func (c *Cluster) Kubeconfig(user string, groups ...string) (string, error) {
	return c.kubeconfig("kube", urlOf(c.Port("kube-apiserver")), clusterCA, user, groups)
}

// DirectKubeconfig is Kubeconfig for macrack-apiserver itself, through the balancer.
func (c *Cluster) DirectKubeconfig(user string, groups ...string) (string, error) {
	return c.kubeconfig("direct", urlOf(c.Port("balancer")), servingCA, user, groups)
}

// RESTConfig returns a client configuration, without a limit on requests, for kube-apiserver as the
// user.
func (c *Cluster) RESTConfig(user string, groups ...string) (*rest.Config, error) {
	path, err := c.Kubeconfig(user, groups...)
	if err != nil {
		return nil, err
	}
	return restConfig(path)
}

// ReplicaRESTConfig is RESTConfig for one replica of macrack-apiserver itself; the first is number
// 1.
func (c *Cluster) ReplicaRESTConfig(replica int, user string, groups ...string) (*rest.Config, error) {
	path, err := c.DirectKubeconfig(user, groups...)
	if err != nil {
		return nil, err
	}
	config, err := restConfig(path)
	if err != nil {
		return nil, err
	}
	config.Host = urlOf(c.Port(fmt.Sprintf("macrack-apiserver-%d", replica)))
	return config, nil
}

func restConfig(path string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

func (c *Cluster) kubeconfig(kind, server, ca, user string, groups []string) (string, error) {
	cert, err := c.userCert(user, groups)
	if err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	if err := c.addContext(config, kind, server, ca, user, cert, ""); err != nil {
		return "", err
	}
	config.CurrentContext = kind
	return c.writeKubeconfig(filepath.Join(c.dir, "kube", kind+"-"+filepath.Base(cert)+".kubeconfig"), config)
}

// writeKubeconfig does not rewrite an unchanged file, because components read these files at any
// time.
func (c *Cluster) writeKubeconfig(path string, config *clientcmdapi.Config) (string, error) {
	data, err := clientcmd.Write(*config)
	if err != nil {
		return "", err
	}
	if have, err := os.ReadFile(path); err == nil && string(have) == string(data) {
		return path, nil
	}
	return path, writeFile(path, data, 0o600)
}

// userCert issues a user's client certificate and returns its name in the pki.
func (c *Cluster) userCert(user string, groups []string) (string, error) {
	groups = slices.Clone(groups)
	switch parts := strings.Split(user, ":"); {
	case user == Admin:
		groups = append(groups, "system:masters")
	case len(parts) == 4 && strings.HasPrefix(user, "system:serviceaccount:"):
		groups = append(groups, "system:serviceaccounts", "system:serviceaccounts:"+parts[2])
	case strings.HasPrefix(user, "system:node:"):
		groups = append(groups, "system:nodes")
	}
	slices.Sort(groups)
	groups = slices.Compact(groups)

	sum := sha256.Sum256([]byte(strings.Join(append([]string{user}, groups...), "\n")))
	name := "user-" + strings.Map(func(r rune) rune {
		if r == ':' || r == '/' {
			return '-'
		}
		return r
	}, user) + "-" + hex.EncodeToString(sum[:4])

	c.mu.Lock()
	defer c.mu.Unlock()
	ca, err := c.pki.authority(clusterCA)
	if err != nil {
		return "", err
	}
	return name, ca.client(name, user, groups...)
}

func (c *Cluster) addContext(config *clientcmdapi.Config, name, server, ca, user, cert, namespace string) error {
	caPEM, err := os.ReadFile(c.pki.certFile(ca))
	if err != nil {
		return err
	}
	certPEM, err := os.ReadFile(c.pki.certFile(cert))
	if err != nil {
		return err
	}
	keyPEM, err := os.ReadFile(c.pki.keyFile(cert))
	if err != nil {
		return err
	}
	config.Clusters[ca] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: caPEM}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: certPEM, ClientKeyData: keyPEM}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: ca, AuthInfo: user, Namespace: namespace}
	return nil
}

// WriteUserKubeconfig writes the kubeconfig for people and returns its path. Its contexts are admin
// and the tenants, and the same directly at macrack-apiserver, where `kubectl get leases` means
// MacRack's leases: direct (admin), direct-acme, direct-globex.
func (c *Cluster) WriteUserKubeconfig() (string, error) {
	config := clientcmdapi.NewConfig()
	for _, user := range append([]string{Admin}, Tenants...) {
		cert, err := c.userCert(user, nil)
		if err != nil {
			return "", err
		}
		namespace, direct := user, "direct-"+user
		if user == Admin {
			namespace, direct = "", "direct"
		}
		if err := c.addContext(config, user, urlOf(c.Port("kube-apiserver")), clusterCA, user, cert, namespace); err != nil {
			return "", err
		}
		if c.opts.Apiservers == 0 {
			continue
		}
		if err := c.addContext(config, direct, urlOf(c.Port("balancer")), servingCA, user, cert, namespace); err != nil {
			return "", err
		}
	}
	config.CurrentContext = Admin
	return c.writeKubeconfig(filepath.Join(c.dir, "kubeconfig"), config)
}

// repointAgent updates the address of kube-apiserver in the kubeconfig of a joined agent, because
// the port may have changed.
func (c *Cluster) repointAgent(name string) error {
	path := c.agentKubeconfig(name)
	config, err := clientcmd.LoadFromFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = urlOf(c.Port("kube-apiserver"))
	}
	_, err = c.writeKubeconfig(path, config)
	return err
}
