package images

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/images/format"
)

func TestPushAndPull(t *testing.T) {
	w := newWorld(t)
	assert.Equal(t, w.pushed.Digest, w.push("macos/26:xcode-26", w.disk).Digest, "the same files give the same digest")
	assert.EqualValues(t, testDisk, w.pushed.DiskSize)

	// A tag that has moved does not matter.
	other := w.push("macos/26:xcode-26", make([]byte, 3*testChunk))
	require.NotEqual(t, w.pushed.Digest, other.Digest)

	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
	assert.Equal(t, base64.StdEncoding.EncodeToString([]byte("model")), cached.HardwareModel)
	assert.Equal(t, "aWQ=", cached.MachineID)
	assert.Equal(t, w.image.Digest, cached.Digest)
	info, err := os.Stat(cached.Disk)
	require.NoError(t, err)
	assert.Less(t, disk.Allocated(info), int64(testDisk-4*testChunk-900_000), "zeros take no room, also those within a chunk")
	assert.LessOrEqual(t, disk.Allocated(info), w.pushed.Bytes+4096, "the push said how much room it takes")
	require.Len(t, w.events, 2)
	assert.Equal(t, EventPulling, w.events[0].Reason)
	assert.Equal(t, EventPulled, w.events[1].Reason)
	assert.Contains(t, w.events[1].Message, "Pulled image macos-26 in ")
	assert.NoFileExists(t, filepath.Join(w.store.Dir, "macos-26", journalName))

	// An image in the store causes no requests.
	before := len(w.requests())
	w.setBefore(func(http.ResponseWriter, *http.Request) bool { t.Error("a request"); return false })
	again, err := w.ensure()
	require.NoError(t, err)
	assert.True(t, again.LastUsedAt.After(cached.LastUsedAt))
	assert.Len(t, w.requests(), before)
	assert.Len(t, w.events, 2)
}

func TestImageOfZeros(t *testing.T) {
	w := newWorld(t)
	w.disk = make([]byte, 5*testChunk+1)
	pushed := w.push("macos/26:empty", w.disk)
	assert.Zero(t, pushed.Bytes)
	w.image.Digest = pushed.Digest.String()
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
}

// Where holes are not reliable, the whole file is read, and the image is the same.
func TestPushReadsHoles(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(3*testChunk+1))
	_, err = f.WriteAt([]byte("data"), testChunk+100_000)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	aux := filepath.Join(t.TempDir(), "nvram.bin")
	require.NoError(t, os.WriteFile(aux, []byte("another"), 0o600))
	opts := PushOptions{Disk: path, Aux: aux, HardwareModel: "bW9kZWw=", Reference: w.host() + "/macos/26:holes", Clock: clock.RealClock{}, chunkSize: testChunk}
	want, err := Push(t.Context(), opts)
	require.NoError(t, err)
	opts.readHoles = true
	got, err := Push(t.Context(), opts)
	require.NoError(t, err)
	assert.Equal(t, want.Compressed+configSize(t, opts), want.Uploaded)
	assert.Zero(t, got.Uploaded, "the registry has it")
	want.Uploaded = 0
	assert.Equal(t, want, got)
	assert.EqualValues(t, 64<<10, got.Bytes)

	f, err = os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	for _, readHoles := range []bool{false, true} {
		p := &pusher{opts: PushOptions{readHoles: readHoles}}
		hole, err := p.isHole(f, 2*testChunk, 3*testChunk)
		require.NoError(t, err)
		assert.Equal(t, !readHoles, hole)
	}
}

// A disk that a virtual machine writes during the push would be a mix of two states.
func TestPushOfAChangingDisk(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	path, aux := filepath.Join(dir, "disk.img"), filepath.Join(dir, "nvram.bin")
	require.NoError(t, os.WriteFile(path, make([]byte, 4*testChunk), 0o600))
	require.NoError(t, os.WriteFile(aux, []byte("nvram"), 0o600))
	past := time.Now().Add(-time.Hour) // the clock of the file system is coarse
	require.NoError(t, os.Chtimes(path, past, past))
	opts := PushOptions{
		Disk: path, Aux: aux, HardwareModel: "bW9kZWw=", Reference: w.host() + "/macos/26:changing", Clock: clock.RealClock{}, Parallel: 1, chunkSize: testChunk,
		OnProgress: func(Progress) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			require.NoError(t, err)
			defer f.Close()
			_, err = f.WriteAt([]byte("x"), 0)
			require.NoError(t, err)
		},
	}
	_, err := Push(t.Context(), opts)
	require.ErrorContains(t, err, "disk.img changed during the push; shut its virtual machine down")
	opts.OnProgress = nil
	_, err = Push(t.Context(), opts)
	require.NoError(t, err)
}

func configSize(t *testing.T, opts PushOptions) int64 {
	info, err := os.Stat(opts.Disk)
	require.NoError(t, err)
	config, err := json.Marshal(format.Config{DiskSize: info.Size(), HardwareModel: opts.HardwareModel})
	require.NoError(t, err)
	return int64(len(config))
}

// TestProgressEndsWithThePush uses a registry that accepts no manifest, or no blob.
func TestProgressEndsWithThePush(t *testing.T) {
	for name, refused := range map[string]string{"": "all", "blobs": "/blobs/", "the manifest": "/manifests/"} {
		w := newWorld(t)
		target := w.host()
		if name != "" {
			backend := w.registry
			server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodHead && r.Method != http.MethodGet && strings.Contains(r.URL.Path, refused) {
					rw.WriteHeader(http.StatusForbidden)
					return
				}
				backend.ServeHTTP(rw, r)
			}))
			defer server.Close()
			target = strings.TrimPrefix(server.URL, "http://")
		}
		dir := t.TempDir()
		disk, aux := filepath.Join(dir, "disk.img"), filepath.Join(dir, "nvram.bin")
		require.NoError(t, os.WriteFile(disk, []byte(strings.Repeat("macOS", testChunk)), 0o600))
		require.NoError(t, os.WriteFile(aux, []byte("nvram"), 0o600))
		var last Progress
		complete := 0
		_, err := Push(t.Context(), PushOptions{
			Disk: disk, Aux: aux, HardwareModel: "bW9kZWw=", Reference: target + "/progress:x", Clock: clock.RealClock{}, chunkSize: testChunk,
			OnProgress: func(p Progress) {
				last = p
				if p.Done == p.Total {
					complete++
				}
			},
		})
		if name == "" {
			require.NoError(t, err)
			assert.Equal(t, last.Total, last.Done)
			assert.Equal(t, 1, complete)
			continue
		}
		assert.ErrorContains(t, err, "403", name)
		assert.Zero(t, complete, "%s: 100%% was shown of a push that failed", name)
	}
}
