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
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"macrack.io/macrack/test/cluster/kubeconfig"
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
	return kubeconfig.Config(path, "")
}

// Clients returns the clients of a user of kube-apiserver, without a limit on requests.
func (c *Cluster) Clients(user string) (kubeconfig.Clients, error) {
	path, err := c.Kubeconfig(user)
	if err != nil {
		return kubeconfig.Clients{}, err
	}
	return kubeconfig.Load(path)
}

// ReplicaRESTConfig is RESTConfig for one replica of macrack-apiserver itself; the first is number
// 1.
func (c *Cluster) ReplicaRESTConfig(replica int, user string, groups ...string) (*rest.Config, error) {
	path, err := c.DirectKubeconfig(user, groups...)
	if err != nil {
		return nil, err
	}
	config, err := kubeconfig.Config(path, "")
	if err != nil {
		return nil, err
	}
	config.Host = urlOf(c.Port(fmt.Sprintf("macrack-apiserver-%d", replica)))
	return config, nil
}

func (c *Cluster) kubeconfig(kind, server, ca, user string, groups []string) (string, error) {
	cert, err := c.userCert(user, groups)
	if err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	if err := kubeconfig.Add(config, c.pki, kubeconfig.Context{Name: kind, Server: server, User: user, CA: ca, Cert: cert}); err != nil {
		return "", err
	}
	config.CurrentContext = kind
	path := filepath.Join(c.dir, "kube", kind+"-"+filepath.Base(cert)+".kubeconfig")
	return path, kubeconfig.Write(path, config)
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
	ca, err := c.pki.Authority(clusterCA)
	if err != nil {
		return "", err
	}
	return name, ca.Client(name, user, groups...)
}

// WriteUserKubeconfig writes the user's kubeconfig and returns its path. Its contexts are admin and
// the tenants, and the same directly at macrack-apiserver, where `kubectl get leases` means
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
		contexts := []kubeconfig.Context{{Name: user, Namespace: namespace, Server: urlOf(c.Port("kube-apiserver")), User: user, CA: clusterCA, Cert: cert}}
		if c.opts.Apiservers > 0 || c.opts.Direct {
			contexts = append(contexts, kubeconfig.Context{Name: direct, Namespace: namespace, Server: urlOf(c.Port("balancer")), User: user, CA: servingCA, Cert: cert})
		}
		if err := kubeconfig.Add(config, c.pki, contexts...); err != nil {
			return "", err
		}
	}
	config.CurrentContext = Admin
	path := filepath.Join(c.dir, "kubeconfig")
	return path, kubeconfig.Write(path, config)
}

// repointAgent updates the address of kube-apiserver in the kubeconfig of a joined agent, because
// the port may have changed.
func (c *Cluster) repointAgent(name string) error {
	path := c.agentKubeconfig(name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return kubeconfig.Redirect(path, path, func(string) string { return urlOf(c.Port("kube-apiserver")) })
}
