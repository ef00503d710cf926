package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"macrack.io/macrack/test/cluster"
)

const (
	rackPath     = "/apis/rack.macrack.io/v1alpha1"
	instancePath = "/apis/instance.macrack.io/v1alpha1"
	imagePath    = "/apis/image.macrack.io/v1alpha1"
	configPath   = "/apis/config.macrack.io/v1alpha1"
	rbacPath     = "/apis/rbac.authorization.k8s.io/v1"

	macOSImage = "macos-26-xcode-26"
	settling   = 3 * time.Minute
)

var errNoFreeMac = errors.New("the attack needs a free Mac for each of two leases")

// A world is the attacked cluster and its users. Tenant acme has a lease with two instances, tenant
// globex one without instances.
type world struct {
	cluster *cluster.Cluster
	etcd    *clientv3.Client
	users   map[string]*user

	acmeMac, acmeSerial, acmeUID       string
	globexMac, globexSerial, globexUID string
}

// A user has a certificate of the cluster's authority.
type user struct {
	name         string
	kube, direct *http.Client
	kubeURL      string
}

// people are the users by their names in the tables.
var people = map[string]struct {
	name   string
	groups []string
}{
	"acme":        {name: "acme"},
	"acme-admin":  {name: "attack-acme-admin"},
	"globex":      {name: "globex"},
	"hardware":    {name: "attack-hardware"},
	"auditor":     {name: "attack-auditor"},
	"asker":       {name: "attack-asker"},
	"root":        {name: "attack-root"},
	"admin":       {name: cluster.Admin},
	"controllers": {name: "system:serviceaccount:" + cluster.Namespace + ":macrack-controllers"},
	"node-no-one": {name: "mallory", groups: []string{"system:nodes"}},
	"stranger":    {name: "front-proxy-client"},
}

// rights are created for the attack in addition to those of artifacts/example, and removed after
// it.
var rights = []struct{ path, name, role, user string }{
	{"/namespaces/acme/rolebindings", "attack-acme-admin", "admin", "attack-acme-admin"},
	{"/clusterrolebindings", "attack-hardware", "macrack-hardware-admin", "attack-hardware"},
	{"/clusterrolebindings", "attack-auditor", "macrack-auditor", "attack-auditor"},
	{"/clusterrolebindings", "attack-asker", "system:node-bootstrapper", "attack-asker"},
	{"/clusterrolebindings", "attack-root", "cluster-admin", "attack-root"},
	{"/namespaces/attack-quota/rolebindings", "attack-tenant", "edit", "acme"},
}

func (w *world) username(who string) string {
	switch who {
	case "agent":
		return "system:node:" + w.acmeMac
	case "other-agent":
		return "system:node:" + w.globexMac
	}
	if p, ok := people[who]; ok {
		return p.name
	}
	return who
}

func (w *world) user(who string) (*user, error) {
	if u, ok := w.users[who]; ok {
		return u, nil
	}
	u, err := w.newUser(w.username(who), people[who].groups)
	if who == "anonymous" {
		u, err = w.anonymous()
	}
	if err == nil {
		w.users[who] = u
	}
	return u, err
}

func (w *world) newUser(name string, groups []string) (*user, error) {
	kube, err := w.cluster.RESTConfig(name, groups...)
	if err != nil {
		return nil, err
	}
	direct, err := w.cluster.ReplicaRESTConfig(1, name, groups...)
	if err != nil {
		return nil, err
	}
	u := &user{name: name, kubeURL: kube.Host}
	if u.kube, err = httpClient(kube); err != nil {
		return nil, err
	}
	u.direct, err = httpClient(direct)
	return u, err
}

// anonymous presents no certificate.
func (w *world) anonymous() (*user, error) {
	kube, err := w.cluster.RESTConfig(cluster.Admin)
	if err != nil {
		return nil, err
	}
	direct, err := w.cluster.ReplicaRESTConfig(1, cluster.Admin)
	if err != nil {
		return nil, err
	}
	u := &user{name: "system:anonymous", kubeURL: kube.Host}
	if u.kube, err = httpClient(rest.AnonymousClientConfig(kube)); err != nil {
		return nil, err
	}
	u.direct, err = httpClient(rest.AnonymousClientConfig(direct))
	return u, err
}

