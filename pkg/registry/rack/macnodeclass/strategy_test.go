package macnodeclass

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/install"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/registry/genericstrategy/strategytest"
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return scheme
}

func stored() *rack.MacNodeClass {
	return &rack.MacNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "m4", UID: "u1", ResourceVersion: "1", Generation: 1, Labels: map[string]string{"a": "b"}},
		Spec: rack.MacNodeClassSpec{
			Model: "Mac mini (2024)", Chip: "Apple M4",
			Capacity: rack.MachineResources{CPU: scalar.MustParse("10"), Memory: scalar.MustParse("16Gi"), Storage: scalar.MustParse("256G")},
		},
		Status: rack.MacNodeClassStatus{Total: 2, Available: 1},
	}
}

func TestStrategy(t *testing.T) {
	strategy := NewStrategy(newScheme())
	class := stored()
	class.ResourceVersion, class.Generation = "", 7
	require.NoError(t, strategytest.Create(t, strategy, class))
	assert.Zero(t, class.Status)
	assert.EqualValues(t, 1, class.Generation)

	class = stored()
	class.Spec.SKU = "m4-24h"
	class.Status.Available = 9
	require.NoError(t, strategytest.Update(t, strategy, class, stored()))
	assert.Equal(t, "m4-24h", class.Spec.SKU)
	assert.Equal(t, stored().Status, class.Status)
	assert.EqualValues(t, 2, class.Generation)

	class = stored()
	class.Labels = nil
	require.NoError(t, strategytest.Update(t, strategy, class, stored()))
	assert.EqualValues(t, 1, class.Generation, "only the spec counts")

	class = stored()
	class.Spec.Chip = ""
	assert.ErrorContains(t, strategytest.Update(t, strategy, class, stored()), "spec.chip")
}

func TestStatusStrategy(t *testing.T) {
	strategy := NewStatusStrategy(NewStrategy(newScheme()))
	class := stored()
	class.Spec.SKU = "forged"
	class.Status.Total = 3
	require.NoError(t, strategytest.Update(t, strategy, class, stored()))
	assert.Equal(t, stored().Spec, class.Spec)
	assert.EqualValues(t, 3, class.Status.Total)
	assert.EqualValues(t, 1, class.Generation)
	strategytest.KeepsMetadata(t, strategy, stored())

	class.Status.Available = -1
	assert.ErrorContains(t, strategytest.Update(t, strategy, class, stored()), "status.available")
}

func TestResetFields(t *testing.T) {
	strategy := NewStrategy(newScheme())
	version := fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String())
	assert.True(t, strategy.GetResetFields()[version].Has(fieldpath.MakePathOrDie("status")))
	assert.True(t, NewStatusStrategy(strategy).GetResetFields()[version].Has(fieldpath.MakePathOrDie("spec")))
}
