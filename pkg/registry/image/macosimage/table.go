package macosimage

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/registry/tables"
)

var columns = []metav1.TableColumnDefinition{
	tables.Name(),
	tables.Column("macOS", "Version of macOS in the image."),
	tables.Column("Xcode", "Version of Xcode in the image."),
	tables.Column("Phase", "Pending, Ready or Failed."),
	tables.Column("Size", "Disk space that the image takes on a Mac."),
	tables.Number("Replicas", "Macs that have the image on disk."),
	tables.AgeColumn(),
}

// NewTableConvertor returns the table convertor of MacOSImages.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tables.New(columns, func(i *image.MacOSImage) []any {
		return []any{
			i.Name,
			version(i, image.ContentMacOS),
			version(i, image.ContentXcode),
			tables.Text(string(i.Status.Phase)),
			tables.Bytes(i.Status.SizeBytes),
			int64(len(i.Status.ReplicatedOn)),
			tables.Age(clock, i.CreationTimestamp),
		}
	})
}

func version(i *image.MacOSImage, name string) string {
	for _, content := range i.Spec.Contents {
		if content.Name == name {
			return tables.Text(content.Version)
		}
	}
	return tables.None
}
