// Package certificates approves or denies the certificates of Macs. A bootstrap token gets one
// client certificate, for the registered Mac that it was created for, unless an agent of that Mac
// is online. An agent gets a serving certificate for its own name and addresses. Renewals of client
// certificates are left to kube-controller-manager; requests that concern no Mac are ignored.
package certificates

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/shared"
)

const (
	byUser = "user"
	// registrationRetry is the interval at which a serving certificate is tried again until its
	// Node is registered.
	registrationRetry = 5 * time.Second
	// rememberedFor is how long an approval is kept until the informer has it.
	rememberedFor = 10 * time.Minute
	// resolveTimeout is the timeout for resolving kube-apiserver's name.
	resolveTimeout = 2 * time.Second
)

// New returns the controller. Its keys are names of CertificateSigningRequests.
func New(deps *shared.Dependencies) (*controller.Controller, error) {
	informer := deps.Certificates.Informer()
	err := informer.AddIndexers(cache.Indexers{
		byUser: controller.IndexFunc(func(csr *certificatesv1.CertificateSigningRequest) []string { return []string{csr.Spec.Username} }),
	})
	if err != nil {
		return nil, fmt.Errorf("adding an index: %w", err)
	}
	c := controller.New("certificates", deps.Clock, newReconciler(deps, net.DefaultResolver).reconcile)
	_, _ = informer.AddEventHandler(controller.Handlers(func(_, after *certificatesv1.CertificateSigningRequest) {
		if after != nil && !decided(after) {
			c.Enqueue(after.Name)
		}
	}))
	return c, nil
}

type reconciler struct {
	deps  *shared.Dependencies
	nodes corelisters.NodeLister
	// requests are those of the informer, and those approved here that the informer does not have
	// yet.
	requests cache.MutationCache
	resolver resolver
	// deciding keeps one token from being used by two requests at once.
	deciding sync.Mutex
}

// resolver resolves a name to addresses.
type resolver interface {
	LookupHost(ctx context.Context, name string) ([]string, error)
}

func newReconciler(deps *shared.Dependencies, resolver resolver) *reconciler {
	informer := deps.Certificates.Informer()
	return &reconciler{
		deps:     deps,
		nodes:    deps.Nodes.Lister(),
		requests: cache.NewIntegerResourceVersionMutationCache(klog.Background(), informer.GetStore(), informer.GetIndexer(), rememberedFor, true),
		resolver: resolver,
	}
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Time, error) {
	csr, err := r.deps.Certificates.Lister().Get(name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil || decided(csr) {
		return time.Time{}, err
	}
	req, err := parse(csr)
	if err != nil || req == nil {
		// The API server has already refused requests that cannot be parsed.
		return time.Time{}, err
	}
	r.deciding.Lock()
	defer r.deciding.Unlock()
	f, err := r.facts(ctx, req)
	if err != nil {
		return time.Time{}, err
	}
	if csr.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		if f.mac != nil && !f.registered(req.node) {
			return r.deps.Clock.Now().Add(registrationRetry), nil
		}
		return time.Time{}, r.write(ctx, csr, decideServing(req, f))
	}
	v := decideClient(req, f)
	if v.approve {
		// The Mac is in the ClusterRoleBinding before its agent has a certificate.
		if err := (&macs{r.deps.Core}).addUsers(ctx, req.node); err != nil {
			return time.Time{}, err
		}
	}
	return time.Time{}, r.write(ctx, csr, v)
}

func (f *facts) registered(name string) bool {
	for _, node := range f.nodes {
		if node.Name == name {
			return true
		}
	}
	return false
}

func (r *reconciler) facts(ctx context.Context, req *request) (facts, error) {
	var f facts
	var err error
	if req.node != "" {
		// The cache may be stale: the Mac may have been registered, or come online, a moment ago.
		f.mac, err = r.deps.MacRack.RackV1alpha1().MacNodes().Get(ctx, req.node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			f.mac = nil
		} else if err != nil {
			return f, err
		}
	}
	if req.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		if f.nodes, err = r.nodes.List(labels.Everything()); err != nil {
			return f, err
		}
		f.reservedAddresses, err = r.reservedAddresses(ctx)
		return f, err
	}
	f.tokenUse, err = r.tokenUse(req)
	return f, err
}

