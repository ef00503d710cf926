package noderestriction

import (
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
)

func macNode(name string, ready metav1.ConditionStatus) *rack.MacNode {
	return &rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: rack.MacNodeStatus{
		Conditions: []metav1.Condition{{Type: rack.MacNodeReady, Status: ready}, {Type: rack.MacNodeSlotsHealthy, Status: metav1.ConditionTrue}},
	}}
}

func macOSInstance(node, pod string) *instance.MacOSInstance {
	return &instance.MacOSInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "one"}, Status: instance.MacOSInstanceStatus{NodeName: node, PodName: pod}}
}

func TestAdmission(t *testing.T) {
	nodes, instances := rack.Resource("macnodes"), instance.Resource("macosinstances")
	healthy := macNode("mac-1", metav1.ConditionTrue)
	healthy.Status.BootID = "2"
	for name, tt := range map[string]struct {
		user        user.Info
		operation   admission.Operation
		resource    schema.GroupResource
		subresource string
		old, new    runtime.Object
		refused     string
	}{
		"its own MacNode":             {operation: admission.Update, resource: nodes, subresource: "status", old: macNode("mac-1", metav1.ConditionTrue), new: healthy},
		"another MacNode":             {operation: admission.Update, resource: nodes, subresource: "status", old: macNode("mac-2", metav1.ConditionTrue), new: healthy, refused: "its own MacNode"},
		"its own health":              {operation: admission.Update, resource: nodes, subresource: "status", old: macNode("mac-1", metav1.ConditionFalse), new: healthy, refused: "heartbeats"},
		"the spec":                    {operation: admission.Update, resource: nodes, old: macNode("mac-1", metav1.ConditionTrue), new: healthy, refused: "may only write statuses"},
		"a new MacNode":               {operation: admission.Create, resource: nodes, new: healthy, refused: "may only write statuses"},
		"a MacNode away":              {operation: admission.Delete, resource: nodes, old: healthy, refused: "may only write statuses"},
		"an instance of its own":      {operation: admission.Update, resource: instances, subresource: "status", old: macOSInstance("mac-1", "p"), new: macOSInstance("mac-1", "p")},
		"an instance elsewhere":       {operation: admission.Update, resource: instances, subresource: "status", old: macOSInstance("mac-2", "p"), new: macOSInstance("mac-1", "p"), refused: "on its own Mac"},
		"an instance that is nowhere": {operation: admission.Update, resource: instances, subresource: "status", old: macOSInstance("", ""), new: macOSInstance("mac-1", ""), refused: "on its own Mac"},
		"another placeholder":         {operation: admission.Update, resource: instances, subresource: "status", old: macOSInstance("mac-1", "p"), new: macOSInstance("mac-1", "q"), refused: "placeholder"},
		"an instance to stop":         {operation: admission.Create, resource: instances, subresource: "stop", new: &instance.MacOSInstanceStop{}, refused: "may only write statuses"},
		"an image's status":           {operation: admission.Update, resource: image.Resource("macosimages"), subresource: "status", old: &image.MacOSImage{}, new: &image.MacOSImage{}, refused: "only the status of its MacNode"},
		"a report":                    {operation: admission.Create, resource: rack.Resource("auditrecords"), new: &rack.AuditRecord{}},
		"no agent at all":             {user: tenant, operation: admission.Update, resource: nodes, subresource: "status", old: macNode("mac-2", metav1.ConditionTrue), new: healthy},
		"an agent without a Node":     {user: impostor, operation: admission.Update, resource: nodes, subresource: "status", old: macNode("mac-1", metav1.ConditionTrue), new: healthy, refused: "not the user of a Node"},
		"an agent without a Node, an instance without a Mac": {user: impostor, operation: admission.Update, resource: instances, subresource: "status", old: macOSInstance("", ""), new: macOSInstance("", ""), refused: "not the user of a Node"},
	} {
		t.Run(name, func(t *testing.T) {
			var who user.Info = agent
			if tt.user != nil {
				who = tt.user
			}
			a := admission.NewAttributesRecord(tt.new, tt.old, schema.GroupVersionKind{}, "acme", "x", tt.resource.WithVersion("v1alpha1"), tt.subresource, tt.operation, nil, false, who)
			plugin := New()
			assert.True(t, plugin.Handles(tt.operation))
			err := plugin.Validate(t.Context(), a, nil)
			if tt.refused == "" {
				assert.NoError(t, err)
				return
			}
			assert.True(t, apierrors.IsForbidden(err), "%v", err)
			assert.ErrorContains(t, err, tt.refused)
		})
	}
}
