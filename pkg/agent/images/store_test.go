package images

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/images/format"
	"macrack.io/macrack/pkg/images/ociclient"
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
		Disk: disk, Aux: aux, HardwareModel: base64.StdEncoding.EncodeToString([]byte("model")),
		Reference: w.host() + "/" + reference, Clock: clock.RealClock{}, chunkSize: testChunk,
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
	data, _ := json.Marshal(map[string]any{"diskSize": len(w.disk), "hardwareModel": base64.StdEncoding.EncodeToString([]byte("model"))})
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

// A killed agent leaves a partial pull that its successor resumes.
func TestKilledPullGoesOn(t *testing.T) {
	if dir := os.Getenv("TEST_PULL_DIR"); dir != "" {
		store := &OCI{Dir: dir, Clock: clock.RealClock{}, Parallel: 2}
		var image Image
		require.NoError(t, json.Unmarshal([]byte(os.Getenv("TEST_PULL_IMAGE")), &image))
		_, err := store.Ensure(context.Background(), image, Needs{})
		t.Fatal("the pull was to be killed, but ended: ", err)
	}
	w := newWorld(t)
	release := make(chan struct{})
	w.interfere(func(_ http.ResponseWriter, r *http.Request, n int) bool {
		if n > 4 { // the rest does not come
			select {
			case <-release:
			case <-r.Context().Done():
				return true
			}
		}
		return false
	})
	spec, err := json.Marshal(w.image)
	require.NoError(t, err)
	child := exec.Command(os.Args[0], "-test.run=^TestKilledPullGoesOn$", "-test.count=1")
	child.Env = append(os.Environ(), "TEST_PULL_DIR="+w.store.Dir, "TEST_PULL_IMAGE="+string(spec))
	var out bytes.Buffer
	child.Stdout, child.Stderr = &out, &out
	require.NoError(t, child.Start())
	require.Eventually(t, func() bool {
		j, err := w.store.readJournal(w.image.Name)
		return err == nil && len(j.Chunks) >= 4
	}, 20*time.Second, 20*time.Millisecond, "the journal has what was fetched: %s", &out)
	require.NoError(t, child.Process.Signal(syscall.SIGKILL))
	require.Error(t, child.Wait())
	close(release)

	list, err := w.store.List()
	require.NoError(t, err)
	assert.Empty(t, list, "what is not complete is not listed")
	unfinished, err := w.store.Unfinished()
	require.NoError(t, err)
	require.Len(t, unfinished, 1)
	assert.Equal(t, w.image.Digest, unfinished[0].Digest)
	assert.NotZero(t, unfinished[0].Bytes)

	j, err := w.store.readJournal(w.image.Name)
	require.NoError(t, err)
	before := len(w.requests())
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
	const chunks = 8 + 1 + 1 // of data, of the auxiliary storage, and the config
	assert.Len(t, w.requests()[before:], chunks+1-len(j.Chunks), "what was there is not fetched again")
	assert.Contains(t, w.events[0].Message, "going on at ")
	assert.Contains(t, w.events[1].Message, "reused from an earlier pull")
}

// Data that a killed agent wrote of an unfinished chunk is overwritten.
func TestRemainsAreOverwritten(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.store.Dir, w.image.Name)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, diskName), bytes.Repeat([]byte{0xff}, 4*testChunk), 0o600))
	require.NoError(t, os.Truncate(filepath.Join(dir, diskName), testDisk))
	require.NoError(t, os.WriteFile(filepath.Join(dir, auxName), make([]byte, len(w.aux)), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, journalName), fmt.Appendf(nil, `{"digest":%q}`, w.image.Digest), 0o600))
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
}

