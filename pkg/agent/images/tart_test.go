package images

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/images/ociclient"
)

// appleLZ4 compresses as tart does: in blocks of 64 KiB, with incompressible blocks stored.
func appleLZ4(t *testing.T, data []byte) []byte {
	t.Helper()
	var out []byte
	for len(data) > 0 {
		block := data[:min(64<<10, len(data))]
		data = data[len(block):]
		compressed := make([]byte, lz4.CompressBlockBound(len(block)))
		n, err := lz4.CompressBlock(block, compressed, nil)
		require.NoError(t, err)
		if n == 0 || n >= len(block) {
			out = binary.LittleEndian.AppendUint32(append(out, "bv4-"...), uint32(len(block)))
			out = append(out, block...)
			continue
		}
		out = binary.LittleEndian.AppendUint32(append(out, "bv41"...), uint32(len(block)))
		out = append(binary.LittleEndian.AppendUint32(out, uint32(n)), compressed[:n]...)
	}
	return append(out, "bv4$"...)
}

const tartLayer = 5 * testChunk / 2 // 512 MiB in tart; not a multiple of anything here

// pushTart pushes the test disk in tart's layout, modified by change.
func (w *world) pushTart(config map[string]any, change func(*ocispec.Manifest)) {
	w.t.Helper()
	client, err := ociclient.New(ociclient.Options{Reference: w.host() + "/tart/macos:latest", Clock: clock.RealClock{}})
	require.NoError(w.t, err)
	blob := func(mediaType string, data []byte) ocispec.Descriptor {
		d := descriptor(mediaType, data)
		_, err := client.PushBlob(w.t.Context(), d, data)
		require.NoError(w.t, err)
		return d
	}
	settings := map[string]any{"version": 1, "os": "darwin", "arch": "arm64", "cpuCount": 4, "ecid": "ZWNpZA==", "hardwareModel": "dGFydA==", "macAddress": "5a:94:ef:e4:0c:ee"}
	for name, value := range config {
		settings[name] = value
	}
	data, err := json.Marshal(settings)
	require.NoError(w.t, err)
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: blob(ocispec.MediaTypeImageConfig, []byte(`{"architecture":"arm64","os":"darwin"}`))}
	m.SchemaVersion = 2
	m.Layers = append(m.Layers, blob("application/vnd.cirruslabs.tart.config.v1", data))
	for rest := w.disk; len(rest) > 0; {
		part := rest[:min(tartLayer, len(rest))]
		rest = rest[len(part):]
		layer := blob("application/vnd.cirruslabs.tart.disk.v2", appleLZ4(w.t, part))
		layer.Annotations = map[string]string{
			"org.cirruslabs.tart.uncompressed-size":           fmt.Sprint(len(part)),
			"org.cirruslabs.tart.uncompressed-content-digest": digest.FromBytes(part).String(),
		}
		m.Layers = append(m.Layers, layer)
	}
	m.Layers = append(m.Layers, blob("application/vnd.cirruslabs.tart.nvram.v1", w.aux))
	m.Annotations = map[string]string{"org.cirruslabs.tart.uncompressed-disk-size": fmt.Sprint(len(w.disk)), "org.cirruslabs.tart.upload-time": "2026-08-01T00:00:00Z"}
	if change != nil {
		change(&m)
	}
	data, err = json.Marshal(m)
	require.NoError(w.t, err)
	manifest := descriptor(ocispec.MediaTypeImageManifest, data)
	require.NoError(w.t, client.PushManifest(w.t.Context(), manifest, data))
	w.image.Reference, w.image.Digest = w.host()+"/tart/macos", manifest.Digest.String()
}

func TestTartImage(t *testing.T) {
	w := newWorld(t)
	w.pushTart(map[string]any{"cpuCountMin": 4, "memorySizeMin": 4 << 30}, nil)
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
	assert.Equal(t, "dGFydA==", cached.HardwareModel)
	assert.Equal(t, "ZWNpZA==", cached.MachineID)
	assert.EqualValues(t, 4, cached.CPUMin)
	assert.EqualValues(t, 4<<30, cached.MemoryMin)
	info, err := os.Stat(cached.Disk)
	require.NoError(t, err)
	assert.Less(t, disk.Allocated(info), int64(testDisk-4*testChunk), "zeros take no room, though tart has them in its layers")
}