func httpClient(config *rest.Config) (*http.Client, error) {
	client, err := rest.HTTPClientFor(config)
	if err == nil {
		client.CheckRedirect = noRedirect
	}
	return client, err
}

// prepare creates the world, or continues with the one that an earlier attack left.
func prepare(ctx context.Context, c *cluster.Cluster) (_ *world, err error) {
	w := &world{cluster: c, users: map[string]*user{}}
	access := c.MacrackEtcd()
	tlsConfig, err := etcdTLS(access, true)
	if err != nil {
		return nil, err
	}
	w.etcd, err = clientv3.New(clientv3.Config{Endpoints: access.Servers, TLS: tlsConfig, DialTimeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	namespace := `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"attack-quota"}}`
	if err := w.make(ctx, "/api/v1/namespaces", namespace); err != nil {
		return nil, err
	}
	for _, r := range rights {
		kind := "RoleBinding"
		if strings.HasPrefix(r.path, "/cluster") {
			kind = "ClusterRoleBinding"
		}
		body := fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":%q,"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%q}]}`,
			kind, r.name, r.role, r.user)
		if err := w.make(ctx, rbacPath+r.path, body); err != nil {
			return nil, err
		}
	}
	if err := w.lease(ctx, "acme", &w.acmeMac, &w.acmeSerial, &w.acmeUID); err != nil {
		return nil, err
	}
	if err := w.lease(ctx, "globex", &w.globexMac, &w.globexSerial, &w.globexUID); err != nil {
		return nil, err
	}
	for _, name := range []string{"attack-1", "attack-2"} {
		if err := w.instance(ctx, name); err != nil {
			return nil, err
		}
	}
	return w, w.settle(ctx)
}

// close removes the rights that were granted for the attack. The leases stay: their floors are a
// day away.
func (w *world) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, r := range rights {
		remove(rbacPath+r.path+"/"+r.name)(ctx, w, "admin")
	}
	remove("/api/v1/namespaces/attack-quota")(ctx, w, "admin")
	w.etcd.Close()
}

// make creates an object as admin, unless it exists.
func (w *world) make(ctx context.Context, path, body string) error {
	a := post(path, body)(ctx, w, "admin")
	if a.code != http.StatusCreated && a.code != http.StatusConflict {
		return fmt.Errorf("creating in %s: %d %s", path, a.code, short(a.text()))
	}
	return nil
}

type leaseObject struct {
	Metadata struct {
		UID string `json:"uid"`
	} `json:"metadata"`
	Status struct {
		Phase        string `json:"phase"`
		NodeName     string `json:"nodeName"`
		SerialNumber string `json:"serialNumber"`
	} `json:"status"`
}

// lease leases a Mac for a tenant, and waits until the lease is bound.
func (w *world) lease(ctx context.Context, tenant string, mac, serial, uid *string) error {
	path := leases(tenant) + "/attack-" + tenant
	is := leaseObject{}
	if a := get(path)(ctx, w, "admin"); a.code == http.StatusNotFound {
		if free, err := w.freeMacs(ctx); err != nil || free == 0 {
			return errors.Join(err, errNoFreeMac)
		}
		a = post(leases(tenant), leaseBody(`"name":"attack-`+tenant+`"`, `"className":"base"`))(ctx, w, tenant)
		if a.code != http.StatusCreated {
			return fmt.Errorf("leasing a Mac for %s: %d %s", tenant, a.code, short(a.text()))
		}
	}
	err := eventually(ctx, func() error {
		a := get(path)(ctx, w, "admin")
		if err := json.Unmarshal([]byte(a.body), &is); err != nil {
			return err
		}
		if is.Status.NodeName == "" {
			return fmt.Errorf("lease attack-%s is %s", tenant, is.Status.Phase)
		}
		return nil
	})
	*mac, *serial, *uid = is.Status.NodeName, is.Status.SerialNumber, is.Metadata.UID
	return err
}

func (w *world) freeMacs(ctx context.Context) (int, error) {
	list := struct {
		Items []leaseObject `json:"items"`
	}{}
	free := 0
	err := eventually(ctx, func() error {
		a := get(rackPath+"/macnodes")(ctx, w, "admin")
		if err := json.Unmarshal([]byte(a.body), &list); err != nil {
			return err
		}
		free = 0
		for _, mac := range list.Items {
			switch mac.Status.Phase {
			case "Available":
				free++
			case "Pending", "Offline":
				return fmt.Errorf("a Mac is %s", mac.Status.Phase)
			}
		}
		return nil
	})
	return free, err
}

// instance creates an instance of tenant acme, and waits until it runs.
func (w *world) instance(ctx context.Context, name string) error {
	path := instances("acme") + "/" + name
	return eventually(ctx, func() error {
		a := get(path)(ctx, w, "admin")
		is := leaseObject{}
		if a.code == http.StatusOK {
			if err := json.Unmarshal([]byte(a.body), &is); err != nil {
				return err
			}
		}
		switch {
		case a.code == http.StatusNotFound:
			a = post(instances("acme"), instanceBody(`"name":"`+name+`"`, `"leaseName":"attack-acme"`))(ctx, w, "acme")
		case is.Status.Phase == "Running":
			return nil
		case is.Status.Phase == "Stopped", is.Status.Phase == "Failed":
			a = remove(path)(ctx, w, "acme")
		}
		return fmt.Errorf("instance %s is %s: %d %s", name, is.Status.Phase, a.code, short(a.text()))
	})
}

// settle waits until no object changes by itself.
func (w *world) settle(ctx context.Context) error {
	before, err := w.snapshot(ctx)
	if err != nil {
		return err
	}
	return eventually(ctx, func() error {
		if err := sleep(ctx, 2*time.Second); err != nil {
			return err
		}
		after, err := w.snapshot(ctx)
		if err != nil {
			return err
		}
		changes := before.compare(after)
		before = after
		if len(changes) > 0 {
			return fmt.Errorf("it does not settle: %s", strings.Join(changes, "; "))
		}
		return nil
	})
}

// eventually waits until check returns no error.
func eventually(ctx context.Context, check func() error) error {
	deadline := time.Now().Add(settling)
	for {
		err := check()
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s: %w", settling, err)
		}
		if err := sleep(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func leases(namespace string) string { return rackPath + "/namespaces/" + namespace + "/macnodeleases" }

func records(namespace string) string { return rackPath + "/namespaces/" + namespace + "/auditrecords" }

func instances(namespace string) string {
	return instancePath + "/namespaces/" + namespace + "/macosinstances"
}

func leaseBody(metadata, spec string) string { return leaseWith(metadata, spec, "") }

func leaseWith(metadata, spec, status string) string {
	if status != "" {
		status = `,"status":{` + status + `}`
	}
	return `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLease","metadata":{` + metadata + `},"spec":{` + spec + `}` + status + `}`
}

