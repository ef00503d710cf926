package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apiclient"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/registry/rack/auditrecord"
	"macrack.io/macrack/pkg/registry/tenancy"
)

// lives returns the tracker of namespaces with the same name, or nil for a server without a
// cluster.
func (c *Config) lives() (*tenancy.Lives, error) {
	namespaces, live := c.Namespaces, tenancy.Namespaces(nil)
	if namespaces == nil {
		var err error
		if namespaces, live, err = c.namespaces(); err != nil || namespaces == nil {
			return nil, err
		}
	}
	delegate := c.Generic.Authorization.Authorizer
	allowed := func(ctx context.Context, user user.Info, verb, group, resource, subresource string) (bool, error) {
		decision, _, err := delegate.Authorize(ctx, authorizer.AttributesRecord{
			User: user, Verb: verb, APIGroup: group, APIVersion: v1alpha1.SchemeGroupVersion.Version, Resource: resource, Subresource: subresource, ResourceRequest: true,
		})
		if decision == authorizer.DecisionAllow {
			return true, nil
		}
		return false, err
	}
	return &tenancy.Lives{
		Namespaces: namespaces,
		Live:       live,
		SeesAll: func(ctx context.Context) (bool, error) {
			user, ok := genericapirequest.UserFrom(ctx)
			if !ok {
				return false, nil
			}
			return allowed(ctx, user, "list", v1alpha1.GroupName, auditrecord.Resource.Resource, "")
		},
		Everywhere: func(ctx context.Context) (bool, error) {
			user, hasUser := genericapirequest.UserFrom(ctx)
			info, hasInfo := genericapirequest.RequestInfoFrom(ctx)
			if !hasUser || !hasInfo {
				return false, nil
			}
			return allowed(ctx, user, info.Verb, info.APIGroup, info.Resource, info.Subresource)
		},
	}, nil
}

// Requests to the kube-apiserver for namespaces per second, for all users.
const (
	namespacesQPS   = 50
	namespacesBurst = 100
)

// namespaces returns the lookups of namespaces in the cluster, with and without a cache, or nil for
// a server without a cluster.
func (c *Config) namespaces() (namespaces, live tenancy.Namespaces, err error) {
	if c.Generic.SharedInformerFactory == nil || c.Generic.ClientConfig == nil {
		return nil, nil, nil
	}
	config := rest.CopyConfig(apiclient.Protobuf(c.Generic.ClientConfig))
	config.QPS, config.Burst, config.RateLimiter = namespacesQPS, namespacesBurst, nil
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a client of the cluster: %w", err)
	}
	live = func(ctx context.Context, name string) (types.UID, error) {
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
	return cachedNamespaces(cached, tenancy.Remember(clock.RealClock{}, live)), live, nil
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

// limitRecords limits users to the records that are visible to them.
func limitRecords(groups []*genericapiserver.APIGroupInfo, visibility auditrecord.Visibility) {
	for _, g := range groups {
		if records, ok := g.VersionedResourcesStorageMap["v1alpha1"][auditrecord.Resource.Resource].(*auditrecord.REST); ok {
			records.LimitTo(visibility)
		}
	}
}
