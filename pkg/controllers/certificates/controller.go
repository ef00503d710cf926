// Package certificates decides who becomes a Mac. A bootstrap token gets a client certificate for the one registered Mac that it is made
// for, once, and not while that Mac is heard of. An agent gets a serving certificate for its own name and addresses. Renewals of client
// certificates are left to kube-controller-manager, and requests that concern no Mac to whoever cares.
package certificates

import (
	"context"
	"fmt"
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
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/controllers/env"
	"macrack.io/macrack/pkg/controllers/runner"
)

const (
	byUser = "user"
	// registering is how long a serving certificate waits at a time for its Node to be there.
	registering = 5 * time.Second
	// rememberedFor is how long an approval is remembered until the informer has it.
	rememberedFor = 10 * time.Minute
)

// New returns the controller. Its keys are names of CertificateSigningRequests.
func New(e *env.Env) (*runner.Controller, error) {
	informer := e.Certificates.Informer()
	err := informer.AddIndexers(cache.Indexers{
		byUser: runner.IndexFunc(func(csr *certificatesv1.CertificateSigningRequest) []string { return []string{csr.Spec.Username} }),
	})
	if err != nil {
		return nil, fmt.Errorf("adding an index: %w", err)
	}
	c := runner.New("certificates", e.Clock, newReconciler(e).reconcile)
	_, _ = informer.AddEventHandler(runner.Handlers(func(_, after *certificatesv1.CertificateSigningRequest) {
		if after != nil && !decided(after) {
			c.Enqueue(after.Name)
		}
	}))
	return c, nil
}

type reconciler struct {
	env   *env.Env
	nodes corelisters.NodeLister
	// requests are those of the informer, and those that were approved here and are not there yet.
	requests cache.MutationCache
	// deciding makes sure that a token is not used twice at a time.
	deciding sync.Mutex
}

func newReconciler(e *env.Env) *reconciler {
	informer := e.Certificates.Informer()
	return &reconciler{
		env:      e,
		nodes:    e.Nodes.Lister(),
		requests: cache.NewIntegerResourceVersionMutationCache(klog.Background(), informer.GetStore(), informer.GetIndexer(), rememberedFor, true),
	}
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Time, error) {
	csr, err := r.env.Certificates.Lister().Get(name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil || decided(csr) {
		return time.Time{}, err
	}
	req, err := parse(csr)
	if err != nil || req == nil {
		// The API server has refused what cannot be read.
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
			return r.env.Clock.Now().Add(registering), nil
		}
		return time.Time{}, r.write(ctx, csr, decideServing(req, f))
	}
	v := decideClient(req, f)
	if v.approve {
		// Known as a Mac before it can be anything else.
		if err := (&macs{r.env.Core}).name(ctx, req.node); err != nil {
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
		// Read anew: the Mac may have been registered, or heard of, a moment ago.
		f.mac, err = r.env.MacRack.RackV1alpha1().MacNodes().Get(ctx, req.node, metav1.GetOptions{})
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
		f.servers, err = r.servers(ctx)
		return f, err
	}
	f.spent, err = r.spent(req)
	return f, err
}

// spent returns an approved request of the same token for another key.
func (r *reconciler) spent(req *request) (*certificatesv1.CertificateSigningRequest, error) {
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

// servers returns the addresses at which pods find the API servers.
func (r *reconciler) servers(ctx context.Context) ([]string, error) {
	const name = "kubernetes"
	var addresses []string
	service, err := r.env.Core.CoreV1().Services(corev1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		addresses = append(addresses, service.Spec.ClusterIPs...)
	} else if !apierrors.IsNotFound(err) {
		return nil, err
	}
	slices, err := r.env.Core.DiscoveryV1().EndpointSlices(corev1.NamespaceDefault).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + name,
	})
	if err != nil {
		return nil, err
	}
	for _, slice := range slices.Items {
		for _, endpoint := range slice.Endpoints {
			addresses = append(addresses, endpoint.Addresses...)
		}
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
	next, err := r.env.Core.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, next, metav1.UpdateOptions{FieldManager: env.FieldManager})
	if err != nil {
		return err
	}
	r.requests.Mutation(next)
	klog.FromContext(ctx).Info("Decided about a certificate", "csr", csr.Name, "user", csr.Spec.Username, "signer", csr.Spec.SignerName,
		"approved", v.approve, "reason", v.reason, "message", v.message)
	return nil
}
