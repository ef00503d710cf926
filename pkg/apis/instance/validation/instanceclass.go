// Package validation validates objects of instance.macrack.io by themselves. Rules that depend on
// other objects are checked in the transaction of the write.
package validation

import (
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/internal/check"
	"macrack.io/macrack/pkg/apis/scalar"
)

// Limits of a virtual machine. Virtualization.framework accepts memory in whole MiB only.
var (
	zero       = resource.MustParse("0")
	one        = resource.MustParse("1")
	maxCPU     = resource.MustParse("1024")
	mebibyte   = resource.MustParse("1Mi")
	maxMemory  = resource.MustParse("16Ti")
	maxStorage = resource.MustParse("1Pi")
)

// ValidateInstanceClass returns the errors in a new InstanceClass.
func ValidateInstanceClass(class *instance.InstanceClass) field.ErrorList {
	errs := check.NewMeta(&class.ObjectMeta, false, apivalidation.NameIsDNSSubdomain)
	path := field.NewPath("spec")
	resources := path.Child("resources")
	errs = append(errs, check.Amount(class.Spec.Resources.CPU, one, maxCPU, resources.Child("cpu"))...)
	errs = append(errs, validateMemory(class.Spec.Resources.Memory, resources.Child("memory"))...)
	errs = append(errs, check.Amount(class.Spec.Resources.Storage, zero, maxStorage, resources.Child("storage"))...)
	if display := class.Spec.Display; display != nil {
		at := path.Child("display")
		errs = append(errs, check.Between(display.Width, 320, 7680, at.Child("width"))...)
		errs = append(errs, check.Between(display.Height, 240, 4320, at.Child("height"))...)
		errs = append(errs, check.Between(display.PixelsPerInch, 50, 600, at.Child("pixelsPerInch"))...)
	}
	errs = append(errs, check.Enum(class.Spec.Synchronization, path.Child("synchronization"), instance.DiskSynchronizationFsync, instance.DiskSynchronizationNone)...)
	return append(errs, validateNetwork(&class.Spec.Network, path.Child("network"))...)
}

func validateNetwork(network *instance.Network, path *field.Path) field.ErrorList {
	errs := check.Enum(network.Mode, path.Child("mode"), instance.NetworkIsolated, instance.NetworkNAT)
	limits, at := network.Limits, path.Child("limits")
	if limits == nil {
		return errs
	}
	if network.Mode == instance.NetworkNAT {
		return append(errs, field.Forbidden(at, "NAT has no limits; omit them, or use mode Isolated"))
	}
	errs = append(errs, check.AllowedCIDRs(limits.AllowedCIDRs, at.Child("allowedCIDRs"))...)
	return append(errs, check.AllowedNames(limits.AllowedNames, at.Child("allowedNames"))...)
}

// ValidateInstanceClassUpdate returns the errors in a change of an InstanceClass.
func ValidateInstanceClassUpdate(class, old *instance.InstanceClass) field.ErrorList {
	errs := check.UpdatedMeta(&class.ObjectMeta, &old.ObjectMeta)
	return append(errs, check.Unchanged(class.Spec, old.Spec, "a new size is a new InstanceClass", field.NewPath("spec"))...)
}

func validateMemory(memory scalar.Quantity, path *field.Path) field.ErrorList {
	if errs := check.Amount(memory, mebibyte, maxMemory, path); len(errs) > 0 {
		return errs
	}
	if memory.Int64()%mebibyte.Value() != 0 {
		return field.ErrorList{field.Invalid(path, memory.Text, "must be whole MiB, such as 8Gi or 6144Mi")}
	}
	return nil
}
