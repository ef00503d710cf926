package instanceclass

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/instance/install"
	"macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/registry/genericstrategy/strategytest"
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return scheme
}

func TestStrategy(t *testing.T) {
	stored := func() *instance.InstanceClass {
		return &instance.InstanceClass{
			ObjectMeta: metav1.ObjectMeta{Name: "small", UID: "u1", ResourceVersion: "1", Generation: 1},
			Spec:       instance.InstanceClassSpec{Resources: instance.InstanceClassResources{CPU: scalar.MustParse("4"), Memory: scalar.MustParse("8Gi")}, Synchronization: instance.DiskSynchronizationFsync, Network: instance.Network{Mode: instance.NetworkIsolated}},
		}
	}
	strategy := NewStrategy(newScheme())
	class := stored()
	class.ResourceVersion, class.Generation = "", 7
	require.NoError(t, strategytest.Create(t, strategy, class))
	assert.EqualValues(t, 1, class.Generation)

	class = stored()
	class.Labels = map[string]string{"a": "b"}
	class.Spec.Resources.Memory = scalar.MustParse("8192Mi")
	require.NoError(t, strategytest.Update(t, strategy, class, stored()))
	assert.EqualValues(t, 1, class.Generation, "8192Mi are 8Gi")

	class.Spec.Resources.CPU = scalar.MustParse("8")
	assert.ErrorContains(t, strategytest.Update(t, strategy, class, stored()), "field is immutable")

	_, set, err := GetAttrs(stored())
	require.NoError(t, err)
	strategytest.Selectors(t, newScheme(), v1alpha1.SchemeGroupVersion.WithKind("InstanceClass"), set)
}
