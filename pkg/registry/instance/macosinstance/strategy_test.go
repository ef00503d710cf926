package macosinstance

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/instance/install"
	"macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/registry/genericstrategy/strategytest"
	"macrack.io/macrack/pkg/rules"
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return scheme
}

func stored() *instance.MacOSInstance {
	return &instance.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Name: "vm1", Namespace: "acme", UID: "u1", ResourceVersion: "1", Generation: 1, Finalizers: []string{rules.FinalizerVM}},
		Spec: instance.MacOSInstanceSpec{
			LeaseName: "ci", ClassName: "small", ImageName: "macos-26",
			Resources: instance.InstanceResources{Requests: instance.ResourceList{rules.ResourceMacOSVM: scalar.MustParse("1")}},
		},
		Status: instance.MacOSInstanceStatus{
			Phase: instance.MacOSInstanceStopping, NamespaceUID: "ns-1", NodeName: "mac-a1", SerialNumber: "C07DR00AQ6NV",
			StopRequest: &instance.StopRequest{At: metav1.NewTime(time.Unix(1, 0)), By: "acme"},
		},
	}
}

func TestStrategy(t *testing.T) {
	strategy := NewStrategy(newScheme())
	for _, finalizers := range [][]string{nil, {rules.FinalizerVM}, {"example.com/x"}} {
		i := stored()
		i.ResourceVersion, i.Generation, i.Finalizers = "", 7, finalizers
		require.NoError(t, strategytest.Create(t, strategy, i))
		assert.Equal(t, instance.MacOSInstanceStatus{Phase: instance.MacOSInstancePending}, i.Status)
		assert.EqualValues(t, 1, i.Generation)
		var own int
		for _, finalizer := range i.Finalizers {
			if finalizer == rules.FinalizerVM {
				own++
			}
		}
		assert.Equal(t, 1, own, "the finalizer that keeps the virtual machine's slot")
	}

	i := stored()
	i.Status = instance.MacOSInstanceStatus{}
	i.Labels = map[string]string{"a": "b"}
	require.NoError(t, strategytest.Update(t, strategy, i, stored()))
	assert.Equal(t, stored().Status, i.Status)
	assert.EqualValues(t, 1, i.Generation)

	i.Spec.ImageName = "macos-27"
	assert.ErrorContains(t, strategytest.Update(t, strategy, i, stored()), "field is immutable")
}

func TestStatusStrategy(t *testing.T) {
	strategy := NewStatusStrategy(NewStrategy(newScheme()))
	i := stored()
	i.Spec.ImageName = "forged"
	i.Status = instance.MacOSInstanceStatus{Phase: instance.MacOSInstanceStopped, NodeName: "forged", SerialNumber: "forged", Message: "it was asked to stop"}
	want := stored().Status
	want.Phase, want.Message = i.Status.Phase, i.Status.Message
	require.NoError(t, strategytest.Update(t, strategy, i, stored()))
	assert.Equal(t, want, i.Status)
	assert.Equal(t, stored().Spec, i.Spec)
	strategytest.KeepsMetadata(t, strategy, stored())

	i.Status.Phase = instance.MacOSInstanceRunning
	assert.ErrorContains(t, strategytest.Update(t, strategy, i, stored()), "status.phase")
}

func TestGuestsCannotSpoilReports(t *testing.T) {
	strategy := NewStatusStrategy(NewStrategy(newScheme()))
	scheduled := metav1.Condition{Type: "Scheduled", Status: "True", Reason: "Scheduled", LastTransitionTime: metav1.NewTime(time.Unix(1, 0))}
	i := stored()
	i.Status.Message = strings.Repeat("m", 1<<16)
	i.Status.Startup = &instance.StartupResult{Output: strings.Repeat("o", 4094) + "\xbc\xffend\n"}
	i.Status.IPAddress = &instance.IPAddress{Value: "fe80::1%en0", Source: "GuestAgent"}
	i.Status.Conditions = []metav1.Condition{scheduled}
	i.Status.Conditions[0].Message = strings.Repeat("m", 1<<16)
	require.NoError(t, strategytest.Update(t, strategy, i, stored()))
	assert.Len(t, i.Status.Message, 32<<10)
	assert.Len(t, i.Status.Conditions[0].Message, 32<<10)
	assert.Len(t, i.Status.Startup.Output, 4096)
	assert.True(t, strings.HasSuffix(i.Status.Startup.Output, "o\uFFFDend\n"), "the end of the output counts")
	assert.Nil(t, i.Status.IPAddress)

	i = stored()
	i.Status.IPAddress = &instance.IPAddress{Value: "192.168.64.2", Source: "GuestAgent"}
	require.NoError(t, strategytest.Update(t, strategy, i, stored()))
	assert.Equal(t, "192.168.64.2", i.Status.IPAddress.Value)
}

func TestResetFields(t *testing.T) {
	strategy := NewStrategy(newScheme())
	version := fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String())
	assert.True(t, strategy.GetResetFields()[version].Has(fieldpath.MakePathOrDie("status")))
	reset := NewStatusStrategy(strategy).GetResetFields()[version]
	assert.True(t, reset.Has(fieldpath.MakePathOrDie("status", "stopRequest")))
	assert.False(t, reset.Has(fieldpath.MakePathOrDie("status", "machineID")))
}

func TestSelectableFields(t *testing.T) {
	_, set, err := GetAttrs(stored())
	require.NoError(t, err)
	strategytest.Selectors(t, newScheme(), v1alpha1.SchemeGroupVersion.WithKind("MacOSInstance"), set)
	assert.Len(t, set, 6)
	predicate := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.OneTermEqualSelector("status.nodeName", "mac-a1"), GetAttrs: GetAttrs}
	match, err := predicate.Matches(stored())
	require.NoError(t, err)
	assert.True(t, match)
	_, _, err = GetAttrs(&instance.InstanceClass{})
	assert.ErrorContains(t, err, "is not a *instance.MacOSInstance")
}
