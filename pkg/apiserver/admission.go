package apiserver

import (
	"context"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"

	"macrack.io/macrack/pkg/registry/rack/auditrecord"
)

// adding has the plugin NamespaceLifecycle look only at what adds something to a namespace. For a namespace that is
// being deleted to go, its instances must be stopped and its leases released, which subresources do; and what happens
// meanwhile goes on record.
func adding(handler admission.Interface, name string) admission.Interface {
	plugin, ok := handler.(admission.MutationInterface)
	if name != lifecycle.PluginName || !ok {
		return handler
	}
	return addingOnly{plugin}
}

type addingOnly struct{ admission.MutationInterface }

// Admit passes what adds nothing.
func (p addingOnly) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" || a.GetResource().GroupResource() == auditrecord.Resource {
		return nil
	}
	return p.MutationInterface.Admit(ctx, a, o)
}
