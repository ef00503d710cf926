package v1alpha1

import (
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/rules"
)

// SetDefaults_InstanceClass sets the default display, synchronization and network of a class.
func SetDefaults_InstanceClass(obj *InstanceClass) {
	if obj.Spec.Display == nil {
		obj.Spec.Display = &Display{Width: 1920, Height: 1200}
	}
	if obj.Spec.Display.PixelsPerInch == 0 {
		obj.Spec.Display.PixelsPerInch = 144
	}
	if obj.Spec.Synchronization == "" {
		obj.Spec.Synchronization = DiskSynchronizationFsync
	}
	if obj.Spec.Network.Mode == "" {
		obj.Spec.Network.Mode = NetworkIsolated
	}
}

// SetDefaults_MacOSInstance sets the only request that an instance can have.
func SetDefaults_MacOSInstance(obj *MacOSInstance) {
	if len(obj.Spec.Resources.Requests) == 0 {
		obj.Spec.Resources.Requests = ResourceList{rules.ResourceMacOSVM: scalar.MustParse("1")}
	}
}

// SetDefaults_MacOSInstanceStop sets the default grace period.
func SetDefaults_MacOSInstanceStop(obj *MacOSInstanceStop) {
	if obj.GracePeriodSeconds == nil {
		seconds := int64(rules.DefaultStopGrace.Seconds())
		obj.GracePeriodSeconds = &seconds
	}
}
