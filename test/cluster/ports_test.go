package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFixedPorts(t *testing.T) {
	p := ports{Base: 16440}
	seen := map[int]string{}
	names := []string{"mac-1", "mac-32"}
	for name := range portOffsets {
		names = append(names, name)
	}
	for _, name := range names {
		port, err := p.of(name)
		require.NoError(t, err)
		assert.Empty(t, seen[port], "%s has the same port", name)
		seen[port] = name
	}
	_, err := p.of("kubelet")
	assert.Error(t, err)
}

func TestFreePorts(t *testing.T) {
	var p ports
	first, err := p.of("etcd")
	require.NoError(t, err)
	again, err := p.of("etcd")
	require.NoError(t, err)
	other, err := p.of("etcd-peer")
	require.NoError(t, err)
	assert.Equal(t, first, again)
	assert.NotEqual(t, first, other)
}
