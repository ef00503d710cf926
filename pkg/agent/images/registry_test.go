package images

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

const (
	testChunk = 1 << 20
	testDisk  = 12*testChunk + 300_000
)

// world is a registry on loopback with an image, and a store that pulls from it.
type world struct {
	t        *testing.T
	server   *httptest.Server
	registry http.Handler // without interference
	store    *OCI
	// disk and aux are the pushed files.
	disk, aux []byte
	image     Image
	pushed    Pushed
	stall     time.Duration // of pushes
	events    []Event

	mu    sync.Mutex
	blobs []string // paths of GETs of blobs, with their Range
	// before receives each request and may respond to it.
	before func(w http.ResponseWriter, r *http.Request) (answered bool)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, disk: testContent(), aux: bytes.Repeat([]byte("nvram"), 1000)}
	w.registry = ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	w.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		before := w.before
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			w.blobs = append(w.blobs, strings.TrimSpace(filepath.Base(r.URL.Path)+" "+r.Header.Get("Range")))
		}
		w.mu.Unlock()
		if before != nil && before(rw, r) {
			return
		}
		w.registry.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.server.Close)
	w.store = w.newStore()
	w.pushed = w.push("macos/26:xcode-26", w.disk)
	w.image = Image{Name: "macos-26", Reference: w.host() + "/macos/26:xcode-26", Digest: w.pushed.Digest.String(), DiskSize: 1 << 30}
	return w
}

// testContent is a disk with data, zeros and a ragged end. Chunks 4 to 7 are zeros, chunk 2 has
// data in one block.
func testContent() []byte {
	content := make([]byte, testDisk)
	source := rand.NewChaCha8([32]byte{1})
	for _, part := range [][2]int{{0, 2 * testChunk}, {2*testChunk + 500_000, 2*testChunk + 500_010}, {3*testChunk + 7, 4 * testChunk}, {8 * testChunk, testDisk}} {
		_, _ = source.Read(content[part[0]:part[1]])
	}
	copy(content[9*testChunk:], bytes.Repeat([]byte("compresses well "), testChunk/16))
	return content
}

func (w *world) host() string { return strings.TrimPrefix(w.server.URL, "http://") }

func (w *world) newStore() *OCI {
	return &OCI{Dir: filepath.Join(w.t.TempDir(), "images"), Clock: clock.RealClock{}, wait: time.Millisecond, stall: 5 * time.Second}
}

func (w *world) push(reference string, content []byte) Pushed {
	w.t.Helper()
	dir := w.t.TempDir()
	disk, aux := filepath.Join(dir, "disk.img"), filepath.Join(dir, "nvram.bin")
	require.NoError(w.t, os.WriteFile(disk, content, 0o600))
	require.NoError(w.t, os.WriteFile(aux, w.aux, 0o600))
	pushed, err := Push(w.t.Context(), PushOptions{
		Disk: disk, Aux: aux, HardwareModel: base64.StdEncoding.EncodeToString([]byte("model")), MachineID: "aWQ=",
		Reference: w.host() + "/" + reference, Clock: clock.RealClock{}, chunkSize: testChunk, stall: w.stall,
	})
	require.NoError(w.t, err)
	return pushed
}

func (w *world) needs() Needs {
	return Needs{OnEvent: func(e Event) { w.events = append(w.events, e) }}
}

func (w *world) ensure() (Cached, error) {
	w.t.Helper()
	return w.store.Ensure(w.t.Context(), w.image, w.needs())
}

// interfere receives the requests for blobs of the disk's chunks.
func (w *world) interfere(with func(rw http.ResponseWriter, r *http.Request, n int) bool) {
	var n atomic.Int64
	w.setBefore(func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || r.Method != http.MethodGet || strings.HasSuffix(r.URL.Path, w.configDigest()) {
			return false
		}
		return with(rw, r, int(n.Add(1)))
	})
}

func (w *world) setBefore(before func(http.ResponseWriter, *http.Request) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before = before
}

func (w *world) configDigest() string {
	data, _ := json.Marshal(map[string]any{"diskSize": len(w.disk), "hardwareModel": base64.StdEncoding.EncodeToString([]byte("model")), "machineIdentifier": "aWQ="})
	return digest.FromBytes(data).Encoded()
}

func (w *world) requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.blobs)
}

func (w *world) check(cached Cached) {
	w.t.Helper()
	got, err := os.ReadFile(cached.Disk)
	require.NoError(w.t, err)
	assert.True(w.t, bytes.Equal(w.disk, got), "the disk is as it was pushed")
	aux, err := os.ReadFile(cached.Aux)
	require.NoError(w.t, err)
	assert.Equal(w.t, w.aux, aux)
	list, err := w.store.List()
	require.NoError(w.t, err)
	require.Len(w.t, list, 1)
	assert.Equal(w.t, cached, list[0])
}
