package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"

	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/registry/rack/auditrecord"
	"macrack.io/macrack/pkg/registry/tenancy"
)

// lives returns what tells namespaces of the same name apart, or nil for a server without a cluster.
func (c *Config) lives() (*tenancy.Lives, error) {
	if c.Generic.SharedInformerFactory == nil || c.Generic.ClientConfig == nil {
		return nil, nil
	}
	client, err := kubernetes.NewForConfig(c.Generic.ClientConfig)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client of the cluster: %w", err)
	}
	cached := c.Generic.SharedInformerFactory.Core().V1().Namespaces().Lister()
	delegate := c.Generic.Authorization.Authorizer
	return &tenancy.Lives{
		// A namespace that the cache does not have, or has as going, may be there anew.
		Namespaces: func(ctx context.Context, name string) (types.UID, error) {
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
		},
		SeesAll: func(ctx context.Context) (bool, error) {
			user, ok := genericapirequest.UserFrom(ctx)
			if !ok {
				return false, nil
			}
			decision, _, err := delegate.Authorize(ctx, authorizer.AttributesRecord{
				User: user, Verb: "list", APIGroup: v1alpha1.GroupName, APIVersion: "v1alpha1", Resource: auditrecord.Resource.Resource, ResourceRequest: true,
			})
			if decision == authorizer.DecisionAllow {
				return true, nil
			}
			return false, err
		},
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