func TestRemainsOfOthersAreNotUsed(t *testing.T) {
	for name, prepare := range map[string]func(dir string, image Image) error{
		"another image": func(dir string, _ Image) error {
			return os.WriteFile(filepath.Join(dir, journalName), []byte(`{"digest":"sha256:other","chunks":[0,1,2,3,4,5,6,7,8]}`), 0o600)
		},
		"no disk": func(dir string, image Image) error {
			return errors.Join(os.Remove(filepath.Join(dir, diskName)), os.WriteFile(filepath.Join(dir, journalName), fmt.Appendf(nil, `{"digest":%q,"chunks":[0,1,2]}`, image.Digest), 0o600))
		},
		"no auxiliary storage": func(dir string, image Image) error {
			return os.WriteFile(filepath.Join(dir, journalName), fmt.Appendf(nil, `{"digest":%q,"chunks":[0,1,2,3,4,5,6,7,8,9]}`, image.Digest), 0o600)
		},
		"a torn journal": func(dir string, _ Image) error {
			return os.WriteFile(filepath.Join(dir, journalName), []byte(`{"dig`), 0o600)
		},
		"torn metadata": func(dir string, _ Image) error {
			return os.WriteFile(filepath.Join(dir, metadataName), []byte(`{"dig`), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			dir := filepath.Join(w.store.Dir, w.image.Name)
			require.NoError(t, os.MkdirAll(dir, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, diskName), nil, 0o600))
			require.NoError(t, os.Truncate(filepath.Join(dir, diskName), testDisk))
			require.NoError(t, prepare(dir, w.image))
			cached, err := w.ensure()
			require.NoError(t, err)
			w.check(cached)
		})
	}
}

func TestRegistryFails(t *testing.T) {
	short := func(rw http.ResponseWriter, r *http.Request, w *world, n int) { // the first n bytes, and then the connection breaks
		recorder := httptest.NewRecorder()
		w.registry.ServeHTTP(recorder, r)
		for name, values := range recorder.Header() {
			rw.Header()[name] = values
		}
		rw.WriteHeader(recorder.Code)
		_, _ = rw.Write(recorder.Body.Bytes()[:min(n, recorder.Body.Len())])
		rw.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	flip := func(rw http.ResponseWriter, r *http.Request, w *world) {
		recorder := httptest.NewRecorder()
		w.registry.ServeHTTP(recorder, r)
		body := recorder.Body.Bytes()
		body[len(body)/2] ^= 1
		rw.Header().Set("Content-Length", fmt.Sprint(len(body)))
		rw.WriteHeader(recorder.Code)
		_, _ = rw.Write(body)
	}
	hang := func(r *http.Request) { <-r.Context().Done() }
	status := func(rw http.ResponseWriter, code int) bool {
		rw.WriteHeader(code)
		_, _ = io.WriteString(rw, `{"errors":[{"code":"TOOMANYREQUESTS","message":"not\nnow"}]}`)
		return true
	}
	for name, tc := range map[string]struct {
		fault func(w *world) func(rw http.ResponseWriter, r *http.Request, n int) bool
		fails []string // what the error says; empty: it gets over it
	}{
		"a break in each": {fault: func(w *world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, r *http.Request, _ int) bool {
				if r.Header.Get("Range") == "" {
					short(rw, r, w, 1000)
				}
				return false
			}
		}},
		"a break, and no ranges": {fault: func(w *world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, r *http.Request, n int) bool {
				r.Header.Del("Range")
				if n <= 3 {
					short(rw, r, w, 1000)
				}
				return false
			}
		}},
		"breaks for ever": {fault: func(w *world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, r *http.Request, _ int) bool { short(rw, r, w, 0); return true }
		}, fails: []string{"6 attempts failed, the last with: registry 127.0.0.1", "EOF"}},
		"damage once": {fault: func(w *world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, r *http.Request, n int) bool {
				if n == 2 {
					flip(rw, r, w)
				}
				return n == 2
			}
		}},
		"damage for ever": {fault: func(w *world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, r *http.Request, _ int) bool { flip(rw, r, w); return true }
		}, fails: []string{"arrived corrupt 3 times"}},
		"a hang": {fault: func(*world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(_ http.ResponseWriter, r *http.Request, n int) bool {
				if n == 1 {
					hang(r)
				}
				return n == 1
			}
		}},
		"a hang in the middle, for ever": {fault: func(w *world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, r *http.Request, _ int) bool {
				if r.Header.Get("Range") == "" {
					recorder := httptest.NewRecorder()
					w.registry.ServeHTTP(recorder, r)
					rw.Header().Set("Content-Length", fmt.Sprint(recorder.Body.Len()))
					_, _ = rw.Write(recorder.Body.Bytes()[:10])
					rw.(http.Flusher).Flush()
				}
				hang(r)
				return true
			}
		}, fails: []string{"has sent nothing for 200ms"}},
		"500 now and then": {fault: func(*world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, _ *http.Request, n int) bool {
				return n%2 == 1 && n < 12 && status(rw, http.StatusInternalServerError)
			}
		}},
		"500 for ever": {fault: func(*world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, _ *http.Request, _ int) bool {
				return status(rw, http.StatusServiceUnavailable)
			}
		}, fails: []string{"6 attempts failed", "responds with 503 Service Unavailable", "not now"}},
		"429 with a wait that is too long": {fault: func(*world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, _ *http.Request, _ int) bool {
				rw.Header().Set("Retry-After", "3600")
				return status(rw, http.StatusTooManyRequests)
			}
		}, fails: []string{"requests a wait of 1h0m0s", "429"}},
		"gone": {fault: func(*world) func(http.ResponseWriter, *http.Request, int) bool {
			return func(rw http.ResponseWriter, _ *http.Request, _ int) bool { return status(rw, http.StatusNotFound) }
		}, fails: []string{"responds with 404", "was never pushed to the repository, or was deleted"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.store.stall = 200 * time.Millisecond
			w.interfere(tc.fault(w))
			cached, err := w.ensure()
			if len(tc.fails) == 0 {
				require.NoError(t, err)
				w.check(cached)
				return
			}
			require.Error(t, err)
			for _, text := range tc.fails {
				assert.ErrorContains(t, err, text)
			}
			list, err := w.store.List()
			require.NoError(t, err)
			assert.Empty(t, list)
			// Once the registry works again, the pull succeeds.
			w.setBefore(nil)
			cached, err = w.ensure()
			require.NoError(t, err)
			w.check(cached)
		})
	}
}

