package instance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/vm/contract"
)

func TestGuestNetwork(t *testing.T) {
	rack := configv1alpha1.GuestNetworkConfig{AllowedCIDRs: []string{"10.0.0.0/8"}, AllowedNames: []string{"*.corp"}}
	tests := map[string]struct {
		rack  configv1alpha1.GuestNetworkConfig
		class instancev1alpha1.Network
		want  contract.Network
	}{
		"nothing allowed":       {want: contract.Network{Mode: contract.NetworkIsolated}},
		"a class of old":        {rack: rack, want: contract.Network{Mode: contract.NetworkIsolated, AllowedCIDRs: rack.AllowedCIDRs, AllowedNames: rack.AllowedNames}},
		"the RackConfig's list": {rack: rack, class: instancev1alpha1.Network{Mode: instancev1alpha1.NetworkIsolated}, want: contract.Network{Mode: contract.NetworkIsolated, AllowedCIDRs: rack.AllowedCIDRs, AllowedNames: rack.AllowedNames}},
		"a class with nothing":  {rack: rack, class: instancev1alpha1.Network{Limits: &instancev1alpha1.NetworkLimits{}}, want: contract.Network{Mode: contract.NetworkIsolated}},
		"a narrower class": {
			rack:  rack,
			class: instancev1alpha1.Network{Limits: &instancev1alpha1.NetworkLimits{AllowedCIDRs: []string{"10.1.0.0/16", "192.168.0.0/16"}, AllowedNames: []string{"git.corp", "git.example.com"}}},
			want:  contract.Network{Mode: contract.NetworkIsolated, AllowedCIDRs: []string{"10.1.0.0/16"}, AllowedNames: []string{"git.corp"}},
		},
		"NAT": {rack: rack, class: instancev1alpha1.Network{Mode: instancev1alpha1.NetworkNAT}, want: contract.Network{Mode: contract.NetworkNAT}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := guestNetwork(&tt.rack, &tt.class)
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
	_, err := guestNetwork(&configv1alpha1.GuestNetworkConfig{AllowedCIDRs: []string{"ten"}}, &instancev1alpha1.Network{})
	assert.ErrorContains(t, err, `spec.guestNetwork of the RackConfig: "ten"`)
}
