package apiserver

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apiclient"
	"macrack.io/macrack/pkg/registry/tenancy"
)

// Requests to the kube-apiserver for namespaces per second, for all users.
const (
	namespacesQPS   = 50
	namespacesBurst = 100
)

// namespaces returns the lookup of namespaces: the configured one, or that of the cluster.
func (c *Config) namespaces() (tenancy.Lookup, error) {
	if c.Namespaces != nil {
		return tenancy.Lookup{Namespaces: c.Namespaces}, nil
	}
	if c.Generic.SharedInformerFactory == nil || c.Generic.ClientConfig == nil {
		return tenancy.Lookup{}, errors.New("the server has no cluster to look up namespaces in; set the kubeconfig of a cluster")
	}
	config := rest.CopyConfig(apiclient.Protobuf(c.Generic.ClientConfig))
	config.QPS, config.Burst, config.RateLimiter = namespacesQPS, namespacesBurst, nil
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return tenancy.Lookup{}, fmt.Errorf("cannot make a client of the cluster: %w", err)
	}
	live := func(ctx context.Context, name string) (types.UID, error) {
		namespace, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		return namespace.UID, nil
	}
	cached := c.Generic.SharedInformerFactory.Core().V1().Namespaces().Lister()
	return tenancy.Lookup{Namespaces: cachedNamespaces(cached, tenancy.Cached(clock.RealClock{}, live)), Live: live}, nil
}

// cachedNamespaces returns a lookup of namespaces in a cache. It asks live if a namespace is
// missing or terminating in the cache, because it may have been created again.
func cachedNamespaces(cached corev1listers.NamespaceLister, live tenancy.Namespaces) tenancy.Namespaces {
	return func(ctx context.Context, name string) (types.UID, error) {
		if namespace, err := cached.Get(name); err == nil && namespace.DeletionTimestamp == nil {
			return namespace.UID, nil
		}
		return live(ctx, name)
	}
}
