// Package quota has ResourceQuotas of the cluster count objects of this server: count/macnodeleases.rack.macrack.io limits
// how many Macs a namespace leases, Held ones included, as they are its own until their floor.
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

// Enable adds the plugin to those of a server, as the last, as it charges for what is created.
func Enable(o *genericoptions.AdmissionOptions) {
	resourcequota.Register(o.Plugins)
	o.RecommendedPluginOrder = append(o.RecommendedPluginOrder, resourcequota.PluginName)
	o.Decorators = append(admission.Decorators{admission.DecoratorFunc(decorate)}, o.Decorators...)
}

// decorate has whoever lost too many races for a quota try again: that it is another's quota object that has changed
// meanwhile is no error of the request, and clients do try again what is too much for the moment.
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

// Initializer returns what tells the plugin what to count: any object but records, so that no quota keeps a rejection
// off the ledger.
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

// Preflight returns the admission plugin that belongs before the one that charges. What the registry refuses is refused
// before it is charged for: the charge would stay until the cluster counts again, minutes later. The function preflight
// plans a write without making it.
func Preflight(quotas corev1listers.ResourceQuotaLister, preflight func(ctx context.Context, resource schema.GroupResource, old, new runtime.Object) error) admission.ValidationInterface {
	return &plugin{admission.NewHandler(admission.Create), quotas, preflight}
}

type plugin struct {
	*admission.Handler
	quotas    corev1listers.ResourceQuotaLister
	preflight func(ctx context.Context, resource schema.GroupResource, old, new runtime.Object) error
}

// Validate refuses what the registry would, if a quota is to be charged. Dry runs are planned later, and never charged.
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
