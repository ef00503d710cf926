// Package quota has ResourceQuotas of the cluster count objects of this server: count/macnodeleases.rack.macrack.io limits
// how many Macs a namespace leases, Held ones included, as they are its own until their floor.
package quota

import (
	"context"

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
