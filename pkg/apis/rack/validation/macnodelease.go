package validation

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/internal/check"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/rules"
)

const (
	maxPrefetchImages = 16
	maxNodeTaints     = 128
	maxCaches         = 8
	mebibyte          = 1 << 20
)

var (
	minCacheSize = resource.MustParse("64Mi")
	maxCacheSize = resource.MustParse("16Ti")
)

// ValidateMacNodeLease returns the errors in a new MacNodeLease.
func ValidateMacNodeLease(lease *rack.MacNodeLease) field.ErrorList {
	errs := check.NewMeta(&lease.ObjectMeta, true, apivalidation.NameIsDNSLabel)
	return append(errs, validateMacNodeLeaseSpec(&lease.Spec, field.NewPath("spec"))...)
}

// ValidateMacNodeLeaseUpdate returns the errors in a change of a MacNodeLease.
func ValidateMacNodeLeaseUpdate(lease, oldLease *rack.MacNodeLease) field.ErrorList {
	path := field.NewPath("spec")
	errs := check.UpdatedMeta(&lease.ObjectMeta, &oldLease.ObjectMeta)
	errs = append(errs, validateMacNodeLeaseSpec(&lease.Spec, path)...)
	errs = append(errs, check.Unchanged(lease.Spec.ClassName, oldLease.Spec.ClassName, "create another lease instead", path.Child("className"))...)
	errs = append(errs, check.Unchanged(lease.Spec.SerialNumber, oldLease.Spec.SerialNumber, "create another lease instead", path.Child("serialNumber"))...)
	errs = append(errs, check.Unchanged(lease.Spec.Caches, oldLease.Spec.Caches, "create another lease instead", path.Child("caches"))...)
	if new, old := minimumDuration(&lease.Spec), minimumDuration(&oldLease.Spec); new.Value() >= rules.MinimumLeaseDuration && new.Value() < old.Value() {
		// Forbidden, not Invalid: a manifest from before the lengthening still has the old value.
		errs = append(errs, field.Forbidden(path.Child("minimumDuration"),
			fmt.Sprintf("%s: it is %s and can only be lengthened; ask for %s or more, not %s", rules.TwentyFourHours, old, old, new)))
	}
	return errs
}

// ValidateMacNodeLeaseStatusUpdate returns the errors in a change of a MacNodeLease's status. The
// planner checks the phase transitions of a lease with a Mac, because they depend on the time.
func ValidateMacNodeLeaseStatusUpdate(lease, oldLease *rack.MacNodeLease) field.ErrorList {
	path := field.NewPath("status")
	errs := check.UpdatedMeta(&lease.ObjectMeta, &oldLease.ObjectMeta)
	new, old := lease.Status.Phase, oldLease.Status.Phase
	errs = append(errs, check.Enum(new, path.Child("phase"), rack.MacNodeLeasePending, rack.MacNodeLeaseBound,
		rack.MacNodeLeaseHeld, rack.MacNodeLeaseReleasing, rack.MacNodeLeaseReleased)...)
	if oldLease.Status.BoundAt == nil && new != old {
		errs = append(errs, field.Forbidden(path.Child("phase"), fmt.Sprintf("the lease has no Mac, and leaves %s only by its binding", old)))
	}
	errs = append(errs, validateFloor(&lease.Status, &oldLease.Status, path)...)
	return append(errs, check.Conditions(lease.Status.Conditions, oldLease.Status.Conditions, path.Child("conditions"))...)
}

// validateFloor refuses to set, clear or move the floor, except to restore one that is too short.
func validateFloor(new, old *rack.MacNodeLeaseStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !new.BoundAt.Equal(old.BoundAt) {
		errs = append(errs, field.Invalid(path.Child("boundAt"), timeOrNull(new.BoundAt), fmt.Sprintf("%s: it is %s, set by the lease's binding, and never changes", rules.TwentyFourHours, timeOrNull(old.BoundAt))))
	}
	restored := new.EarliestReleaseAt != nil && old.BoundAt != nil && (old.EarliestReleaseAt == nil || old.EarliestReleaseAt.Before(new.EarliestReleaseAt))
	if !new.EarliestReleaseAt.Equal(old.EarliestReleaseAt) && !restored {
		errs = append(errs, field.Invalid(path.Child("earliestReleaseAt"), timeOrNull(new.EarliestReleaseAt),
			fmt.Sprintf("%s: it is %s, which follows from the lease's binding, and never moves backwards", rules.TwentyFourHours, timeOrNull(old.EarliestReleaseAt))))
	}
	return errs
}

func timeOrNull(t *metav1.Time) string {
	if t == nil {
		return "null"
	}
	return t.UTC().Format(time.RFC3339)
}

// ValidateMacNodeLeaseBinding returns the errors in a MacNodeLeaseBinding.
func ValidateMacNodeLeaseBinding(binding *rack.MacNodeLeaseBinding) field.ErrorList {
	return check.Name(binding.NodeName, field.NewPath("nodeName"))
}

