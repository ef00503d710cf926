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

	"macrack.io/macrack/pkg/apiclient"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/registry/rack/auditrecord"
	"macrack.io/macrack/pkg/registry/tenancy"
)

// lives returns what tells namespaces of the same name apart, or nil for a server without a cluster.
func (c *Config) lives() (*tenancy.Lives, error) {
	namespaces := c.Namespaces
	if namespaces == nil {
		var err error
		if namespaces, err = c.namespaces(); err != nil || namespaces == nil {
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

// namespaces returns what finds the namespaces of the cluster, or nil for a server without a cluster.
func (c *Config) namespaces() (tenancy.Namespaces, error) {
	if c.Generic.SharedInformerFactory == nil || c.Generic.ClientConfig == nil {
		return nil, nil
	}
	client, err := kubernetes.NewForConfig(apiclient.Protobuf(c.Generic.ClientConfig))
	if err != nil {
		return nil, fmt.Errorf("cannot make a client of the cluster: %w", err)
	}
	cached := c.Generic.SharedInformerFactory.Core().V1().Namespaces().Lister()
	// A namespace that is missing or terminating in the cache may have been created again.
	return func(ctx context.Context, name string) (types.UID, error) {
		if namespace, err := cached.Get(name); err == nil && namespace.DeletionTimestamp == nil {
			return namespace.UID, nil
		}
		namespace, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		return namespace.UID, nil
	}, nil
}

// limitRecords has users read the records that are visible to them.
func limitRecords(groups []*genericapiserver.APIGroupInfo, visibility auditrecord.Visibility) {
	for _, g := range groups {
		if records, ok := g.VersionedResourcesStorageMap["v1alpha1"][auditrecord.Resource.Resource].(*auditrecord.REST); ok {
			records.LimitTo(visibility)
		}
	}
}
