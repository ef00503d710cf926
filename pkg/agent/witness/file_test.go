package witness

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness.json")
	f, err := Open(path)
	require.NoError(t, err)
	assert.Nil(t, f.get())
	require.NoError(t, f.change(func(kept *stored) (*stored, error) {
		return &stored{"C02TEST", rackv1alpha1.MacNodeWitness{Head: rackv1alpha1.ChainPosition{Sequence: 7, Hash: "g"}}}, nil
	}))
	f, err = Open(path)
	require.NoError(t, err)
	assert.EqualValues(t, 7, f.get().Head.Sequence)
	assert.Equal(t, "C02TEST", f.get().SerialNumber)

	require.NoError(t, os.WriteFile(path, []byte(`{"serialNumber": "C0`), 0o600))
	_, err = Open(path)
	assert.ErrorContains(t, err, "delete "+path, "an agent without its witness would trust any server")
}
