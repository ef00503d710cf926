package apiserver

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"

	"macrack.io/macrack/pkg/registry/instance/macosinstance"
	"macrack.io/macrack/pkg/registry/rack/auditrecord"
	"macrack.io/macrack/pkg/registry/rack/macnodelease"
)

var errTerminating = errors.New("the namespace is being terminated")

// terminating refuses everything.
type terminating struct{ *admission.Handler }

func (terminating) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return errTerminating
}

func TestAddingOnly(t *testing.T) {
	plugin := terminating{admission.NewHandler(admission.Create)}
	decorated := onlyCreates(plugin, lifecycle.PluginName).(admission.MutationInterface)
	assert.True(t, decorated.Handles(admission.Create))
	for _, tt := range []struct {
		resource    schema.GroupResource
		subresource string
		want        error
	}{
		{macnodelease.Resource, "", errTerminating},
		{macosinstance.Resource, "", errTerminating},
		{macnodelease.Resource, "release", nil},
		{macosinstance.Resource, "stop", nil},
		{auditrecord.Resource, "", nil},
	} {
		a := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "acme", "x", tt.resource.WithVersion("v1alpha1"), tt.subresource, admission.Create, nil, false, nil)
		assert.Equal(t, tt.want, decorated.Admit(t.Context(), a, nil), "%s/%s", tt.resource, tt.subresource)
	}
	assert.Equal(t, admission.Interface(plugin), onlyCreates(plugin, "Another"), "only that plugin")
}
