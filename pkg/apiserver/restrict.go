package apiserver

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/union"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"macrack.io/macrack/pkg/admission/controllerrestriction"
	"macrack.io/macrack/pkg/admission/noderestriction"
	"macrack.io/macrack/pkg/admission/quota"
	"macrack.io/macrack/pkg/admission/rejectionreport"
	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/txn"
)

// restrict wraps the configured authorizer and admission plugins with checks that no flag can
// disable: agents are restricted to their own Mac, statuses and records can be written only by the
// component that observes them, and dry runs are refused if the registry would refuse the real
// request.
func (c *Config) restrict(backend *txn.Backend, groups []*genericapiserver.APIGroupInfo) error {
	macNodes, err := getter[*rack.MacNode](groups, "macnodes")
	if err != nil {
		return err
	}
	instances, err := getter[*instance.MacOSInstance](groups, "macosinstances")
	if err != nil {
		return err
	}
	c.Generic.Authorization.Authorizer, err = union.New(
		union.NamedAuthorizer{AuthorizerName: "macrack.io/node-restriction", Authorizer: noderestriction.NewAuthorizer(
			func(ctx context.Context, namespace, name string) (string, error) {
				i, err := instances(ctx, namespace, name)
				if err != nil {
					return "", err
				}
				return i.Status.NodeName, nil
			})},
		union.NamedAuthorizer{AuthorizerName: "macrack.io/delegate", Authorizer: c.Generic.Authorization.Authorizer},
	)
	if err != nil {
		return err
	}
	plugins := []admission.Interface{
		rejectionreport.New(func(ctx context.Context, name string) (*rack.MacNode, error) { return macNodes(ctx, "", name) }, c.Clock),
		noderestriction.New(),
		controllerrestriction.New(),
	}
	if informers := c.Generic.SharedInformerFactory; informers != nil {
		plugins = append(plugins, quota.Preflight(informers.Core().V1().ResourceQuotas().Lister(), backend.Preflight))
	}
	if configured := c.Generic.AdmissionControl; configured != nil {
		plugins = append(plugins, configured)
	}
	c.Generic.AdmissionControl = admission.NewChainHandler(append(plugins, backend.DryRunAdmission())...)
	return nil
}

// getter returns a function that reads the current version of an object of a resource.
func getter[T any](groups []*genericapiserver.APIGroupInfo, resource string) (func(ctx context.Context, namespace, name string) (T, error), error) {
	for _, g := range groups {
		storage, ok := g.VersionedResourcesStorageMap["v1alpha1"][resource].(rest.Getter)
		if !ok {
			continue
		}
		return func(ctx context.Context, namespace, name string) (t T, err error) {
			obj, err := storage.Get(genericapirequest.WithNamespace(ctx, namespace), name, &metav1.GetOptions{})
			if err != nil {
				return t, err
			}
			t, ok := obj.(T)
			if !ok {
				return t, fmt.Errorf("a %s is stored as %T", resource, obj)
			}
			return t, nil
		}, nil
	}
	return nil, fmt.Errorf("%s are not served", resource)
}
