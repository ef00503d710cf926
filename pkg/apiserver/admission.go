package apiserver

import (
	"context"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"

	"macrack.io/macrack/pkg/registry/rack/auditrecord"
)

// onlyCreates limits the plugin NamespaceLifecycle to requests that add objects to a namespace. The
// deletion of a namespace requires that subresources stop its instances and release its leases, and
// that these events are recorded.
func onlyCreates(handler admission.Interface, name string) admission.Interface {
	plugin, ok := handler.(admission.MutationInterface)
	if name != lifecycle.PluginName || !ok {
		return handler
	}
	return createAdmission{plugin}
}

type createAdmission struct{ admission.MutationInterface }

// Admit admits requests that do not create an object.
func (p createAdmission) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" || a.GetResource().GroupResource() == auditrecord.Resource {
		return nil
	}
	return p.MutationInterface.Admit(ctx, a, o)
}
