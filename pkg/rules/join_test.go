package rules

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBootstrapGroups(t *testing.T) {
	for mac, group := range map[string]string{
		"mac-1":                "system:bootstrappers:macrack:mac-1",
		"mac-1.ber.example.io": "system:bootstrappers:macrack:mac-1:ber:example:io",
	} {
		assert.Equal(t, group, BootstrapGroupOf(mac))
		assert.Equal(t, []string{mac}, BootstrapMacs([]string{"system:bootstrappers", BootstrapGroup, group}))
	}
	assert.Empty(t, BootstrapMacs([]string{BootstrapGroup, BootstrapGroup + ":", BootstrapGroup + "s:mac-1", "system:bootstrappers:kubeadm:default-node-token"}))
	assert.Equal(t, "mac-1", NodeOfUser(NodeUser("mac-1")))
	assert.Empty(t, NodeOfUser("system:bootstrap:abcdef"))
}
