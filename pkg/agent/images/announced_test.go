package images

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/images/format"
	"macrack.io/macrack/pkg/images/ociclient"
)

// manifest returns the manifest that the test pushed.
func (w *world) manifest() (m ocispec.Manifest, client *ociclient.Client) {
	w.t.Helper()
	client, err := ociclient.New(ociclient.Options{Reference: w.image.Reference, Clock: clock.RealClock{}})
	require.NoError(w.t, err)
	data, err := client.Manifest(w.t.Context(), digest.Digest(w.image.Digest), format.MaxManifest)
	require.NoError(w.t, err)
	require.NoError(w.t, json.Unmarshal(data, &m))
	return m, client
}

// Storage is reserved for the announced size, so no more than that may be written.
func TestImageWithMoreDataThanItAnnounces(t *testing.T) {
	w := newWorld(t)
	m, client := w.manifest()
	for i := range m.Layers {
		if m.Layers[i].MediaType == format.MediaTypeDisk {
			m.Layers[i].Annotations[format.AnnotationData] = "0"
		}
	}
	data, err := json.Marshal(m)
	require.NoError(t, err)
	lies := descriptor(ocispec.MediaTypeImageManifest, data)
	require.NoError(t, client.PushManifest(t.Context(), lies, data))
	w.image.Digest = lies.Digest.String()
	w.store.Parallel = 1
	w.store.free = func(string) (int64, error) { return 1 << 20, nil }

	before := len(w.requests())
	_, err = w.ensure()
	require.ErrorContains(t, err, "has more data than the 0 bytes in the manifest (annotation io.macrack.image.data)")
	assert.Len(t, w.requests()[before:], 2, "the config and one blob, once: another try would be no better")
	info, err := os.Stat(filepath.Join(w.store.Dir, w.image.Name, diskName))
	require.NoError(t, err)
	assert.Zero(t, disk.Allocated(info))
}

// A corrupt blob may seem to have too much data: it is downloaded again.
func TestCorruptBlobIsDownloadedAgain(t *testing.T) {
	w := newWorld(t)
	w.disk = make([]byte, 2*testChunk)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(w.disk[:format.BlockSize])
	copy(w.disk[testChunk:], bytes.Repeat([]byte("compresses well "), testChunk/16))
	w.image.Digest = w.push("macos/26:two", w.disk).Digest.String()
	m, client := w.manifest()
	little, much := m.Layers[0], m.Layers[1]
	require.Equal(t, "65536", little.Annotations[format.AnnotationData])
	require.Less(t, much.Size, little.Size)
	damage, err := client.Blob(t.Context(), much, format.MaxConfig)
	require.NoError(t, err)
	damage = append(damage, make([]byte, little.Size-much.Size)...)

	damaged := 0
	w.store.Parallel = 1
	w.setBefore(func(rw http.ResponseWriter, r *http.Request) bool {
		if damaged == 2 || !strings.HasSuffix(r.URL.Path, little.Digest.String()) {
			return false
		}
		damaged++
		_, _ = rw.Write(damage)
		return true
	})
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
	assert.Equal(t, 2, damaged)
}