func TestTartImagesThatAreNotRight(t *testing.T) {
	w := newWorld(t)
	annotate := func(name, value string) func(*ocispec.Manifest) {
		return func(m *ocispec.Manifest) { m.Layers[2].Annotations[name] = value }
	}
	mediaType := func(layer int, mediaType string) func(*ocispec.Manifest) {
		return func(m *ocispec.Manifest) { m.Layers[layer].MediaType = "application/vnd.cirruslabs.tart." + mediaType }
	}
	without := func(from, to int) func(*ocispec.Manifest) {
		return func(m *ocispec.Manifest) { m.Layers = append(m.Layers[:from:from], m.Layers[to:]...) }
	}
	for name, tc := range map[string]struct {
		config map[string]any
		change func(*ocispec.Manifest)
		says   string
	}{
		"other content": {nil, annotate("org.cirruslabs.tart.uncompressed-content-digest", digest.FromString("x").String()), "decompresses to content with digest sha256:"},
		"no digest":     {nil, annotate("org.cirruslabs.tart.uncompressed-content-digest", "md5:x"), "not a sha256 digest"},
		"too short": {nil, func(m *ocispec.Manifest) {
			annotate("org.cirruslabs.tart.uncompressed-size", "3000000")(m)
			m.Annotations = nil
		}, "bytes less than the 3000000 in the manifest"},
		"too long": {nil, func(m *ocispec.Manifest) {
			annotate("org.cirruslabs.tart.uncompressed-size", "2000000")(m)
			m.Annotations = nil
		}, "longer than stated in the manifest"},
		"a wrong sum":     {nil, annotate("org.cirruslabs.tart.uncompressed-size", "2000000"), "have 12261472 bytes in total, annotation org.cirruslabs.tart.uncompressed-disk-size is"},
		"no size":         {nil, func(m *ocispec.Manifest) { m.Layers[1].Annotations = nil }, "annotation org.cirruslabs.tart.uncompressed-size is missing"},
		"of Linux":        {map[string]any{"os": "linux"}, nil, `the image is of "linux", not of macOS`},
		"for Intel":       {map[string]any{"arch": "amd64"}, nil, `the image is for "amd64", not for arm64`},
		"sparse format":   {map[string]any{"diskFormat": "asif"}, nil, "only raw disks can be read"},
		"a strange model": {map[string]any{"hardwareModel": "?"}, nil, "the hardware model is not base64"},
		"old layers":      {nil, mediaType(1, "disk.v1"), "push the image again with a newer tart"},
		"new layers":      {nil, mediaType(1, "disk.v3"), "has the unknown type"},
		"no config":       {nil, without(0, 1), "there is no layer of type application/vnd.cirruslabs.tart.config.v1"},
		"no nvram":        {nil, func(m *ocispec.Manifest) { m.Layers = m.Layers[:len(m.Layers)-1] }, "there is no layer of type application/vnd.cirruslabs.tart.nvram.v1"},
		"no disk":         {nil, func(m *ocispec.Manifest) { without(1, len(m.Layers)-1)(m) }, "there is no layer of type application/vnd.cirruslabs.tart.disk.v2"},
		"no model":        {map[string]any{"hardwareModel": ""}, nil, "neither the image nor spec.hardwareModel has a hardware model"},
		"a container": {nil, func(m *ocispec.Manifest) {
			m.Layers = m.Layers[:1]
			m.Layers[0].MediaType = ocispec.MediaTypeImageLayerGzip
		}, "unknown image format"},
		"an index": {nil, func(m *ocispec.Manifest) { m.MediaType = ocispec.MediaTypeImageIndex }, "pin the manifest itself"},
	} {
		w.pushTart(tc.config, tc.change)
		_, err := w.ensure()
		require.ErrorContains(t, err, tc.says, name)
		list, err := w.store.List()
		require.NoError(t, err)
		assert.Empty(t, list, name)
	}
}

// A stream of zeros, like most of a disk.
func TestTartZeros(t *testing.T) {
	w := newWorld(t)
	w.disk = make([]byte, 40*testChunk)
	copy(w.disk[30*testChunk:], bytes.Repeat([]byte{1}, 10))
	w.pushTart(nil, nil)
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
	assert.Less(t, cached.Bytes, int64(200<<10))
}
