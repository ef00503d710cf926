package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"macrack.io/macrack/test/cluster/build"
	"macrack.io/macrack/test/cluster/process"
)

// Namespace is the product's namespace.
const Namespace = "macrack-system"

// Users of the components.
const (
	Admin              = "admin"
	apiserverUser      = "system:serviceaccount:" + Namespace + ":macrack-apiserver"
	controllersUser    = "system:serviceaccount:" + Namespace + ":macrack-controllers"
	schedulerUser      = "system:kube-scheduler"
	kubeControllerUser = "system:kube-controller-manager"
)

// plan returns the command lines of all components.
func (c *Cluster) plan() (err error) {
	// Ports and kubeconfigs can fail; plan returns the first failure.
	port := func(name string) int {
		n, portErr := c.ports.of(name)
		err = errors.Join(err, portErr)
		return n
	}
	kubeconfig := func(user string) string {
		path, userErr := c.Kubeconfig(user)
		err = errors.Join(err, userErr)
		return path
	}

	c.addEtcd("etcd", "default="+urlOf(port("etcd-peer")), port("etcd"), port("etcd-peer"))
	c.addKubeAPIServer(port("kube-apiserver"), urlOf(port("etcd")))
	c.addKubeController("kube-scheduler", port("kube-scheduler"), kubeconfig(schedulerUser))
	c.addKubeController("kube-controller-manager", port("kube-controller-manager"), kubeconfig(kubeControllerUser),
		"--controllers=*,bootstrapsigner,tokencleaner",
		"--use-service-account-credentials",
		"--service-account-private-key-file="+c.pki.KeyFile(tokenKey),
		"--root-ca-file="+c.pki.CertFile(clusterCA),
		"--cluster-signing-cert-file="+c.pki.CertFile(clusterCA),
		"--cluster-signing-key-file="+c.pki.KeyFile(clusterCA))

	var members []string
	for n := 1; n <= c.opts.EtcdMembers; n++ {
		members = append(members, fmt.Sprintf("macrack-etcd-%d=%s", n, urlOf(port(fmt.Sprintf("macrack-etcd-%d-peer", n)))))
	}
	for n := 1; n <= c.opts.EtcdMembers; n++ {
		name := fmt.Sprintf("macrack-etcd-%d", n)
		c.addEtcd(name, strings.Join(members, ","), port(name), port(name+"-peer"))
	}
	if c.opts.Apiservers > 0 {
		port("balancer")
	}
	for n := 1; n <= c.opts.Apiservers; n++ {
		name := fmt.Sprintf("macrack-apiserver-%d", n)
		c.addAPIServer(name, port(name), kubeconfig(apiserverUser))
	}
	for n := 1; n <= c.opts.Controllers; n++ {
		name := fmt.Sprintf("macrack-controllers-%d", n)
		c.addControllers(name, port(name), kubeconfig(controllersUser))
	}
	if c.opts.Macs > 0 || c.opts.Example {
		c.add(stageEtcd, "registry", "dev", []int{port("registry")}, c.answers("http://"+process.Loopback(port("registry"))+"/v2/", "", ""),
			"registry", "--listen="+process.Loopback(port("registry")), "--dir="+filepath.Join(c.dir, "registry"))
		for n := 1; n <= c.opts.Macs; n++ {
			name := macName(n)
			err = errors.Join(err, c.repointAgent(name))
			c.addAgent(name, port(name), serialNumber(n))
		}
	}
	if c.opts.Detach && c.opts.Apiservers > 0 {
		c.add(stageAPIServer, "balancer", "dev", []int{port("balancer")}, dialable(port("balancer")),
			append([]string{"balance", "--listen=" + process.Loopback(port("balancer")), "--ca-file=" + c.pki.CertFile(servingCA)}, c.apiserverAddresses()...)...)
	}
	if c.opts.Detach {
		c.add(stageKeeper, "keeper", "dev", nil, nil, "keep", "--dir", c.dir)
	}
	return err
}

func (c *Cluster) add(s stage, name, program string, ports []int, ready func(context.Context) error, args ...string) {
	kind := strings.TrimRight(strings.TrimRight(name, "0123456789"), "-")
	c.components = append(c.components, &component{stage: s, Process: process.Process{
		Name:    name,
		Program: filepath.Join(c.bin, program),
		Args:    slices.Concat(args, c.opts.ExtraArgs[kind]),
		Ports:   ports,
		Ready:   ready,
		PIDFile: filepath.Join(c.dir, "run", name+".pid"),
		LogFile: c.LogFile(name),
	}})
}

