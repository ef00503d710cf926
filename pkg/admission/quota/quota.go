// Package quota applies the ResourceQuotas of the cluster to objects of this server. For example,
// count/macnodeleases.rack.macrack.io limits the number of leases of a namespace, including Held
// leases, which keep their Mac until the floor.
package quota

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	corev1listers "k8s.io/client-go/listers/core/v1"

	"macrack.io/macrack/pkg/apis/rack"
)

// Enable adds the plugin to those of a server. It is the last, because it charges the quota for
// created objects.
func Enable(o *genericoptions.AdmissionOptions) {
	resourcequota.Register(o.Plugins)
	o.RecommendedPluginOrder = append(o.RecommendedPluginOrder, resourcequota.PluginName)
	o.Decorators = append(admission.Decorators{admission.DecoratorFunc(decorate)}, o.Decorators...)
}

// decorate converts conflicts on a quota object into status 429. The conflict is not an error of
// the request, and clients retry after this status.
func decorate(handler admission.Interface, name string) admission.Interface {
	if plugin, ok := handler.(admission.ValidationInterface); ok && name == resourcequota.PluginName {
		return retried{plugin}
	}
	return handler
}

type retried struct{ admission.ValidationInterface }

// Validate charges the quotas.
func (r retried) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	err := r.ValidationInterface.Validate(ctx, a, o)
	if apierrors.IsConflict(err) {
		return apierrors.NewTooManyRequests("many requests are being charged to the namespace's resource quota; try again", 1)
	}
	return err
}

// Initializer returns the initializer that configures the counted objects: all but records, so that
// no quota prevents a rejection from being recorded.
func Initializer() admission.PluginInitializer {
	return configured{generic.NewConfiguration(nil, map[schema.GroupResource]struct{}{rack.Resource("auditrecords"): {}})}
}

type configured struct{ quotav1.Configuration }

// Initialize configures the plugin.
func (c configured) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(c.Configuration)
	}
}

// Preflight returns the admission plugin that must run before the one that charges. It refuses
// requests that the registry would refuse before they are charged: otherwise the charge would
// remain until the cluster recounts, minutes later. The function preflight plans a write without
// making it.
func Preflight(quotas corev1listers.ResourceQuotaLister, preflight func(ctx context.Context, resource schema.GroupResource, old, new runtime.Object) error) admission.ValidationInterface {
	return &plugin{admission.NewHandler(admission.Create), quotas, preflight}
}

type plugin struct {
	*admission.Handler
	quotas    corev1listers.ResourceQuotaLister
	preflight func(ctx context.Context, resource schema.GroupResource, old, new runtime.Object) error
}

// Validate refuses requests that the registry would refuse, if they will be charged. Dry runs are
// planned later and never charged.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetNamespace() == "" || a.GetSubresource() != "" || a.IsDryRun() {
		return nil
	}
	quotas, err := p.quotas.ResourceQuotas(a.GetNamespace()).List(labels.Everything())
	if err != nil {
		return err
	}
	resource := a.GetResource().GroupResource()
	counted := generic.ObjectCountQuotaResourceNameFor(resource)
	for _, q := range quotas {
		if _, charges := q.Status.Hard[counted]; charges {
			return p.preflight(ctx, resource, nil, a.GetObject())
		}
	}
	return nil
}