func TestBrokenTransferGoesOn(t *testing.T) {
	w := newWorld(t)
	w.store.Parallel = 1
	w.interfere(func(rw http.ResponseWriter, r *http.Request, n int) bool {
		if n != 1 {
			return false
		}
		recorder := httptest.NewRecorder()
		w.registry.ServeHTTP(recorder, r)
		rw.Header().Set("Content-Length", fmt.Sprint(recorder.Body.Len()))
		_, _ = rw.Write(recorder.Body.Bytes()[:5000])
		panic(http.ErrAbortHandler)
	})
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
	assert.True(t, slices.ContainsFunc(w.requests(), func(r string) bool { return strings.Contains(r, " bytes=5000-") }), "it goes on where it broke off: %v", w.requests())
}

func TestRetryAfterIsKept(t *testing.T) {
	w := newWorld(t)
	w.store.Parallel = 1
	var refused time.Time
	var waited time.Duration
	w.interfere(func(rw http.ResponseWriter, _ *http.Request, n int) bool {
		switch n {
		case 1:
			refused = time.Now()
			rw.Header().Set("Retry-After", "1")
			rw.WriteHeader(http.StatusTooManyRequests)
			return true
		case 2:
			waited = time.Since(refused)
		}
		return false
	})
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
	assert.GreaterOrEqual(t, waited, time.Second)
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

// The credentials are used but not stored.
func TestCredentials(t *testing.T) {
	const user, password = "robot", "correct horse battery staple"
	w := newWorld(t)
	basic := func(rw http.ResponseWriter, r *http.Request) bool {
		if u, p, ok := r.BasicAuth(); ok && u == user && p == password {
			return false
		}
		rw.Header().Set("WWW-Authenticate", `Basic realm="images"`)
		rw.WriteHeader(http.StatusUnauthorized)
		return true
	}
	bearer := func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			if u, p, ok := r.BasicAuth(); !ok || u != user || p != password {
				rw.WriteHeader(http.StatusUnauthorized)
			} else {
				_, _ = io.WriteString(rw, `{"token":"a-token-that-nobody-else-has"}`)
			}
			return true
		}
		if r.Header.Get("Authorization") == "Bearer a-token-that-nobody-else-has" {
			return false
		}
		rw.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="images",scope="repository:macos/26:pull"`, w.server.URL))
		rw.WriteHeader(http.StatusUnauthorized)
		return true
	}
	secret := func(password string) func(context.Context) ([]byte, error) {
		return func(context.Context) ([]byte, error) {
			return fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, w.host(), base64.StdEncoding.EncodeToString([]byte(user+":"+password))), nil
		}
	}
	logged := captureLog(t)
	for name, protect := range map[string]func(http.ResponseWriter, *http.Request) bool{"basic": basic, "bearer": bearer} {
		t.Run(name, func(t *testing.T) {
			w.store = w.newStore()
			w.setBefore(protect)
			for _, needs := range []Needs{{}, {Credentials: secret("wrong")}} {
				_, err := w.store.Ensure(t.Context(), w.image, needs)
				require.ErrorContains(t, err, "401 Unauthorized")
				require.ErrorContains(t, err, "see spec.pullSecretRef")
				assert.True(t, ociclient.IsUnauthorized(err))
				assert.NotContains(t, err.Error(), "wrong")
			}
			_, err := w.store.Ensure(t.Context(), w.image, Needs{Credentials: func(context.Context) ([]byte, error) { return []byte(password), nil }})
			require.ErrorContains(t, err, "not in the form of kubernetes.io/dockerconfigjson")
			assert.NotContains(t, err.Error(), password)
			_, err = w.store.Ensure(t.Context(), w.image, Needs{Credentials: func(context.Context) ([]byte, error) { return nil, errors.New("no Secret") }})
			require.ErrorContains(t, err, "no Secret")

			cached, err := w.store.Ensure(t.Context(), w.image, Needs{Credentials: secret(password)})
			require.NoError(t, err)
			w.check(cached)
			require.NoError(t, filepath.WalkDir(w.store.Dir, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() {
					return err
				}
				content, err := os.ReadFile(path)
				for _, word := range []string{password, base64.StdEncoding.EncodeToString([]byte(user + ":" + password)), "a-token-that"} {
					assert.NotContains(t, string(content), word, path)
				}
				return err
			}))
		})
	}
	assert.Contains(t, logged(), "Image pulled")
	for _, word := range []string{password, "wrong", "a-token-that", base64.StdEncoding.EncodeToString([]byte(user + ":"))[:8]} {
		assert.NotContains(t, logged(), word)
	}
}

// captureLog returns the logged text.
func captureLog(t *testing.T) func() string {
	var mu sync.Mutex
	var buf bytes.Buffer
	state := klog.CaptureState()
	klog.LogToStderr(false)
	klog.SetOutput(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return buf.Write(p)
	}))
	t.Cleanup(func() {
		klog.Flush()
		klog.SetOutput(io.Discard)
		state.Restore()
	})
	return func() string {
		klog.Flush()
		mu.Lock()
		defer mu.Unlock()
		return buf.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// An image that is missing on the disk is not listed, and is pulled again.
func TestListIsTrue(t *testing.T) {
	for name, harm := range map[string]func(dir string) error{
		"everything":     func(dir string) error { return os.RemoveAll(filepath.Dir(dir)) },
		"its directory":  os.RemoveAll,
		"its disk":       func(dir string) error { return os.Remove(filepath.Join(dir, diskName)) },
		"half its disk":  func(dir string) error { return os.Truncate(filepath.Join(dir, diskName), testDisk/2) },
		"its metadata":   func(dir string) error { return os.Remove(filepath.Join(dir, metadataName)) },
		"its metadata's": func(dir string) error { return os.WriteFile(filepath.Join(dir, metadataName), nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			_, err := w.ensure()
			require.NoError(t, err)
			require.NoError(t, harm(filepath.Join(w.store.Dir, w.image.Name)))
			list, err := w.store.List()
			require.NoError(t, err)
			assert.Empty(t, list)
			cached, err := w.ensure()
			require.NoError(t, err)
			w.check(cached)
		})
	}
}

func TestRemove(t *testing.T) {
	w := newWorld(t)
	w.image.Private = true
	fetching := make(chan struct{})
	w.interfere(func(_ http.ResponseWriter, r *http.Request, n int) bool {
		if n == 5 {
			close(fetching)
		}
		if n >= 5 {
			<-r.Context().Done()
		}
		return n >= 5
	})
	failed := make(chan error, 1)
	go func() { _, err := w.store.Ensure(t.Context(), w.image, Needs{}); failed <- err }()
	<-fetching
	progress, found := w.store.Progress(w.image.Name)
	require.True(t, found)
	assert.Equal(t, w.pushed.Compressed, progress.Total)
	assert.Regexp(t, `^\d+% \(.* of .*\)$`, progress.String())
	unfinished, err := w.store.Unfinished()
	require.NoError(t, err)
	require.Len(t, unfinished, 1)
	assert.True(t, unfinished[0].Private, "a scrub finds what a tenant's credentials have fetched, also in part")

	require.NoError(t, w.store.Remove(w.image.Name))
	require.ErrorIs(t, <-failed, errRemoved)
	assert.NoDirExists(t, filepath.Join(w.store.Dir, w.image.Name))
	_, found = w.store.Progress(w.image.Name)
	assert.False(t, found)

	w.setBefore(nil)
	_, err = w.ensure()
	require.NoError(t, err)
	require.NoError(t, w.store.Remove(w.image.Name))
	require.NoError(t, w.store.Remove(w.image.Name))
	list, err := w.store.List()
	require.NoError(t, err)
	assert.Empty(t, list)
	require.Error(t, w.store.Remove(".."))
}

func TestCancelledPullGoesOn(t *testing.T) {
	w := newWorld(t)
	w.store.Parallel = 1
	ctx, cancel := context.WithCancel(t.Context())
	w.interfere(func(_ http.ResponseWriter, r *http.Request, n int) bool {
		if n == 4 {
			cancel()
			<-r.Context().Done()
		}
		return n == 4
	})
	_, err := w.store.Ensure(ctx, w.image, Needs{})
	require.ErrorIs(t, err, context.Canceled)
	j, err := w.store.readJournal(w.image.Name)
	require.NoError(t, err)
	assert.Equal(t, []int{0, 1, 2}, j.Chunks, "nothing that was fetched is lost")
	cached, err := w.ensure()
	require.NoError(t, err)
	w.check(cached)
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

// finite is a disk of limited size that holds only images.
func (w *world) finite(size int64) {
	w.store.free = func(string) (int64, error) {
		all, err := names(w.store.Dir)
		free := size
		for _, name := range all {
			n, _ := occupied(filepath.Join(w.store.Dir, name))
			free -= n
		}
		return free, err
	}
}

func TestEviction(t *testing.T) {
	const mib = 1 << 20
	w := newWorld(t)
	fake := clocktesting.NewFakeClock(time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC))
	w.store.Clock = fake
	content := func(seed byte, chunks int) []byte {
		data := make([]byte, chunks*testChunk)
		_, _ = rand.NewChaCha8([32]byte{seed}).Read(data)
		return data
	}
	fetch := func(name string, seed byte, chunks int, needs Needs) error {
		fake.Step(time.Hour)
		pushed := w.push("macos/"+name+":1", content(seed, chunks))
		needs.OnEvent = func(e Event) { w.events = append(w.events, e) }
		_, err := w.store.Ensure(t.Context(), Image{Name: name, Reference: w.host() + "/macos/" + name + ":1", Digest: pushed.Digest.String(), DiskSize: 1 << 30}, needs)
		return err
	}
	held := func() (names []string) {
		list, err := w.store.List()
		require.NoError(t, err)
		for _, c := range list {
			names = append(names, c.Name)
		}
		return names
	}
	keep := func(names ...string) func() ([]string, error) { return func() ([]string, error) { return names, nil } }

	w.finite(20 * mib)
	require.NoError(t, fetch("a", 1, 4, Needs{}))
	require.NoError(t, fetch("b", 2, 4, Needs{}))
	require.NoError(t, fetch("c", 3, 4, Needs{}))
	require.NoError(t, fetch("a", 1, 4, Needs{})) // used again: b is the one to go first
	w.events = nil

	// More than 7 MiB are free. Two images must be evicted for this one, but b is in use.
	require.NoError(t, fetch("d", 4, 8, Needs{MinimumFree: 3 * mib, Keep: keep("b")}))
	assert.Equal(t, []string{"a", "b", "d"}, held(), "a was used after c")
	require.NotEmpty(t, w.events)
	assert.Equal(t, EventEvicted, w.events[0].Reason)
	assert.Contains(t, w.events[0].Message, "Removed image c (4.0 MiB), unused since 2026-08-01T03:00:00Z, to make room for image d")

	// Evicting all unused images would not suffice, so none is evicted.
	w.events = nil
	err := fetch("e", 5, 12, Needs{MinimumFree: 3 * mib, Keep: keep("b", "d")})
	var noRoom *NoRoomError
	require.ErrorAs(t, err, &noRoom)
	assert.EqualValues(t, 12*mib, noRoom.Needed-int64(len(w.aux)))
	assert.ErrorContains(t, err, "image e needs 12.0 MiB, and 3.0 MiB must stay free (imageCache.minimumFree), but only 4.0 MiB are free; unused images occupy 4.0 MiB")
	assert.Equal(t, []string{"a", "b", "d"}, held())
	assert.Empty(t, w.events, "nothing was begun")

	// Partial pulls are evicted before complete images.
	require.NoError(t, os.MkdirAll(filepath.Join(w.store.Dir, "half"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(w.store.Dir, "half", diskName), content(9, 2), 0o600))
	require.NoError(t, fetch("f", 6, 3, Needs{}))
	assert.Equal(t, []string{"a", "b", "d", "f"}, held())
	assert.NoDirExists(t, filepath.Join(w.store.Dir, "half"))
	assert.Contains(t, w.events[0].Message, "Removed image half (2.0 MiB), a partial pull that no instance waits for")

	// Without a list of the images in use, no image is evicted.
	err = fetch("g", 7, 8, Needs{Keep: func() ([]string, error) { return nil, errors.New("no cache") }})
	require.ErrorContains(t, err, "no cache")
	assert.Equal(t, []string{"a", "b", "d", "f"}, held())
}

// Storage reserved for a pull is not assigned twice, and an image is not evicted during its pull.
func TestPullsDoNotShareRoom(t *testing.T) {
	w := newWorld(t)
	w.finite(20 << 20)
	w.store.Parallel = 1
	fetching, release := make(chan struct{}), make(chan struct{})
	w.interfere(func(_ http.ResponseWriter, _ *http.Request, n int) bool {
		if n == 1 {
			close(fetching)
		}
		<-release
		return false
	})
	done := make(chan error, 1)
	go func() { _, err := w.store.Ensure(t.Context(), w.image, Needs{}); done <- err }()
	<-fetching
	second := w.image
	second.Name = "macos-27"
	w.setBefore(nil)
	_, err := w.store.Ensure(t.Context(), second, Needs{MinimumFree: 10 << 20})
	var noRoom *NoRoomError
	require.ErrorAs(t, err, &noRoom)
	assert.EqualValues(t, w.pushed.Bytes+int64(len(w.aux)), noRoom.Reserved)
	assert.Zero(t, noRoom.Evictable)
	assert.ErrorContains(t, err, "and other pulls need")
	close(release)
	require.NoError(t, <-done)
}

func configSize(t *testing.T, opts PushOptions) int64 {
	info, err := os.Stat(opts.Disk)
	require.NoError(t, err)
	config, err := json.Marshal(format.Config{DiskSize: info.Size(), HardwareModel: opts.HardwareModel})
	require.NoError(t, err)
	return int64(len(config))
}