func (c *Cluster) addEtcd(name, members string, client, peer int) {
	member := name
	if name == "etcd" {
		member = "default"
	}
	args := []string{
		"--name=" + member,
		"--data-dir=" + filepath.Join(c.dir, "data", name),
		"--listen-client-urls=" + urlOf(client),
		"--advertise-client-urls=" + urlOf(client),
		"--listen-peer-urls=" + urlOf(peer),
		"--initial-advertise-peer-urls=" + urlOf(peer),
		"--initial-cluster=" + members,
		"--initial-cluster-token=" + strings.TrimRight(name, "-123"),
		"--cert-file=" + c.pki.CertFile(etcdCert),
		"--key-file=" + c.pki.KeyFile(etcdCert),
		"--client-cert-auth",
		"--trusted-ca-file=" + c.pki.CertFile(etcdCA),
		"--peer-cert-file=" + c.pki.CertFile(etcdCert),
		"--peer-key-file=" + c.pki.KeyFile(etcdCert),
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + c.pki.CertFile(etcdCA),
		"--watch-progress-notify-interval=5s",
		"--log-level=warn",
	}
	if !c.opts.Sync {
		args = append(args, "--unsafe-no-fsync")
	}
	c.add(stageEtcd, name, "etcd", []int{client, peer}, c.answers(urlOf(client)+"/health", etcdCA, etcdClientCert), args...)
}

const (
	serviceAddresses = "10.96.0.0/16"
	serviceAddress   = "10.96.0.1" // of the service kubernetes
)

func (c *Cluster) addKubeAPIServer(port int, etcd string) {
	// The Endpoints of the service kubernetes must not be a loopback address.
	bind, advertise, endpoints := "127.0.0.1", "127.0.0.1", "none"
	if c.opts.Address != "" {
		bind, advertise, endpoints = "0.0.0.0", c.opts.Address, "lease"
	}
	c.add(stageKubeAPIServer, "kube-apiserver", "kube-apiserver", []int{port},
		c.answers(urlOf(port)+"/readyz", clusterCA, kubeletClientCert),
		"--bind-address="+bind,
		"--advertise-address="+advertise,
		fmt.Sprintf("--secure-port=%d", port),
		"--endpoint-reconciler-type="+endpoints,
		"--service-cluster-ip-range="+serviceAddresses,
		"--etcd-servers="+etcd,
		"--etcd-cafile="+c.pki.CertFile(etcdCA),
		"--etcd-certfile="+c.pki.CertFile(etcdClientCert),
		"--etcd-keyfile="+c.pki.KeyFile(etcdClientCert),
		"--tls-cert-file="+c.pki.CertFile(kubeAPIServerCert),
		"--tls-private-key-file="+c.pki.KeyFile(kubeAPIServerCert),
		"--client-ca-file="+c.pki.CertFile(clusterCA),
		"--kubelet-client-certificate="+c.pki.CertFile(kubeletClientCert),
		"--kubelet-client-key="+c.pki.KeyFile(kubeletClientCert),
		"--kubelet-certificate-authority="+c.pki.CertFile(clusterCA),
		"--kubelet-preferred-address-types=InternalIP,Hostname",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file="+c.pki.KeyFile(tokenKey),
		"--service-account-key-file="+filepath.Join(string(c.pki), tokenKey+".pub"),
		"--requestheader-client-ca-file="+c.pki.CertFile(frontProxyCA),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-uid-headers=X-Remote-Uid",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+c.pki.CertFile(frontProxyCert),
		"--proxy-client-key-file="+c.pki.KeyFile(frontProxyCert),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--admission-control-config-file="+c.admissionConfig(),
		"--enable-bootstrap-token-auth",
		"--allow-privileged=false",
	)
}

// admissionConfig returns the file that makes kube-apiserver load macrack's admission policies from
// the repository, where no API user can delete them.
func (c *Cluster) admissionConfig() string { return filepath.Join(c.dir, "kube", "admission.yaml") }