// instanceBody is an instance of class small and an existing image, with the given spec added.
func instanceBody(metadata, spec string) string {
	return `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstance","metadata":{` + metadata + `},"spec":{"className":"small","imageName":"` + macOSImage + `",` + spec + `}}`
}

// etcdTLS returns the TLS configuration of a client of macrack's etcd, with or without its
// certificate.
func etcdTLS(access cluster.EtcdClient, certificate bool) (*tls.Config, error) {
	ca, err := os.ReadFile(access.CAFile)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	config.RootCAs.AppendCertsFromPEM(ca)
	if !certificate {
		return config, nil
	}
	pair, err := tls.LoadX509KeyPair(access.CertFile, access.KeyFile)
	config.Certificates = []tls.Certificate{pair}
	return config, err
}

// certificateOf returns the certificate of a user.
func (w *world) certificateOf(who string) (tls.Certificate, error) {
	config, err := w.cluster.RESTConfig(w.username(who), people[who].groups...)
	if err != nil {
		return tls.Certificate{}, err
	}
	t, err := config.TransportConfig()
	if err != nil {
		return tls.Certificate{}, err
	}
	tlsConfig, err := transport.TLSConfigFor(t)
	if err != nil {
		return tls.Certificate{}, err
	}
	if len(tlsConfig.Certificates) > 0 {
		return tlsConfig.Certificates[0], nil
	}
	pair, err := tlsConfig.GetClientCertificate(&tls.CertificateRequestInfo{})
	if err != nil {
		return tls.Certificate{}, err
	}
	return *pair, nil
}

// forgedCertificate returns a certificate for any name and groups, signed by an unknown authority.
func forgedCertificate(name string, groups ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
