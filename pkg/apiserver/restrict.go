package apiserver

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/union"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

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
func (c *Config) restrict(backend *txn.Backend, macNodes, instances rest.Getter) error {
	var err error
	c.Generic.Authorization.Authorizer, err = union.New(
		union.NamedAuthorizer{AuthorizerName: "macrack.io/node-restriction", Authorizer: noderestriction.NewAuthorizer(
			func(ctx context.Context, namespace, name string) (string, error) {
				i, err := get[*instance.MacOSInstance](ctx, instances, namespace, name)
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
		rejectionreport.New(func(ctx context.Context, name string) (*rack.MacNode, error) {
			return get[*rack.MacNode](ctx, macNodes, "", name)
		}, c.Clock),
		noderestriction.New(),
		controllerrestriction.New(c.Clock),
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

// get returns the current version of an object.
func get[T runtime.Object](ctx context.Context, storage rest.Getter, namespace, name string) (t T, err error) {
	obj, err := storage.Get(genericapirequest.WithNamespace(ctx, namespace), name, &metav1.GetOptions{})
	if err != nil {
		return t, err
	}
	t, ok := obj.(T)
	if !ok {
		return t, fmt.Errorf("%q is a %T, not a %T", name, obj, t)
	}
	return t, nil
}
