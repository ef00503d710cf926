package images

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/images/format"
)

// TestImageThatCannotRunIsNotPushed pushes invalid files; the registry must receive no request.
func TestImageThatCannotRunIsNotPushed(t *testing.T) {
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	dir := t.TempDir()
	file := func(content string) string {
		f, err := os.CreateTemp(dir, "")
		require.NoError(t, err)
		_, err = f.WriteString(content)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		return f.Name()
	}
	disk, aux, model := file(strings.Repeat("macOS", 1000)), file("nvram"), "bW9kZWw="
	large := file("")
	require.NoError(t, os.Truncate(large, format.MaxAux+1))
	for name, tt := range map[string]struct {
		disk, aux, model string
		message          string
	}{
		"qcow2":               {file("QFI\xfb\x00\x00\x00\x03" + strings.Repeat("\x00", 1000)), aux, model, "is a qcow2 disk, not a raw disk; convert it with: qemu-img convert -O raw"},
		"ASIF":                {file("shdw" + strings.Repeat("\x00", 1000)), aux, model, "is an Apple sparse image (ASIF), not a raw disk"},
		"a sparse image":      {file("sprs" + strings.Repeat("\x00", 1000)), aux, model, "is an Apple sparse image, not a raw disk"},
		"VMDK":                {file("KDMV\x01"), aux, model, "is a VMDK disk"},
		"VHDX":                {file("vhdxfile"), aux, model, "is a VHDX disk"},
		"VDI":                 {file("<<< Oracle VM VirtualBox Disk Image >>>"), aux, model, "is a VDI disk"},
		"gzip":                {file("\x1f\x8b\x08"), aux, model, "is compressed with gzip"},
		"Zstandard":           {file("\x28\xb5\x2f\xfd"), aux, model, "is compressed with Zstandard"},
		"UDIF":                {file(strings.Repeat("\x00", 512) + "koly" + strings.Repeat("\x00", 508)), aux, model, "is a compressed disk image (UDIF)"},
		"an empty disk":       {file(""), aux, model, "not a disk image"},
		"a folder":            {dir, aux, model, "not a disk image"},
		"no disk":             {filepath.Join(dir, "none"), aux, model, "no such file"},
		"no aux":              {disk, "", model, "the auxiliary storage (NVRAM) is missing"},
		"an aux that is not":  {disk, filepath.Join(dir, "none"), model, "auxiliary storage: stat"},
		"an empty aux":        {disk, file(""), model, "is not an auxiliary storage"},
		"an aux too large":    {disk, large, model, "is not an auxiliary storage"},
		"no model":            {disk, aux, "", "the hardware model is missing"},
		"a model that is not": {disk, aux, "?", "the hardware model is not base64"},
	} {
		t.Run(name, func(t *testing.T) {
			progressed := false
			_, err := Push(t.Context(), PushOptions{
				Disk: tt.disk, Aux: tt.aux, HardwareModel: tt.model, Reference: strings.TrimPrefix(server.URL, "http://") + "/macos", Clock: clock.RealClock{},
				OnProgress: func(Progress) { progressed = true },
			})
			assert.ErrorContains(t, err, tt.message)
			assert.False(t, progressed)
		})
	}
	_, err := Inspect(PushOptions{Disk: filepath.Join(dir, "none"), HardwareModel: "?"})
	assert.ErrorContains(t, err, "disk: ")
	assert.ErrorContains(t, err, "auxiliary storage")
	assert.ErrorContains(t, err, "hardware model", "all that is wrong is said at once")
	assert.Zero(t, requests.Load(), "the registry was asked")
}
