// Package check has the checks that the validation of several kinds shares.
package check

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/printable"
)

// MaxMessage is the maximum number of bytes of a message in a status.
const MaxMessage = 32 << 10

// Limits of metadata and conditions. An object and its companions are written in one transaction,
// which etcd bounds.
const (
	maxLabels          = 64 << 10 // bytes, as stored
	maxAnnotations     = 64 << 10
	maxEntries         = 1024 // labels, and annotations
	maxFinalizers      = 32
	maxFinalizer       = utilvalidation.DNS1123SubdomainMaxLength + 1 + 63 // of a qualified name
	maxOwnerReferences = 16
	maxOwnersSize      = 16 << 10
	maxSelfLink        = 1 << 10
	maxManager         = 1 << 10
	maxConditions      = 32

	// MaxManagedFields is the maximum number of managed fields in a request. Fewer are stored, and
	// each write adds one at most.
	MaxManagedFields = 256
	// MaxConditionsSize is the maximum size of the conditions of a status, in bytes as stored.
	MaxConditionsSize = 64 << 10
)

var (
	serialNumber = regexp.MustCompile(`^[A-Z0-9]{4,20}$`)
	digest       = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// NewMeta checks the metadata of a new object. Finalizers of macrack.io are refused, except those
// in own, which the server adds.
func NewMeta(meta *metav1.ObjectMeta, namespaced bool, name apivalidation.ValidateNameFunc, own ...string) field.ErrorList {
	path := field.NewPath("metadata")
	if errs := append(NameLength(meta, path), Bounded(meta, &metav1.ObjectMeta{}, path)...); len(errs) > 0 {
		return errs // the checks below are expensive for oversized metadata
	}
	return append(apivalidation.ValidateObjectMeta(meta, namespaced, name, path), newFinalizers(meta.Finalizers, own, path)...)
}

// UpdatedMeta checks a change of an object's metadata.
func UpdatedMeta(meta, old *metav1.ObjectMeta) field.ErrorList {
	path := field.NewPath("metadata")
	if errs := NameLength(meta, path); len(errs) > 0 && len(meta.GenerateName) > len(old.GenerateName) {
		return errs
	}
	if errs := Bounded(meta, old, path); len(errs) > 0 {
		return errs
	}
	return append(apivalidation.ValidateObjectMetaUpdate(meta, old, path), newFinalizers(meta.Finalizers, old.Finalizers, path)...)
}

// Bounded refuses metadata beyond the limits, unless the old object had as much.
func Bounded(meta, old *metav1.ObjectMeta, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, m := range []struct {
		name     string
		new, old map[string]string
		limit    int
	}{
		{"labels", meta.Labels, old.Labels, maxLabels},
		{"annotations", meta.Annotations, old.Annotations, maxAnnotations},
	} {
		if n := size(m.new); n > m.limit && n > size(m.old) {
			errs = append(errs, field.TooLong(path.Child(m.name), "", m.limit))
		}
	}
	for _, m := range []struct {
		name     string
		new, old int
	}{{"labels", len(meta.Labels), len(old.Labels)}, {"annotations", len(meta.Annotations), len(old.Annotations)}} {
		if m.new > maxEntries && m.new > m.old && len(errs) == 0 {
			errs = append(errs, field.TooMany(path.Child(m.name), m.new, maxEntries))
		}
	}
	if n := len(meta.Finalizers); n > maxFinalizers && n > len(old.Finalizers) {
		errs = append(errs, field.TooMany(path.Child("finalizers"), n, maxFinalizers))
	}
	for i, finalizer := range meta.Finalizers[:min(len(meta.Finalizers), maxFinalizers)] {
		if len(finalizer) > maxFinalizer && !slices.Contains(old.Finalizers, finalizer) {
			return append(errs, field.TooLong(path.Child("finalizers").Index(i), "", maxFinalizer))
		}
	}
	if n := len(meta.OwnerReferences); n > maxOwnerReferences && n > len(old.OwnerReferences) {
		errs = append(errs, field.TooMany(path.Child("ownerReferences"), n, maxOwnerReferences))
	}
	if n := ownersSize(meta.OwnerReferences); n > maxOwnersSize && n > ownersSize(old.OwnerReferences) {
		errs = append(errs, field.TooLong(path.Child("ownerReferences"), "", maxOwnersSize))
	}
	if n := len(meta.ManagedFields); n > MaxManagedFields && n > len(old.ManagedFields) {
		errs = append(errs, field.TooMany(path.Child("managedFields"), n, MaxManagedFields))
	}
	for i, entry := range meta.ManagedFields[:min(len(meta.ManagedFields), MaxManagedFields)] {
		if len(entry.Manager)+len(entry.Operation)+len(entry.APIVersion)+len(entry.FieldsType)+len(entry.Subresource) > maxManager {
			return append(errs, field.TooLong(path.Child("managedFields").Index(i), "", maxManager))
		}
	}
	if n := len(meta.SelfLink); n > maxSelfLink && n > len(old.SelfLink) { //nolint:staticcheck // deprecated, and still stored
		errs = append(errs, field.TooLong(path.Child("selfLink"), "", maxSelfLink))
	}
	return errs
}

// entryOverhead is the maximum number of bytes that protobuf adds to an entry of a map of valid
// labels or annotations.
const entryOverhead = 12

// size returns the number of bytes of a map, as stored.
func size(m map[string]string) int {
	n := 0
	for key, value := range m {
		n += len(key) + len(value) + entryOverhead
	}
	return n
}

func ownersSize(owners []metav1.OwnerReference) int {
	n := 0
	for i := range owners {
		n += owners[i].Size()
	}
	return n
}

// NameLength refuses oversized names. Its error does not repeat them, unlike those of the other
// checks.
func NameLength(meta *metav1.ObjectMeta, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(meta.Name) > utilvalidation.DNS1123SubdomainMaxLength {
		errs = append(errs, field.TooLong(path.Child("name"), "", utilvalidation.DNS1123SubdomainMaxLength))
	}
	if len(meta.Namespace) > utilvalidation.DNS1123LabelMaxLength {
		errs = append(errs, field.TooLong(path.Child("namespace"), "", utilvalidation.DNS1123LabelMaxLength))
	}
	if len(meta.GenerateName) > utilvalidation.DNS1123SubdomainMaxLength {
		errs = append(errs, field.TooLong(path.Child("generateName"), "", utilvalidation.DNS1123SubdomainMaxLength))
	}
	return errs
}

func newFinalizers(finalizers, known []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, finalizer := range finalizers {
		domain, _, _ := strings.Cut(finalizer, "/")
		ours := domain == "macrack.io" || strings.HasSuffix(domain, ".macrack.io")
		if ours && !slices.Contains(known, finalizer) {
			errs = append(errs, field.Forbidden(path.Child("finalizers").Index(i), fmt.Sprintf("%q: only the server adds finalizers of macrack.io; leave it out", finalizer)))
		}
	}
	return errs
}

// Name checks a required name of a cluster-scoped object.
func Name(name string, path *field.Path) field.ErrorList {
	return named(name, apivalidation.NameIsDNSSubdomain, utilvalidation.DNS1123SubdomainMaxLength, path)
}

// Label checks a required name that is a DNS label, as those of namespaces, leases and instances
// are.
func Label(name string, path *field.Path) field.ErrorList {
	return named(name, apivalidation.NameIsDNSLabel, utilvalidation.DNS1123LabelMaxLength, path)
}

func named(name string, valid apivalidation.ValidateNameFunc, limit int, path *field.Path) field.ErrorList {
	switch {
	case name == "":
		return field.ErrorList{field.Required(path, "")}
	case len(name) > limit:
		return field.ErrorList{field.TooLong(path, "", limit)}
	}
	var errs field.ErrorList
	for _, msg := range valid(name, false) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return errs
}

// Names checks a set of names of cluster-scoped objects.
func Names(names []string, limit int, path *field.Path) field.ErrorList {
	if len(names) > limit {
		return field.ErrorList{field.TooMany(path, len(names), limit)}
	}
	var errs field.ErrorList
	for i, name := range names {
		errs = append(errs, Name(name, path.Index(i))...)
	}
	return append(errs, Unique(names, path)...)
}

// Unique checks that no string is in the list twice.
func Unique(list []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, s := range list {
		if seen[s] {
			errs = append(errs, field.Duplicate(path.Index(i), s))
		}
		seen[s] = true
	}
	return errs
}

// SerialNumber checks a required serial number of a Mac.
func SerialNumber(serial string, path *field.Path) field.ErrorList {
	switch {
	case serial == "":
		return field.ErrorList{field.Required(path, "the serial number that is on the chassis")}
	case len(serial) > 20:
		return field.ErrorList{field.TooLong(path, "", 20)}
	case !serialNumber.MatchString(serial):
		return field.ErrorList{field.Invalid(path, serial, "must be 4 to 20 capital letters and digits, as it is on the chassis, such as C07DR00AQ6NV")}
	}
	return nil
}

// Digest checks a required digest of content.
func Digest(value string, path *field.Path) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(path, "the digest pins the content")}
	case len(value) > len("sha256:")+64:
		return field.ErrorList{field.TooLong(path, "", len("sha256:")+64)}
	case !digest.MatchString(value):
		return field.ErrorList{field.Invalid(path, value, "must be sha256: and 64 hexadecimal digits in lower case")}
	}
	return nil
}

