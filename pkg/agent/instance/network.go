package instance

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules/egress"
	"macrack.io/macrack/pkg/vm/contract"
)

// networkOf returns the network of a virtual machine of a class.
func (s *starter) networkOf(ctx context.Context, class *instancev1alpha1.InstanceClass) (contract.Network, error) {
	config, err := s.Client.ConfigV1alpha1().RackConfigs().Get(ctx, configv1alpha1.RackConfigName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		config, err = &configv1alpha1.RackConfig{}, nil
	}
	if err != nil {
		return contract.Network{}, err
	}
	return guestNetwork(&config.Spec.GuestNetwork, &class.Spec.Network)
}

// guestNetwork narrows the destinations of the RackConfig by those of the class.
func guestNetwork(config *configv1alpha1.GuestNetworkConfig, class *instancev1alpha1.Network) (contract.Network, error) {
	if class.Mode == instancev1alpha1.NetworkNAT {
		return contract.Network{Mode: contract.NetworkNAT}, nil
	}
	allowed, err := egress.ParseAllowList(config.AllowedCIDRs, config.AllowedNames)
	if err != nil {
		return contract.Network{}, fmt.Errorf("spec.guestNetwork of the RackConfig: %w", err)
	}
	if class.Limits != nil {
		limits, err := egress.ParseAllowList(class.Limits.AllowedCIDRs, class.Limits.AllowedNames)
		if err != nil {
			return contract.Network{}, fmt.Errorf("spec.network.limits of the InstanceClass: %w", err)
		}
		allowed = allowed.Narrow(limits)
	}
	network := contract.Network{Mode: contract.NetworkIsolated, AllowedNames: allowed.Names}
	for _, cidr := range allowed.CIDRs {
		network.AllowedCIDRs = append(network.AllowedCIDRs, cidr.String())
	}
	return network, nil
}
