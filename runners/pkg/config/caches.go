package config

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

const (
	maxCaches = 8
	mebibyte  = 1 << 20
)

var (
	minCacheSize = resource.MustParse("64Mi")
	maxCacheSize = resource.MustParse("16Ti")
)

// allCaches returns the use of all caches of the leases. It is not nil.
func allCaches(caches []rackv1alpha1.LeaseCache) []instancev1alpha1.InstanceCache {
	uses := make([]instancev1alpha1.InstanceCache, 0, len(caches))
	for _, cache := range caches {
		uses = append(uses, instancev1alpha1.InstanceCache{Name: cache.Name})
	}
	return uses
}

// validateLeaseCaches refuses the caches that the API refuses in a lease.
func validateLeaseCaches(caches []rackv1alpha1.LeaseCache, path *field.Path) field.ErrorList {
	if n := len(caches); n > maxCaches {
		return field.ErrorList{field.TooMany(path, n, maxCaches)}
	}
	var errs field.ErrorList
	names := map[string]bool{}
	for i, cache := range caches {
		path := path.Index(i)
		for _, message := range validation.IsDNS1123Label(cache.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), cache.Name, message))
		}
		if names[cache.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), cache.Name))
		}
		names[cache.Name] = true
		errs = append(errs, validateCacheSize(cache.SizeLimit, path.Child("sizeLimit"))...)
	}
	return errs
}

func validateCacheSize(size scalar.Quantity, path *field.Path) field.ErrorList {
	const rule = "must be 64Mi to 16Ti, in whole MiB, such as 50Gi"
	value, err := size.Parse()
	switch {
	case size.IsZero():
		return field.ErrorList{field.Required(path, rule)}
	case err != nil:
		return field.ErrorList{field.Invalid(path, size.Text, err.Error())}
	case value.Cmp(minCacheSize) < 0, value.Cmp(maxCacheSize) > 0, value.Value()%mebibyte != 0:
		return field.ErrorList{field.Invalid(path, size.Text, rule)}
	}
	return nil
}

// validateInstanceCaches refuses caches that the leases do not have.
func validateInstanceCaches(uses []instancev1alpha1.InstanceCache, caches []rackv1alpha1.LeaseCache, path *field.Path) field.ErrorList {
	exists := map[string]bool{}
	for _, cache := range caches {
		exists[cache.Name] = true
	}
	var errs field.ErrorList
	names := map[string]bool{}
	for i, use := range uses {
		path := path.Index(i).Child("name")
		if names[use.Name] {
			errs = append(errs, field.Duplicate(path, use.Name))
		} else if !exists[use.Name] {
			errs = append(errs, field.Invalid(path, use.Name, "must be the name of a cache in leases.caches"))
		}
		names[use.Name] = true
	}
	return errs
}