func (c *Cluster) writeAdmissionConfig() error {
	return process.WriteFile(c.admissionConfig(), fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ValidatingAdmissionPolicy
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ValidatingAdmissionPolicyConfiguration
    staticManifestsDir: %q
`, filepath.Join(c.root, "artifacts", "policies", "static")), 0o644)
}

// addKubeController adds kube-scheduler or kube-controller-manager, which share their serving
// flags.
func (c *Cluster) addKubeController(name string, port int, kubeconfig string, args ...string) {
	c.add(stageKubeControllers, name, name, []int{port},
		c.answers(urlOf(port)+"/healthz", clusterCA, kubeletClientCert),
		append([]string{
			"--kubeconfig=" + kubeconfig,
			"--authentication-kubeconfig=" + kubeconfig,
			"--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", port),
			"--tls-cert-file=" + c.pki.CertFile(controlPlaneCert),
			"--tls-private-key-file=" + c.pki.KeyFile(controlPlaneCert),
			"--leader-elect=false",
			// The defaults (50 and 20 requests a second) limit bursts more than this machine does.
			"--kube-api-qps=1000",
			"--kube-api-burst=2000",
		}, args...)...)
}

func (c *Cluster) addAPIServer(name string, port int, kubeconfig string) {
	etcd := c.MacrackEtcd()
	c.add(stageAPIServer, name, build.Programs["apiserver"], []int{port},
		c.answers(urlOf(port)+"/readyz", servingCA, kubeletClientCert),
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--tls-cert-file="+c.pki.CertFile(servingCert),
		"--tls-private-key-file="+c.pki.KeyFile(servingCert),
		"--etcd-servers="+strings.Join(etcd.Servers, ","),
		"--etcd-cafile="+etcd.CAFile,
		"--etcd-certfile="+etcd.CertFile,
		"--etcd-keyfile="+etcd.KeyFile,
		"--kubeconfig="+kubeconfig,
		"--authentication-kubeconfig="+kubeconfig,
		"--authorization-kubeconfig="+kubeconfig,
		"--shutdown-delay-duration=2s", // the balancer checks /readyz each second
		"--user-qps=0",                 // tests send requests without pause
	)
}

func (c *Cluster) addControllers(name string, port int, kubeconfig string) {
	c.add(stageControllers, name, build.Programs["controllers"], []int{port}, c.answers(fmt.Sprintf("http://%s/readyz", process.Loopback(port)), "", ""),
		"--kubeconfig="+kubeconfig,
		"--metrics-bind-address="+process.Loopback(port),
	)
}

func (c *Cluster) macDir(name string) string { return filepath.Join(c.dir, "macs", name) }

// agentKubeconfig is the path of the kubeconfig of an agent that has joined.
func (c *Cluster) agentKubeconfig(name string) string {
	return filepath.Join(c.macDir(name), "state", "kubeconfig")
}

func macName(n int) string { return fmt.Sprintf("mac-%d", n) }

func serialNumber(n int) string { return fmt.Sprintf("SIM%07d", n) }

func (c *Cluster) addAgent(name string, port int, serial string) {
	dir := c.macDir(name)
	c.add(stageAgents, name, build.Programs["agent"], []int{port}, c.nodeReady(name), "run",
		"--node-name="+name,
		"--state-dir="+filepath.Join(dir, "state"),
		"--vm-binary="+filepath.Join(c.bin, build.Programs["vm"]),
		"--backend=sim",
		// Commands of tenants in their guests run on this host: this is a development cluster.
		"--sim-guest-agent="+filepath.Join(c.bin, build.Programs["guest-agent"]),
		"--sim-host-dir="+filepath.Join(dir, "host"),
		"--sim-serial-number="+serial,
		"--listen="+process.Loopback(port),
		"--client-ca-file="+c.pki.CertFile(clusterCA),
	)
}

// EtcdAccess has the access data of an etcd. Without files, it has no TLS.
type EtcdAccess struct {
	Servers                   []string
	CAFile, CertFile, KeyFile string
}

// MacrackEtcd returns the access to macrack's own etcd.
func (c *Cluster) MacrackEtcd() EtcdAccess {
	var servers []string
	for n := 1; n <= c.opts.EtcdMembers; n++ {
		servers = append(servers, urlOf(c.Port(fmt.Sprintf("macrack-etcd-%d", n))))
	}
	return EtcdAccess{Servers: servers, CAFile: c.pki.CertFile(etcdCA), CertFile: c.pki.CertFile(etcdClientCert), KeyFile: c.pki.KeyFile(etcdClientCert)}
}

// APIServerKubeconfig returns the kubeconfig of macrack-apiserver, for --kubeconfig,
// --authentication-kubeconfig and --authorization-kubeconfig.
func (c *Cluster) APIServerKubeconfig() (string, error) { return c.Kubeconfig(apiserverUser) }

// ControllersKubeconfig returns the kubeconfig of macrack-controllers.
func (c *Cluster) ControllersKubeconfig() (string, error) { return c.Kubeconfig(controllersUser) }

func urlOf(port int) string { return "https://" + process.Loopback(port) }
