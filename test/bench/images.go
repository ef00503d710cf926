package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"macrack.io/macrack/test/cluster/process"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/agent/images"
	imageregistry "macrack.io/macrack/pkg/images/ociclient"
	"macrack.io/macrack/test/cluster"
)

const (
	mib = 1 << 20
	// pullers is the number of blobs that each side fetches at once.
	pullers = 4
)

// measureImages compares the pull of an image to a Mac with a plain download of the same blobs, and
// measures clones.
func (b *bench) measureImages(ctx context.Context) error {
	dir := filepath.Join(b.dir, "images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	listener, err := process.Listen(0)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- cluster.ServeRegistry(serving, listener, filepath.Join(dir, "registry")) }()

	p := pulls{dir: dir, host: listener.Addr().String(), rounds: b.rounds}
	image, err := p.push(ctx, b.imageMiB)
	if err != nil {
		return err
	}
	const gigabit = 125 * 1000 * 1000 // bytes a second
	for _, m := range []struct {
		name  string
		rate  int64 // rate of the link, in bytes a second; 0 for no limit
		blobs []ocispec.Descriptor
		goal  float64
	}{
		{"to a plain download of the same disk, uncompressed", 0, image.raw, 1 / 0.9},
		{"to a plain download of the compressed blobs, left compressed", 0, image.blobs, 0},
		{"the same at 1 Gbit/s", gigabit, image.blobs, 1 / 0.9},
	} {
		ours, plain, err := p.compare(ctx, image, m.blobs, m.rate)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		b.more(fmt.Sprintf("pull of an image, %d MiB of data, %d MiB compressed, %s", image.data/mib, image.compressed/mib, m.name), "MB/s",
			rates(image.data, ours), rates(image.data, plain), m.goal)
	}
	if err := b.measureClones(dir); err != nil {
		return err
	}
	stop()
	return <-served
}

type pulls struct {
	dir, host string
	rounds    int
}

type pushedImage struct {
	images.Image
	data, compressed int64
	// blobs are the image's; raw has the disk's data in pieces of as many bytes, uncompressed.
	blobs, raw []ocispec.Descriptor
}

// push pushes a disk as an image and as raw data.
func (p *pulls) push(ctx context.Context, sizeMiB int) (*pushedImage, error) {
	path := filepath.Join(p.dir, "source.img")
	if err := writeDisk(path, sizeMiB); err != nil {
		return nil, err
	}
	defer os.Remove(path)
	aux := filepath.Join(p.dir, "nvram.bin")
	if err := os.WriteFile(aux, []byte("bench"), 0o600); err != nil {
		return nil, err
	}
	reference := p.host + "/macos/26:bench"
	pushed, err := images.Push(ctx, images.PushOptions{Disk: path, Aux: aux, HardwareModel: "YmVuY2g=", Reference: reference, Clock: clock.RealClock{}})
	if err != nil {
		return nil, err
	}
	image := &pushedImage{
		Image:      images.Image{Name: "macos-26", Reference: reference, Digest: pushed.Digest.String(), DiskSize: pushed.DiskSize},
		data:       pushed.Bytes,
		compressed: pushed.Compressed,
	}
	if image.raw, err = p.pushRaw(ctx, path, reference, pushed.Bytes); err != nil {
		return nil, err
	}
	data, err := get(ctx, http.DefaultClient, "http://"+p.host+"/v2/macos/26/manifests/"+image.Digest)
	if err != nil {
		return nil, err
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return nil, err
	}
	image.blobs = append(manifest.Layers, manifest.Config)
	return image, nil
}

// pushRaw pushes the first part of a disk, which has its data, in pieces as large as an image's
// chunks.
func (p *pulls) pushRaw(ctx context.Context, path, reference string, size int64) ([]ocispec.Descriptor, error) {
	client, err := imageregistry.New(imageregistry.Options{Reference: reference, Clock: clock.RealClock{}})
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var blobs []ocispec.Descriptor
	for size > 0 {
		piece := make([]byte, min(size, 64*mib))
		size -= int64(len(piece))
		if _, err := io.ReadFull(f, piece); err != nil {
			return nil, err
		}
		blob := ocispec.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromBytes(piece), Size: int64(len(piece))}
		if _, err := client.PushBlob(ctx, blob, piece); err != nil {
			return nil, err
		}
		blobs = append(blobs, blob)
	}
	return blobs, nil
}

// writeDisk writes a disk whose first half is data, and the rest zeros. Half of the data is noise,
// which does not compress, and half is machine code: this program.
func writeDisk(path string, sizeMiB int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	code, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	noise := rand.NewChaCha8([32]byte{1})
	block := make([]byte, mib)
	for n := range sizeMiB / 2 {
		if n%2 == 0 {
			_, _ = noise.Read(block)
		} else {
			copy(block, code[n/2*mib%(len(code)-mib):])
		}
		if _, err := f.WriteAt(block, int64(n)*mib); err != nil {
			return err
		}
	}
	return errors.Join(f.Truncate(int64(sizeMiB)*mib), f.Sync())
}

