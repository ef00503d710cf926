package macosimage

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/registry/tableconvertor"
)

var columns = []metav1.TableColumnDefinition{
	tableconvertor.Name(),
	tableconvertor.Column("macOS", "Version of macOS in the image."),
	tableconvertor.Column("Xcode", "Version of Xcode in the image."),
	tableconvertor.Column("Phase", "Pending, Ready or Failed."),
	tableconvertor.Column("Size", "Disk space that the image takes on a Mac."),
	tableconvertor.Number("Replicas", "Macs that have the image on disk."),
	tableconvertor.AgeColumn(),
}

// NewTableConvertor returns the table convertor of MacOSImages.
func NewTableConvertor(clock clock.PassiveClock) rest.TableConvertor {
	return tableconvertor.New(columns, func(i *image.MacOSImage) []any {
		return []any{
			i.Name,
			version(i, image.ContentMacOS),
			version(i, image.ContentXcode),
			tableconvertor.Text(string(i.Status.Phase)),
			tableconvertor.Bytes(i.Status.SizeBytes),
			int64(len(i.Status.ReplicatedOn)),
			tableconvertor.Age(clock, i.CreationTimestamp),
		}
	})
}

func version(i *image.MacOSImage, name string) string {
	for _, content := range i.Spec.Contents {
		if content.Name == name {
			return tableconvertor.Text(content.Version)
		}
	}
	return tableconvertor.None
}
