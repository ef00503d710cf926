package check

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/rules/egress"
)

// AllowedCIDRs returns the errors in the networks of an allow list.
func AllowedCIDRs(cidrs []string, path *field.Path) field.ErrorList {
	return allowed(cidrs, path, func(text string) error {
		_, err := egress.ParseCIDR(text)
		return err
	})
}

// AllowedNames returns the errors in the DNS names of an allow list.
func AllowedNames(names []string, path *field.Path) field.ErrorList {
	return allowed(names, path, egress.CheckName)
}

func allowed(entries []string, path *field.Path, check func(string) error) field.ErrorList {
	if len(entries) > egress.MaxEntries {
		return field.ErrorList{field.TooMany(path, len(entries), egress.MaxEntries)}
	}
	errs := Unique(entries, path)
	for i, entry := range entries {
		if err := check(entry); err != nil {
			errs = append(errs, field.Invalid(path.Index(i), short(entry), err.Error()))
		}
	}
	return errs
}
