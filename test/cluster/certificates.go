package cluster

import (
	"errors"
	"os"

	"macrack.io/macrack/test/cluster/pki"
)

// Names of authorities and certificates.
const (
	clusterCA    = "cluster-ca"     // signs the control plane's serving certificates and all client certificates
	frontProxyCA = "front-proxy-ca" // signs the client certificate with which kube-apiserver forwards requests
	etcdCA       = "etcd-ca"
	servingCA    = "macrack-ca" // signs macrack-apiserver's serving certificate: the APIServices' caBundle

	kubeAPIServerCert = "kube-apiserver"
	kubeletClientCert = "kube-apiserver-kubelet-client"
	frontProxyCert    = "front-proxy-client"
	controlPlaneCert  = "control-plane" // serves kube-scheduler and kube-controller-manager
	etcdCert          = "etcd"
	etcdClientCert    = "etcd-client"
	servingCert       = "macrack-apiserver"
	tokenKey          = "service-accounts"
)

func (c *Cluster) writePKI() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	cas := map[string]*pki.Authority{}
	for _, name := range []string{clusterCA, frontProxyCA, etcdCA, servingCA} {
		ca, err := c.pki.Authority(name)
		if err != nil {
			return err
		}
		cas[name] = ca
	}
	hosts := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	if c.opts.Address != "" {
		hosts = append(hosts, c.opts.Address, serviceAddress)
	}
	_, _, err := c.pki.SigningKey(tokenKey)
	return errors.Join(err,
		cas[clusterCA].Server(kubeAPIServerCert, hosts...),
		cas[clusterCA].Server(controlPlaneCert),
		cas[clusterCA].Client(kubeletClientCert, "kube-apiserver-kubelet-client", "system:masters"),
		cas[frontProxyCA].Client(frontProxyCert, "front-proxy-client"),
		cas[etcdCA].Server(etcdCert),
		cas[etcdCA].Client(etcdClientCert, "etcd-client"),
		cas[servingCA].Server(servingCert, "macrack-apiserver."+Namespace, "macrack-apiserver."+Namespace+".svc"),
	)
}

// ServingFiles returns the certificate and the key of macrack-apiserver on loopback.
func (c *Cluster) ServingFiles() (certFile, keyFile string) {
	return c.pki.CertFile(servingCert), c.pki.KeyFile(servingCert)
}

// ServingCA returns the authority (PEM) of ServingFiles: the caBundle of the APIServices.
func (c *Cluster) ServingCA() []byte {
	pem, err := os.ReadFile(c.pki.CertFile(servingCA))
	if err != nil {
		panic(err) // Open has written it
	}
	return pem
}