// compare returns the times of alternating image pulls and plain downloads over a link of that
// rate.
func (p *pulls) compare(ctx context.Context, image *pushedImage, blobs []ocispec.Descriptor, rate int64) (ours, plain []time.Duration, err error) {
	front, err := p.limit(rate)
	if err != nil {
		return nil, nil, err
	}
	defer front.Close()
	image.Reference = front.Addr().String() + "/macos/26:bench"
	var all [2][]time.Duration
	for range p.rounds {
		for side, run := range []func() error{
			func() error { return p.pull(ctx, image) },
			func() error { return p.download(ctx, front.Addr().String(), blobs) },
		} {
			target := filepath.Join(p.dir, "target")
			if err := os.RemoveAll(target); err != nil {
				return nil, nil, err
			}
			start := time.Now()
			if err := run(); err != nil {
				return nil, nil, err
			}
			all[side] = append(all[side], time.Since(start))
		}
	}
	return all[0], all[1], nil
}

// rates returns the transfer rates in MB/s.
func rates(bytes int64, took []time.Duration) []float64 {
	values := make([]float64, len(took))
	for i, d := range took {
		values[i] = float64(bytes) / 1e6 / d.Seconds()
	}
	return values
}

func (p *pulls) pull(ctx context.Context, image *pushedImage) error {
	store := &images.OCI{Dir: filepath.Join(p.dir, "target"), Clock: clock.RealClock{}, Parallel: pullers}
	_, err := store.Ensure(ctx, image.Image, images.Needs{})
	return err
}

// download fetches blobs into files, verifies them and makes them durable.
func (p *pulls) download(ctx context.Context, host string, blobs []ocispec.Descriptor) error {
	dir := filepath.Join(p.dir, "target")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: pullers, DisableCompression: true}}
	defer client.CloseIdleConnections()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pullers)
	for _, blob := range blobs {
		group.Go(func() error {
			f, err := os.Create(filepath.Join(dir, blob.Digest.Encoded()))
			if err != nil {
				return err
			}
			defer f.Close()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/v2/macos/26/blobs/"+blob.Digest.String(), nil)
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			hash := sha256.New()
			if _, err := io.CopyBuffer(io.MultiWriter(f, hash), resp.Body, make([]byte, 256<<10)); err != nil {
				return err
			}
			if hex.EncodeToString(hash.Sum(nil)) != blob.Digest.Encoded() {
				return fmt.Errorf("blob %s is damaged", blob.Digest)
			}
			return f.Sync()
		})
	}
	return group.Wait()
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// limit forwards connections to the registry at a total of at most rate bytes a second; 0 for no
// limit.
func (p *pulls) limit(rate int64) (net.Listener, error) {
	front, err := process.Listen(0)
	if err != nil {
		return nil, err
	}
	bucket := newBucket(rate)
	go func() {
		for {
			client, err := front.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				server, err := net.Dial("tcp", p.host)
				if err != nil {
					return
				}
				defer server.Close()
				go func() { _, _ = io.Copy(server, client) }()
				if rate == 0 {
					_, _ = io.Copy(client, server)
					return
				}
				_, _ = io.CopyBuffer(struct{ io.Writer }{client}, &limited{server, bucket}, make([]byte, 64<<10))
			}()
		}
	}()
	return front, nil
}

type limited struct {
	io.Reader
	bucket chan int64
}

func (l *limited) Read(p []byte) (int, error) {
	allowed := <-l.bucket
	n, err := l.Reader.Read(p[:min(int64(len(p)), allowed)])
	return n, err
}

// newBucket returns a channel of permits to send 64 KiB each.
func newBucket(rate int64) chan int64 {
	bucket := make(chan int64, 64)
	if rate == 0 {
		return bucket
	}
	go func() {
		start, given := time.Now(), int64(0)
		for {
			bucket <- 64 << 10
			given += 64 << 10
			if ahead := time.Duration(float64(given)/float64(rate)*1e9) - time.Since(start); ahead > time.Millisecond {
				time.Sleep(ahead)
			} else if ahead < -20*time.Millisecond {
				start, given = time.Now(), 0 // unused permits expire
			}
		}
	}()
	return bucket
}

// measureClones compares clones of disks of growing size with plain copies.
func (b *bench) measureClones(dir string) error {
	source, target := filepath.Join(dir, "golden.img"), filepath.Join(dir, "clone.img")
	for _, sizeMiB := range []int{b.imageMiB / 16, b.imageMiB / 4, b.imageMiB} {
		if err := writeDisk(source, sizeMiB); err != nil {
			return err
		}
		var ours, plain []time.Duration
		var method disk.Method
		for range b.rounds {
			start := time.Now()
			var err error
			if method, err = disk.Clone(source, target, int64(sizeMiB)*mib); err != nil {
				return err
			}
			ours = append(ours, time.Since(start))
			start = time.Now()
			if err := errors.Join(os.Remove(target), copyFile(source, target), os.Remove(target)); err != nil {
				return err
			}
			plain = append(plain, time.Since(start))
		}
		b.less(fmt.Sprintf("clone (%s) of a disk of %d MiB, half of it zeros, to a copy", method, sizeMiB), "ms", allMS(ours), allMS(plain), 1)
	}
	return os.Remove(source)
}

// copyFile copies the data itself: io.Copy of two files would let the file system share blocks.
func copyFile(source, target string) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(target)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, make([]byte, mib)); err != nil {
		return err
	}
	return out.Sync()
}
