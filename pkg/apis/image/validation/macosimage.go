// Package validation validates objects of image.macrack.io.
package validation

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"oras.land/oras-go/v2/registry"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/apis/internal/check"
)

const (
	maxContents      = 16
	maxReference     = 512
	maxHardwareModel = 4 << 10
	maxReplicas      = 10000
)

var (
	minDiskSize = resource.MustParse("1Mi")
	maxDiskSize = resource.MustParse("1Pi")

	// version matches 26, 26.1, 26.1.2 and 26.1.2.3, with an optional -beta, -beta2, -rc or -rc1.
	version = regexp.MustCompile(`^[0-9]{1,4}(\.[0-9]{1,4}){0,3}(-(alpha|beta|rc)[0-9]{0,3})?$`)

	// build matches the build numbers of Apple: 25B78, 25A5306g, 17B55.
	build = regexp.MustCompile(`^[0-9]{1,3}[A-Z][0-9]{1,5}[a-z]?$`)
)

// MaxMessage is the maximum number of bytes of a message of a status or of a condition.
const MaxMessage = check.MaxMessage

// ValidateMacOSImage returns the errors in a new MacOSImage.
func ValidateMacOSImage(i *image.MacOSImage) field.ErrorList {
	errs := check.NewMeta(&i.ObjectMeta, false, apivalidation.NameIsDNSSubdomain)
	return append(errs, validateMacOSImageSpec(&i.Spec, field.NewPath("spec"))...)
}

// ValidateMacOSImageUpdate returns the errors in a change of a MacOSImage.
func ValidateMacOSImageUpdate(i, old *image.MacOSImage) field.ErrorList {
	path := field.NewPath("spec")
	errs := check.UpdatedMeta(&i.ObjectMeta, &old.ObjectMeta)
	if old.Status.Phase == image.MacOSImageReady {
		return append(errs, check.Unchanged(i.Spec, old.Spec, "the image is Ready: a new macOS or Xcode is a new MacOSImage", path)...)
	}
	return append(errs, validateMacOSImageSpec(&i.Spec, path)...)
}

// ValidateMacOSImageStatusUpdate returns the errors in a change of a MacOSImage's status.
func ValidateMacOSImageStatusUpdate(i, old *image.MacOSImage) field.ErrorList {
	path := field.NewPath("status")
	status := &i.Status
	errs := check.UpdatedMeta(&i.ObjectMeta, &old.ObjectMeta)
	phase := path.Child("phase")
	errs = append(errs, check.Enum(status.Phase, phase, image.MacOSImagePending, image.MacOSImageReady, image.MacOSImageFailed)...)
	if old.Status.Phase == image.MacOSImageReady && status.Phase != image.MacOSImageReady {
		errs = append(errs, field.Forbidden(phase, "Ready is final, as instances may run from the image"))
	}
	if status.Digest != "" {
		errs = append(errs, check.Digest(status.Digest, path.Child("digest"))...)
	}
	if status.Phase == image.MacOSImageReady && status.Digest != i.Spec.Source.Digest {
		errs = append(errs, field.Invalid(path.Child("digest"), status.Digest, "must be spec.source.digest, "+i.Spec.Source.Digest+", for the image to be Ready"))
	}
	errs = append(errs, check.Conditions(status.Conditions, old.Status.Conditions, path.Child("conditions"))...)
	if meta.IsStatusConditionTrue(status.Conditions, image.MacOSImageReadyCondition) && status.Phase != image.MacOSImageReady {
		errs = append(errs, field.Forbidden(path.Child("conditions"), "Ready may be True only in phase Ready"))
	}
	if ready := meta.FindStatusCondition(status.Conditions, image.MacOSImageReadyCondition); ready != nil && ready.ObservedGeneration != i.Generation &&
		status.Phase == image.MacOSImageReady && old.Status.Phase != image.MacOSImageReady {
		errs = append(errs, field.Forbidden(phase, fmt.Sprintf("generation %d of the spec was verified, not %d", ready.ObservedGeneration, i.Generation)))
	}
	errs = append(errs, check.Lines(status.Message, MaxMessage, path.Child("message"))...)
	errs = append(errs, check.NotNegative(status.SizeBytes, path.Child("sizeBytes"))...)
	return append(errs, validateReplicas(status.ReplicatedOn, path.Child("replicatedOn"))...)
}

func validateMacOSImageSpec(spec *image.MacOSImageSpec, path *field.Path) field.ErrorList {
	errs := validateContents(spec.Contents, path.Child("contents"))
	source := path.Child("source")
	known := spec.Contents[:min(len(spec.Contents), maxContents)]
	errs = append(errs, validateReference(spec.Source.Reference, known, source.Child("reference"))...)
	errs = append(errs, check.Digest(spec.Source.Digest, source.Child("digest"))...)
	errs = append(errs, check.Amount(spec.DiskSize, minDiskSize, maxDiskSize, path.Child("diskSize"))...)
	errs = append(errs, validateHardwareModel(spec.HardwareModel, path.Child("hardwareModel"))...)
	if ref := spec.PullSecretRef; ref != nil {
		at := path.Child("pullSecretRef")
		errs = append(errs, check.Label(ref.Namespace, at.Child("namespace"))...)
		errs = append(errs, check.Name(ref.Name, at.Child("name"))...)
	}
	if spec.Identity != "" {
		errs = append(errs, check.Enum(spec.Identity, path.Child("identity"), image.ImageIdentityGenerated, image.ImageIdentityFromImage)...)
	}
	return errs
}

