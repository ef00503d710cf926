package macosimage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/registry/tableconvertor/tabletest"
)

func TestTable(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	list := &image.MacOSImageList{Items: []image.MacOSImage{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "macos-26", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
			Spec:       image.MacOSImageSpec{Contents: []image.ImageContent{{Name: "guest-agent", Version: "0.4.0"}, {Name: "Xcode", Version: "26.2"}, {Name: "macOS", Version: "26.1"}}},
			Status:     image.MacOSImageStatus{Phase: image.MacOSImageReady, SizeBytes: 42 << 30, ReplicatedOn: make([]string, 3)},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "plain", CreationTimestamp: metav1.NewTime(now)},
			Spec:       image.MacOSImageSpec{Contents: []image.ImageContent{{Name: "macOS", Version: "26.1"}}},
			Status:     image.MacOSImageStatus{Phase: image.MacOSImagePending},
		},
	}}
	assert.Equal(t, []string{
		"NAME      MACOS  XCODE   PHASE    SIZE    REPLICAS  AGE",
		"macos-26  26.1   26.2    Ready    42Gi    3         60m",
		"plain     26.1   <none>  Pending  <none>  0         0s",
	}, tabletest.Print(t, NewTableConvertor(clocktesting.NewFakePassiveClock(now)), list))
}
