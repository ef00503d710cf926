package instance

import (
	"fmt"
	"strconv"
	"strings"

	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/images"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// firstM4 is the number of the first models with an M4, such as Mac16,10.
const firstM4 = 16

// unbootableHere returns the reason for which no Mac of this model boots an image, or an empty
// string. It is checked before the pull.
func unbootableHere(info host.Info, image *imagev1alpha1.MacOSImage) string {
	number, _, _ := strings.Cut(strings.TrimPrefix(info.ModelIdentifier, "Mac"), ",")
	model, err := strconv.Atoi(number)
	if err != nil || model < firstM4 {
		return ""
	}
	for _, content := range image.Spec.Contents {
		if content.Name == imagev1alpha1.ContentMacOS && before(content.Version, 13, 4) {
			return fmt.Sprintf("Macs with M4 or later (this one is a %s) boot macOS 13.4 and later; MacOSImage %s has macOS %s; use a newer image, or a MacNodeClass of older Macs",
				info.ModelIdentifier, image.Name, content.Version)
		}
	}
	return ""
}

// before reports whether a version is older than major.minor. An unreadable version is not.
func before(version string, major, minor int) bool {
	parts := append(strings.Split(version, "."), "0")
	first, err := strconv.Atoi(parts[0])
	second, err2 := strconv.Atoi(parts[1])
	return err == nil && err2 == nil && (first < major || first == major && second < minor)
}

// tooSmall returns the reason for which an image does not boot with the resources of a class, or an
// empty string.
func tooSmall(class *instancev1alpha1.InstanceClass, image images.Cached) string {
	resources := class.Spec.Resources
	if cpu := resources.CPU.Int64(); cpu < image.CPUMin {
		return fmt.Sprintf("InstanceClass %s has %d CPUs, and MacOSImage %s needs at least %d; use a larger class", class.Name, cpu, image.Name, image.CPUMin)
	}
	if memory := resources.Memory.Int64(); memory < image.MemoryMin {
		return fmt.Sprintf("InstanceClass %s has %s of memory, and MacOSImage %s needs at least %s; use a larger class", class.Name, images.Size(memory), image.Name, images.Size(image.MemoryMin))
	}
	return ""
}
