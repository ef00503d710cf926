package images

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/images/format"
	"macrack.io/macrack/pkg/images/ociclient"
	"macrack.io/macrack/pkg/images/verify"
)

func TestPulledOnceForMany(t *testing.T) {
	w := newWorld(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			cached, err := w.store.Ensure(t.Context(), w.image, Needs{})
			assert.NoError(t, err)
			assert.Equal(t, w.image.Digest, cached.Digest)
		})
	}
	all.Wait()
	counts := map[string]int{}
	for _, request := range w.requests() {
		counts[request]++
	}
	assert.Equal(t, []int{1}, slices.Compact(slices.Sorted(maps.Values(counts))))
}

// During a pull, the disk never holds more than after it.
func TestPeakDiskUse(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.store.Dir, w.image.Name)
	var peak atomic.Int64
	look := func() {
		if now, err := occupied(dir); err == nil && now > peak.Load() {
			peak.Store(now)
		}
	}
	w.interfere(func(http.ResponseWriter, *http.Request, int) bool { look(); return false })
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(time.Millisecond):
				look()
			}
		}
	})
	cached, err := w.ensure()
	close(ended)
	watching.Wait()
	require.NoError(t, err)
	w.check(cached)
	const slack = 64 << 10 // journal and metadata
	assert.LessOrEqual(t, peak.Load(), cached.Bytes+slack)
	assert.Greater(t, peak.Load(), cached.Bytes/2)
	t.Logf("peak %d bytes, in the end %d, downloaded %d", peak.Load(), cached.Bytes, w.pushed.Compressed)
}

// fullFile is a file on a disk that becomes full.
type fullFile struct {
	file
	left *atomic.Int64
}

func (f fullFile) WriteAt(p []byte, offset int64) (int, error) {
	if f.left.Add(-int64(len(p))) < 0 {
		return 0, &os.PathError{Op: "write", Path: "disk.img", Err: syscall.ENOSPC}
	}
	return f.file.WriteAt(p, offset)
}

func TestDiskFull(t *testing.T) {
	w := newWorld(t)
	var left atomic.Int64
	left.Store(3 * testChunk)
	w.store.open = func(path string) (file, error) {
		f, err := openFile(path)
		return fullFile{f, &left}, err
	}
	_, err := w.ensure()
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "the disk became full during the pull of image macos-26")
	assert.NoDirExists(t, filepath.Join(w.store.Dir, w.image.Name), "virtual machines get the room")
	list, err := w.store.List()
	require.NoError(t, err)
	assert.Empty(t, list)
	left.Store(1 << 40)
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
}

func TestAnotherManifestIsRefused(t *testing.T) {
	w := newWorld(t)
	other := w.push("macos/26:other", make([]byte, testChunk))
	w.setBefore(func(_ http.ResponseWriter, r *http.Request) bool {
		r.URL.Path = strings.Replace(r.URL.Path, "manifests/"+w.image.Digest, "manifests/"+other.Digest.String(), 1)
		return false
	})
	_, err := w.ensure()
	var wrong *ociclient.DigestError
	require.ErrorAs(t, err, &wrong)
	assert.Equal(t, w.image.Digest, wrong.Want.String())
	assert.NoDirExists(t, filepath.Join(w.store.Dir, w.image.Name))
}

// A disk boots only with the auxiliary storage that macOS' installer wrote.
func TestPullWithoutAuxIsRefused(t *testing.T) {
	w := newWorld(t)
	client, err := ociclient.New(ociclient.Options{Reference: w.image.Reference, Clock: clock.RealClock{}})
	require.NoError(t, err)
	manifest, err := client.Manifest(t.Context(), w.pushed.Digest, format.MaxManifest)
	require.NoError(t, err)
	var m ocispec.Manifest
	require.NoError(t, json.Unmarshal(manifest, &m))
	last := len(m.Layers) - 1
	require.Equal(t, format.MediaTypeAux, m.Layers[last].MediaType)
	m.Layers = m.Layers[:last]
	manifest, err = json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, client.PushManifest(t.Context(), descriptor(ocispec.MediaTypeImageManifest, manifest), manifest))
	w.image.Digest = digest.FromBytes(manifest).String()
	_, err = w.ensure()
	require.ErrorContains(t, err, "the image has no auxiliary storage")
	assert.Equal(t, verify.Reason(err), "Incomplete")
	assert.NoDirExists(t, filepath.Join(w.store.Dir, w.image.Name), "nothing is fetched")
}

func TestRefusals(t *testing.T) {
	w := newWorld(t)
	for name, tc := range map[string]struct {
		change func(*Image)
		says   string
	}{
		"no such manifest":   {func(i *Image) { i.Digest = digest.FromString("nothing").String() }, "responds with 404"},
		"no digest":          {func(i *Image) { i.Digest = "sha256:26" }, "invalid digest"},
		"no name":            {func(i *Image) { i.Name = "../etc" }, "use the name of a MacOSImage"},
		"too large":          {func(i *Image) { i.DiskSize = testDisk - 1 }, "spec.diskSize of MacOSImage macos-26 is"},
		"a foreign registry": {func(i *Image) { i.Reference = "registry.invalid/macos/26" }, "registry registry.invalid: "},
		"no reference":       {func(i *Image) { i.Reference = "!" }, "reference"},
	} {
		image := w.image
		tc.change(&image)
		_, err := w.store.Ensure(t.Context(), image, Needs{})
		require.ErrorContains(t, err, tc.says, name)
	}
}