// validateContents checks that an image has one macOS, one guest agent, at most one Xcode, and
// nothing else.
func validateContents(contents []image.ImageContent, path *field.Path) field.ErrorList {
	if len(contents) > maxContents {
		return field.ErrorList{field.TooMany(path, len(contents), maxContents)}
	}
	var errs field.ErrorList
	count := map[string]int{}
	for i, content := range contents {
		at := path.Index(i)
		count[content.Name]++
		switch content.Name {
		case image.ContentMacOS, image.ContentXcode, image.ContentGuestAgent:
			if count[content.Name] == 2 {
				errs = append(errs, field.Forbidden(at.Child("name"), fmt.Sprintf("a second %s: an image has one %s, so that what runs in it is known; make another MacOSImage", content.Name, content.Name)))
			}
		default:
			errs = append(errs, field.Forbidden(at.Child("name"), fmt.Sprintf("%s may not be in an image: an image has macOS, guest-agent and at most one Xcode, and is the same for all tenants; install anything else when an instance starts, with its spec.startupScript", quote(content.Name))))
		}
		errs = append(errs, validateVersion(content.Version, at.Child("version"))...)
		if content.Build != "" && !build.MatchString(content.Build) {
			errs = append(errs, field.Forbidden(at.Child("build"), quote(content.Build)+" is not a build number such as 25B78 or 25A5306g; omit the field if the build number is unknown"))
		}
	}
	for _, required := range []string{image.ContentMacOS, image.ContentGuestAgent} {
		if count[required] == 0 {
			errs = append(errs, field.Required(path, fmt.Sprintf("an image has %s exactly once", required)))
		}
	}
	return errs
}

func validateVersion(v string, path *field.Path) field.ErrorList {
	if v == "" {
		return field.ErrorList{field.Required(path, "such as 26.1")}
	}
	if !version.MatchString(v) {
		return field.ErrorList{field.Forbidden(path, quote(v)+" is not a version: use one to four numbers separated by dots, optionally with -alpha, -beta or -rc and a number, such as 26.1 or 26.2-beta3")}
	}
	return nil
}

// validateReference checks an OCI reference. Any repository is permitted, but the tag may only name
// contents of the image.
func validateReference(reference string, contents []image.ImageContent, path *field.Path) field.ErrorList {
	switch {
	case reference == "":
		return field.ErrorList{field.Required(path, "such as registry.example.com/macos/26:xcode-26")}
	case len(reference) > maxReference:
		return field.ErrorList{field.TooLong(path, "", maxReference)}
	case strings.Contains(reference, "@"):
		return field.ErrorList{field.Invalid(path, reference, "must have no digest; put it into spec.source.digest")}
	}
	parsed, err := registry.ParseReference(reference)
	host := parsed.Registry
	if err != nil || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return field.ErrorList{field.Invalid(path, reference, "must be an OCI reference with its registry, such as registry.example.com/macos/26:xcode-26")}
	}
	if strings.Contains(reference[len(host):], ":") && parsed.Reference == "" {
		return field.ErrorList{field.Invalid(path, reference, "has an empty tag; leave out the colon, too")}
	}
	if word := foreignInTag(parsed.Reference, contents); word != "" {
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf("%s in the tag %s is not in the image: a tag may have %s, a date (20260801) or a revision (r2), with - or _ between; "+
			"runners and tenants are not part of an image; use a tag such as %s, or none, as the digest pins the image",
			quote(word), quote(parsed.Reference), strings.Join(allowedInTag(contents), ", "), exampleTag(contents)))}
	}
	return nil
}

func validateHardwareModel(model string, path *field.Path) field.ErrorList {
	if len(model) > maxHardwareModel {
		return field.ErrorList{field.TooLong(path, "", maxHardwareModel)}
	}
	if _, err := base64.StdEncoding.DecodeString(model); err != nil {
		return field.ErrorList{field.Invalid(path, model, "must be base64 of a VZMacHardwareModel")}
	}
	return nil
}

func validateReplicas(serials []string, path *field.Path) field.ErrorList {
	if len(serials) > maxReplicas {
		return field.ErrorList{field.TooMany(path, len(serials), maxReplicas)}
	}
	var errs field.ErrorList
	for i, serial := range serials {
		errs = append(errs, check.SerialNumber(serial, path.Index(i))...)
	}
	return append(errs, check.Unique(serials, path)...)
}

// quote returns s in ASCII and shortened. The escapes reveal letters that only look like ASCII.
func quote(s string) string {
	const limit = 64
	if len(s) > limit {
		return strconv.QuoteToASCII(s[:limit]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