// Text checks a text of at most limit bytes on one line, such as a reason.
func Text(text string, limit int, path *field.Path) field.ErrorList {
	if errs := Lines(text, limit, path); len(errs) > 0 {
		return errs
	}
	if !printable.IsLine(text) {
		return field.ErrorList{field.Invalid(path, text, "must be printable characters on one line")}
	}
	return nil
}

// RequiredText is Text for a required field.
func RequiredText(text string, limit int, path *field.Path) field.ErrorList {
	if strings.TrimSpace(text) == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return Text(text, limit, path)
}

// Lines checks a text of at most limit bytes.
func Lines(text string, limit int, path *field.Path) field.ErrorList {
	switch {
	case len(text) > limit:
		return field.ErrorList{field.TooLong(path, "", limit)}
	case !utf8.ValidString(text):
		return field.ErrorList{field.Invalid(path, "(not shown)", "must be valid UTF-8")}
	}
	return nil
}

// Enum checks that the value is one of those allowed.
func Enum[T ~string](value T, path *field.Path, allowed ...T) field.ErrorList {
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	if len(value) > 64 {
		value = value[:64] + "..."
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}

// NotNegative checks a count.
func NotNegative[T ~int32 | ~int64](n T, path *field.Path) field.ErrorList {
	return apivalidation.ValidateNonnegativeField(int64(n), path)
}

// Between checks that n is in the range from low to high, both included.
func Between[T ~int32 | ~int64](n, low, high T, path *field.Path) field.ErrorList {
	if n < low || n > high {
		return field.ErrorList{field.Invalid(path, n, fmt.Sprintf("must be %d to %d", low, high))}
	}
	return nil
}

// Amount checks that an amount is whole and between low and high.
func Amount(q scalar.Quantity, low, high resource.Quantity, path *field.Path) field.ErrorList {
	between := fmt.Sprintf("must be %s to %s", low.String(), high.String())
	value, errs := ParsedAmount(q, path)
	switch {
	case len(errs) > 0:
		return errs
	case q.IsZero() && low.Sign() > 0:
		return field.ErrorList{field.Required(path, between)}
	case value.Cmp(low) < 0 || value.Cmp(high) > 0:
		return field.ErrorList{field.Invalid(path, q.Text, between)}
	case value.Cmp(*resource.NewQuantity(value.Value(), value.Format)) != 0:
		return field.ErrorList{field.Invalid(path, q.Text, "must be a whole number")}
	}
	return nil
}

// ParsedAmount returns the value of an amount, which is 0 if unset.
func ParsedAmount(q scalar.Quantity, path *field.Path) (resource.Quantity, field.ErrorList) {
	value, err := q.Parse()
	if err != nil {
		return value, field.ErrorList{field.Invalid(path, short(q.Text), err.Error())}
	}
	return value, nil
}

// Duration checks that a required duration is in whole seconds and between low and high.
func Duration(d *scalar.Duration, low, high time.Duration, path *field.Path) field.ErrorList {
	between := fmt.Sprintf("must be %s to %s", bound(low), bound(high))
	if d == nil {
		return field.ErrorList{field.Required(path, between)}
	}
	value, errs := ParsedDuration(d, path)
	switch {
	case len(errs) > 0:
		return errs
	case value < low || value > high:
		return field.ErrorList{field.Invalid(path, d.Text, between)}
	}
	return WholeSeconds(d, path)
}

// bound returns a limit, in days if they are whole.
func bound(d time.Duration) *scalar.Duration {
	if d > 24*time.Hour && d%(24*time.Hour) == 0 {
		return scalar.NewDays(d)
	}
	return scalar.NewDuration(d)
}

// ParsedDuration returns the value of a duration.
func ParsedDuration(d *scalar.Duration, path *field.Path) (time.Duration, field.ErrorList) {
	value, err := d.Parse()
	if err != nil {
		return 0, field.ErrorList{field.Invalid(path, short(d.Text), err.Error())}
	}
	return value, nil
}

// WholeSeconds checks that a duration is in whole seconds.
func WholeSeconds(d *scalar.Duration, path *field.Path) field.ErrorList {
	if d.Value()%time.Second != 0 {
		return field.ErrorList{field.Invalid(path, d.Text, "must be whole seconds")}
	}
	return nil
}

// short returns an unparsable text, shortened for an error.
func short(text string) string {
	if len(text) > 64 {
		return strings.ToValidUTF8(text[:64], "") + "..."
	}
	return text
}

// Conditions checks a change of the conditions of a status. As many as before are always permitted,
// because the server adds some.
func Conditions(conditions, old []metav1.Condition, path *field.Path) field.ErrorList {
	if n := len(conditions); n > maxConditions && n > len(old) {
		return field.ErrorList{field.TooMany(path, n, maxConditions)}
	}
	if n := ConditionsSize(conditions); n > MaxConditionsSize && n > ConditionsSize(old) {
		return field.ErrorList{field.TooLong(path, "", MaxConditionsSize)}
	}
	return metav1validation.ValidateConditions(conditions, path)
}

// ConditionsSize returns the number of bytes of conditions, as stored.
func ConditionsSize(conditions []metav1.Condition) int {
	n := 0
	for i := range conditions {
		n += conditions[i].Size()
	}
	return n
}
