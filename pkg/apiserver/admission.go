package apiserver

import (
	"context"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"

	"macrack.io/macrack/pkg/registry/rack/auditrecord"
)

// adding limits the plugin NamespaceLifecycle to requests that add objects to a namespace. The
// deletion of a namespace requires that subresources stop its instances and release its leases, and
// that these events are recorded.
func adding(handler admission.Interface, name string) admission.Interface {
	plugin, ok := handler.(admission.MutationInterface)
	if name != lifecycle.PluginName || !ok {
		return handler
	}
	return addingOnly{plugin}
}

type addingOnly struct{ admission.MutationInterface }

// Admit admits requests that add no object.
func (p addingOnly) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" || a.GetResource().GroupResource() == auditrecord.Resource {
		return nil
	}
	return p.MutationInterface.Admit(ctx, a, o)
}
