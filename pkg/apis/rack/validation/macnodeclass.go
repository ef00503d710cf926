// Package validation validates objects of rack.macrack.io by themselves. Rules that depend on other
// objects are checked in the transaction of the write.
package validation

import (
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/internal/check"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
)

// Limits of the resources of one Mac. They are far above those of any model and only catch typing
// errors.
var (
	zero       = resource.MustParse("0")
	one        = resource.MustParse("1")
	maxCPU     = resource.MustParse("1024")
	maxMemory  = resource.MustParse("16Ti")
	maxStorage = resource.MustParse("1Pi")
)

var modelIdentifier = regexp.MustCompile(`^[A-Za-z]{1,32}[0-9]{1,4},[0-9]{1,4}$`)

const maxModelIdentifiers = 64

// ValidateMacNodeClass returns the errors in a new MacNodeClass.
func ValidateMacNodeClass(class *rack.MacNodeClass) field.ErrorList {
	errs := check.NewMeta(&class.ObjectMeta, false, apivalidation.NameIsDNSSubdomain)
	return append(errs, validateMacNodeClassSpec(&class.Spec, field.NewPath("spec"))...)
}

// ValidateMacNodeClassUpdate returns the errors in a change of a MacNodeClass.
func ValidateMacNodeClassUpdate(class, old *rack.MacNodeClass) field.ErrorList {
	errs := check.UpdatedMeta(&class.ObjectMeta, &old.ObjectMeta)
	return append(errs, validateMacNodeClassSpec(&class.Spec, field.NewPath("spec"))...)
}

// ValidateMacNodeClassStatusUpdate returns the errors in a change of a MacNodeClass's status.
func ValidateMacNodeClassStatusUpdate(class, old *rack.MacNodeClass) field.ErrorList {
	errs := check.UpdatedMeta(&class.ObjectMeta, &old.ObjectMeta)
	path := field.NewPath("status")
	status := &class.Status
	var sum int64
	for _, count := range []struct {
		name string
		n    int32
	}{
		{"available", status.Available},
		{"leased", status.Leased},
		{"held", status.Held},
		{"quarantined", status.Quarantined},
		{"offline", status.Offline},
	} {
		errs = append(errs, check.NotNegative(count.n, path.Child(count.name))...)
		sum += int64(count.n)
	}
	errs = append(errs, check.NotNegative(status.Total, path.Child("total"))...)
	errs = append(errs, check.NotNegative(status.Occupied, path.Child("occupied"))...)
	if status.Occupied > status.Total {
		errs = append(errs, field.Invalid(path.Child("occupied"), status.Occupied, fmt.Sprintf("must be at most total (%d)", status.Total)))
	}
	if sum > int64(status.Total) {
		errs = append(errs, field.Invalid(path.Child("total"), status.Total, fmt.Sprintf("the other counts add up to %d; each Mac is in one of them", sum)))
	}
	return errs
}

func validateMacNodeClassSpec(spec *rack.MacNodeClassSpec, path *field.Path) field.ErrorList {
	errs := check.RequiredText(spec.Model, 128, path.Child("model"))
	errs = append(errs, check.RequiredText(spec.Chip, 128, path.Child("chip"))...)
	errs = append(errs, check.Text(spec.SKU, 128, path.Child("sku"))...)

	identifiers := path.Child("modelIdentifiers")
	if n := len(spec.ModelIdentifiers); n > maxModelIdentifiers {
		errs = append(errs, field.TooMany(identifiers, n, maxModelIdentifiers))
	} else {
		for i, id := range spec.ModelIdentifiers {
			if !modelIdentifier.MatchString(id) {
				errs = append(errs, field.Invalid(identifiers.Index(i), id, `must be what macOS reports, such as "Mac16,10"`))
			}
		}
		errs = append(errs, check.Unique(spec.ModelIdentifiers, identifiers)...)
	}

	capacity, reserved := path.Child("capacity"), path.Child("hostReserved")
	for _, r := range []struct {
		name               string
		capacity, reserved scalar.Quantity
		maximum            resource.Quantity
	}{
		{"cpu", spec.Capacity.CPU, spec.HostReserved.CPU, maxCPU},
		{"memory", spec.Capacity.Memory, spec.HostReserved.Memory, maxMemory},
		{"storage", spec.Capacity.Storage, spec.HostReserved.Storage, maxStorage},
	} {
		errs = append(errs, check.Amount(r.capacity, one, r.maximum, capacity.Child(r.name))...)
		errs = append(errs, check.Amount(r.reserved, zero, r.maximum, reserved.Child(r.name))...)
		if total, kept := r.capacity.Value(), r.reserved.Value(); kept.Sign() > 0 && kept.Cmp(total) >= 0 {
			errs = append(errs, field.Invalid(reserved.Child(r.name), r.reserved.Text, fmt.Sprintf("must be less than the capacity, %s: the rest is for virtual machines", total.String())))
		}
	}
	return errs
}