// tokenUse returns an approved request of the same token for another key, or nil.
func (r *reconciler) tokenUse(req *request) (*certificatesv1.CertificateSigningRequest, error) {
	if req.token() == "" {
		return nil, nil
	}
	others, err := r.requests.ByIndex(byUser, req.Spec.Username)
	if err != nil {
		return nil, err
	}
	for _, obj := range others {
		other, ok := obj.(*certificatesv1.CertificateSigningRequest)
		if !ok || other.UID == req.UID || !has(other, certificatesv1.CertificateApproved) {
			continue
		}
		if parsed, err := parse(other); err == nil && parsed != nil && parsed.key() != req.key() {
			return other, nil
		}
	}
	return nil, nil
}

// reservedAddresses returns the addresses of API servers and Services: a server with such an
// address could answer in their place.
func (r *reconciler) reservedAddresses(ctx context.Context) ([]address, error) {
	const kubernetes = "kubernetes"
	var reserved []address
	add := func(holder string, addresses ...string) {
		for _, a := range addresses {
			if ip := net.ParseIP(a); ip != nil { // "None" and "" are not addresses
				reserved = append(reserved, address{ip, holder})
			}
		}
	}
	slices, err := r.deps.Core.DiscoveryV1().EndpointSlices(corev1.NamespaceDefault).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + kubernetes,
	})
	if err != nil {
		return nil, err
	}
	for _, slice := range slices.Items {
		for _, endpoint := range slice.Endpoints {
			add(apiServer, endpoint.Addresses...)
		}
	}
	published, err := r.publishedAddresses(ctx)
	if err != nil {
		return nil, err
	}
	add(apiServer, published...)
	services, err := r.deps.Core.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, service := range services.Items {
		holder := fmt.Sprintf("Service %s/%s", service.Namespace, service.Name)
		if service.Namespace == corev1.NamespaceDefault && service.Name == kubernetes {
			holder = apiServer
		}
		add(holder, service.Spec.ClusterIP, service.Spec.LoadBalancerIP)
		add(holder, service.Spec.ClusterIPs...)
		add(holder, service.Spec.ExternalIPs...)
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			add(holder, ingress.IP)
		}
	}
	return reserved, nil
}

// publishedAddresses returns the addresses of API servers that kubeadm publishes, such as the
// address of a load balancer.
func (r *reconciler) publishedAddresses(ctx context.Context) ([]string, error) {
	info, err := r.deps.Core.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	logger := klog.FromContext(ctx)
	config, err := clientcmd.Load([]byte(info.Data[bootstrapapi.KubeConfigKey]))
	if err != nil {
		logger.Error(err, "Failed to read kube-apiserver's address from ConfigMap kube-public/cluster-info; a Mac may be given this address")
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	var addresses []string
	for _, cluster := range config.Clusters {
		server, err := url.Parse(cluster.Server)
		if err != nil || server.Hostname() == "" {
			continue
		}
		if net.ParseIP(server.Hostname()) != nil {
			addresses = append(addresses, server.Hostname())
			continue
		}
		resolved, err := r.resolver.LookupHost(ctx, server.Hostname())
		if err != nil {
			logger.Error(err, "Failed to resolve kube-apiserver's name from ConfigMap kube-public/cluster-info; a Mac may be given its address", "name", server.Hostname())
		}
		addresses = append(addresses, resolved...)
	}
	return addresses, nil
}

func (r *reconciler) write(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, v verdict) error {
	if v == (verdict{}) {
		return nil
	}
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: v.reason, Message: v.message,
	}
	if v.approve {
		condition.Type = certificatesv1.CertificateApproved
	}
	next := csr.DeepCopy()
	next.Status.Conditions = append(next.Status.Conditions, condition)
	next, err := r.deps.Core.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, next, shared.UpdateOptions)
	if err != nil {
		return err
	}
	r.requests.Mutation(next)
	klog.FromContext(ctx).Info("Certificate request decided", "csr", csr.Name, "user", csr.Spec.Username, "signer", csr.Spec.SignerName,
		"approved", v.approve, "reason", v.reason, "message", v.message)
	return nil
}