// ValidateMacNodeLeaseRelease returns the errors in a MacNodeLeaseRelease.
func ValidateMacNodeLeaseRelease(release *rack.MacNodeLeaseRelease) field.ErrorList {
	path := field.NewPath("nodeTaints")
	if n := len(release.NodeTaints); n > maxNodeTaints {
		return field.ErrorList{field.TooMany(path, n, maxNodeTaints)}
	}
	var errs field.ErrorList
	for i, taint := range release.NodeTaints {
		errs = append(errs, validateTaint(taint, path.Index(i))...)
	}
	return errs
}

func minimumDuration(spec *rack.MacNodeLeaseSpec) *scalar.Duration {
	if spec.MinimumDuration == nil {
		return scalar.NewDuration(rules.MinimumLeaseDuration)
	}
	return spec.MinimumDuration
}

func validateMacNodeLeaseSpec(spec *rack.MacNodeLeaseSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.ClassName == "" {
		errs = append(errs, field.Required(path.Child("className"), "name a MacNodeClass, as the RackConfig has no defaultClassName; see: kubectl get macnodeclasses"))
	} else {
		errs = append(errs, check.Name(spec.ClassName, path.Child("className"))...)
	}
	if spec.SerialNumber != "" {
		errs = append(errs, check.SerialNumber(spec.SerialNumber, path.Child("serialNumber"))...)
	}
	errs = append(errs, check.Names(spec.PrefetchImages, maxPrefetchImages, path.Child("prefetchImages"))...)

	minimum, at := minimumDuration(spec), path.Child("minimumDuration")
	errs = append(errs, validateMinimumDuration(minimum, at)...)
	if spec.ExpireAfter != nil {
		errs = append(errs, validateExpireAfter(spec.ExpireAfter, minimum, path.Child("expireAfter"))...)
	}
	return append(errs, validateCaches(spec.Caches, path.Child("caches"))...)
}

// validateCaches checks the caches of a lease. A name is the name of a directory on the Mac and in
// its guests.
func validateCaches(caches []rack.LeaseCache, path *field.Path) field.ErrorList {
	if n := len(caches); n > maxCaches {
		return field.ErrorList{field.TooMany(path, n, maxCaches)}
	}
	var errs field.ErrorList
	names := map[string]bool{}
	for i, cache := range caches {
		at := path.Index(i)
		errs = append(errs, check.Label(cache.Name, at.Child("name"))...)
		errs = append(errs, validateCacheSize(cache.SizeLimit, at.Child("sizeLimit"))...)
		if names[cache.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), cache.Name))
		}
		names[cache.Name] = true
	}
	return errs
}

func validateCacheSize(size scalar.Quantity, path *field.Path) field.ErrorList {
	if errs := check.Amount(size, minCacheSize, maxCacheSize, path); len(errs) > 0 {
		return errs
	}
	if size.Int64()%mebibyte != 0 {
		return field.ErrorList{field.Invalid(path, size.Text, "must be whole MiB, such as 50Gi or 512Mi")}
	}
	return nil
}

func validateMinimumDuration(minimum *scalar.Duration, path *field.Path) field.ErrorList {
	value, errs := check.ParsedDuration(minimum, path)
	if len(errs) > 0 {
		return errs
	}
	if err := rules.CheckMinimumDuration(value); err != nil {
		return field.ErrorList{field.Invalid(path, minimum.Text, err.Error())}
	}
	return check.WholeSeconds(minimum, path)
}

func validateExpireAfter(expireAfter, minimum *scalar.Duration, path *field.Path) field.ErrorList {
	value, errs := check.ParsedDuration(expireAfter, path)
	switch {
	case len(errs) > 0:
		return errs
	case value < minimum.Value():
		return field.ErrorList{field.Invalid(path, expireAfter.Text, fmt.Sprintf("must be spec.minimumDuration, %s, or more; leave the field out for a lease that does not end by itself", minimum))}
	case value > rules.MaxLeaseDuration:
		return field.ErrorList{field.Invalid(path, expireAfter.Text, fmt.Sprintf("must be %s or less; leave the field out for a lease that does not end by itself", scalar.NewDuration(rules.MaxLeaseDuration)))}
	}
	return check.WholeSeconds(expireAfter, path)
}

// validateTaint checks a taint in the form of kubectl, key=value:effect or key:effect.
func validateTaint(taint string, path *field.Path) field.ErrorList {
	if errs := check.Text(taint, 512, path); len(errs) > 0 {
		return errs
	}
	keyValue, effect, found := strings.Cut(taint, ":")
	key, value, _ := strings.Cut(keyValue, "=")
	valid := found && len(utilvalidation.IsQualifiedName(key)) == 0 && len(utilvalidation.IsValidLabelValue(value)) == 0
	switch effect {
	case "NoSchedule", "PreferNoSchedule", "NoExecute":
	default:
		valid = false
	}
	if !valid {
		return field.ErrorList{field.Invalid(path, taint, "must be key=value:effect or key:effect, with the effect NoSchedule, PreferNoSchedule or NoExecute")}
	}
	return nil
}
