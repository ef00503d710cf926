package format

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func blob(mediaType, content string) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromString(content), Size: int64(len(content))}
}

func chunks() []Chunk {
	return []Chunk{
		{Blob: blob("", "one"), Codec: Zstd, Offset: 0, Size: 1 << 20, Data: 1 << 16},
		{Blob: blob("", "two"), Codec: Zstd, Offset: 8 << 20, Size: 12345, Data: 12345},
	}
}

func TestManifestIsReadAsItWasWritten(t *testing.T) {
	config := blob(MediaTypeConfig, `{"diskSize":9000000,"hardwareModel":"bW9kZWw="}`)
	aux := &Chunk{Blob: blob("", "aux"), Codec: Zstd, Size: 100, Data: 100}
	data, err := Manifest(config, chunks(), aux)
	require.NoError(t, err)
	l, err := Parse(data)
	require.NoError(t, err)
	model, err := l.Complete([]byte(`{"diskSize":9000000,"hardwareModel":"bW9kZWw="}`))
	require.NoError(t, err)
	assert.Equal(t, "bW9kZWw=", model)
	assert.EqualValues(t, 9000000, l.DiskSize)
	for i, want := range append(chunks(), *aux) {
		got := l.Chunks()[i]
		assert.Equal(t, want.Blob.Digest, got.Blob.Digest)
		got.Blob, want.Blob = ocispec.Descriptor{}, ocispec.Descriptor{}
		assert.Equal(t, want, got)
	}
	assert.Equal(t, ArtifactType, mustMap(t, data)["artifactType"])
}

func mustMap(t *testing.T, data []byte) map[string]any {
	var m map[string]any
	require.NoError(t, json.Unmarshal(data, &m))
	return m
}

func TestManifestsThatAreNotRight(t *testing.T) {
	config := blob(MediaTypeConfig, `{}`)
	annotate := func(layer int, name, value string) func(*ocispec.Manifest) {
		return func(m *ocispec.Manifest) { m.Layers[layer].Annotations[name] = value }
	}
	for name, tc := range map[string]struct {
		change func(*ocispec.Manifest)
		says   string
	}{
		"overlapping":         {annotate(1, AnnotationOffset, fmt.Sprint(1<<19)), "must be a number from 1048576"},
		"backwards":           {annotate(1, AnnotationOffset, "-1"), "must be a number from"},
		"not on a block":      {annotate(1, AnnotationOffset, fmt.Sprint(8<<20+1)), "not a multiple of 65536"},
		"endless":             {annotate(1, AnnotationSize, "9223372036854775807"), "must be a number from 1 to"},
		"at the end of all":   {annotate(1, AnnotationOffset, fmt.Sprint(1<<50)), "must be a number from"},
		"no size":             {func(m *ocispec.Manifest) { delete(m.Layers[0].Annotations, AnnotationSize) }, "annotation io.macrack.image.size is missing"},
		"more data than room": {annotate(0, AnnotationData, fmt.Sprint(2<<20)), "must be a number from 0 to 1048576"},
		"two nvrams":          {func(m *ocispec.Manifest) { m.Layers = append(m.Layers, m.Layers[2]) }, "there is a second"},
		"a huge nvram":        {annotate(2, AnnotationSize, fmt.Sprint(2<<30)), "the auxiliary storage has 2147483648 bytes"},
		"something else":      {func(m *ocispec.Manifest) { m.Layers[1].MediaType = "text/plain" }, `layer 1 has the unknown type "text/plain"`},
		"upper case":          {func(m *ocispec.Manifest) { m.Layers[0].Digest = digest.Digest("sha256:" + strings.Repeat("A", 64)) }, "64 lowercase hexadecimal digits"},
		"sha512":              {func(m *ocispec.Manifest) { m.Layers[0].Digest = digest.SHA512.FromString("x") }, "only sha256 with"},
		"a bomb backwards":    {func(m *ocispec.Manifest) { m.Layers[1].Size = 1 << 40 }, "bytes, and the limit is"},
		"a huge config":       {func(m *ocispec.Manifest) { m.Config.Size = 2 << 20 }, "and the limit is 1048576"},
	} {
		data, err := Manifest(config, chunks(), &Chunk{Blob: blob("", "aux"), Size: 100, Data: 100})
		require.NoError(t, err)
		var m ocispec.Manifest
		require.NoError(t, json.Unmarshal(data, &m))
		tc.change(&m)
		data, err = json.Marshal(m)
		require.NoError(t, err)
		_, err = Parse(data)
		require.ErrorContains(t, err, tc.says, name)
	}
	_, err := Parse([]byte("<html>"))
	require.ErrorContains(t, err, "not JSON")
}

func TestConfigsThatAreNotRight(t *testing.T) {
	data, err := Manifest(blob(MediaTypeConfig, `{}`), chunks(), nil)
	require.NoError(t, err)
	for config, says := range map[string]string{
		`{"diskSize":1000}`: "the last chunk ends at 8400953, the disk at 1000",
		`{"diskSize":-1}`:   "the disk size in the config is -1 bytes",
		`{}`:                "the disk size in the config is 0 bytes",
		`[]`:                "the config",
		`{"diskSize":9000000,"hardwareModel":"~~~"}`: "not base64",
	} {
		l, err := Parse(data)
		require.NoError(t, err)
		_, err = l.Complete([]byte(config))
		require.ErrorContains(t, err, says, config)
	}
}

func TestManifestThatIsTooLarge(t *testing.T) {
	_, err := Manifest(blob(MediaTypeConfig, `{}`), make([]Chunk, 30_000), nil)
	require.ErrorContains(t, err, "use larger chunks")
}

func FuzzParse(f *testing.F) {
	data, _ := Manifest(blob(MediaTypeConfig, `{}`), chunks(), nil)
	f.Add(data, []byte(`{"diskSize":9000000}`))
	f.Fuzz(func(t *testing.T, manifest, config []byte) {
		l, err := Parse(manifest)
		if err != nil {
			return
		}
		if _, err := l.Complete(config); err != nil {
			return
		}
		end := int64(0)
		for _, chunk := range l.Disk {
			if chunk.Offset < end || chunk.Size < 1 || chunk.Offset+chunk.Size > l.DiskSize {
				t.Fatalf("chunk at %d, %d bytes, of %d", chunk.Offset, chunk.Size, l.DiskSize)
			}
			end = chunk.Offset + chunk.Size
		}
	})
}

func TestUnknownFormat(t *testing.T) {
	_, err := Parse([]byte(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json"}}`))
	require.EqualError(t, err, `unknown image format with config "application/vnd.oci.image.config.v1+json"; use MacRack's (config `+MediaTypeConfig+`) or tart's (layers `+tartDisk+`)`)
}
