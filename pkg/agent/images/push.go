package images

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"
	"oras.land/oras-go/v2/registry/remote/auth"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/images/format"
	"macrack.io/macrack/pkg/images/ociclient"
)

const (
	// chunkSize is the size of a chunk in bytes. It doubles until a disk has at most maxChunks.
	chunkSize = 64 << 20
	maxChunks = 4096
	// pushWindow is the window of the compressor, in bytes.
	pushWindow = 1 << 20
	// pushStall is longer than for a pull, because a registry may write to slow storage before it
	// accepts more data.
	pushStall = 2 * time.Minute
)

// PushOptions configure a push.
type PushOptions struct {
	// Disk is the path of the disk, a raw image; Aux that of the auxiliary storage.
	Disk, Aux string
	// HardwareModel is that of the virtual machine that the image was made from, in base64.
	HardwareModel string
	// MachineID is the machine identifier of that virtual machine, in base64; empty if unknown.
	MachineID string
	// Reference is the destination, such as registry.example.com/macos/26:xcode-26.
	Reference  string
	Credential auth.CredentialFunc
	Clock      clock.WithTicker
	// Parallel is the number of chunks that are compressed and pushed in parallel. The default is
	// 4.
	Parallel int
	// OnProgress receives the progress of the disk; may be nil. It receives completion only once
	// the registry has the manifest.
	OnProgress func(Progress)

	// chunkSize, stall and readHoles are for tests.
	chunkSize int64
	stall     time.Duration
	readHoles bool
}

// Pushed is an image in a registry.
type Pushed struct {
	Digest digest.Digest
	// DiskSize is the size of the disk, and Bytes the size of its data, in bytes.
	DiskSize, Bytes int64
	// Compressed is the size of all blobs in bytes, Uploaded the size of those that the registry
	// did not have.
	Compressed, Uploaded int64
}

// Push pushes an image in MacRack's format. The same files yield the same digest. It skips blobs
// that the registry already has.
func Push(ctx context.Context, opts PushOptions) (Pushed, error) {
	if _, err := Inspect(opts); err != nil {
		return Pushed{}, err
	}
	client, err := ociclient.New(ociclient.Options{Reference: opts.Reference, Credential: opts.Credential, Clock: opts.Clock, Stall: cmp.Or(opts.stall, pushStall), Answer: opts.stall})
	if err != nil {
		return Pushed{}, err
	}
	opts.Parallel = cmp.Or(opts.Parallel, 4)
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(opts.Parallel), zstd.WithEncoderCRC(false), zstd.WithWindowSize(pushWindow))
	if err != nil {
		return Pushed{}, err
	}
	return (&pusher{client: client, encoder: encoder, opts: opts}).push(ctx)
}

type pusher struct {
	client  *ociclient.Client
	encoder *zstd.Encoder
	opts    PushOptions

	mu       sync.Mutex
	progress Progress
	uploaded int64
}

func (p *pusher) push(ctx context.Context) (Pushed, error) {
	source, err := os.Open(p.opts.Disk)
	if err != nil {
		return Pushed{}, err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return Pushed{}, err
	}
	pushed := Pushed{DiskSize: info.Size()}
	p.progress.Total = info.Size()
	chunks, err := p.pushDisk(ctx, source, info.Size())
	if err != nil {
		return Pushed{}, err
	}
	// A virtual machine that was started meanwhile has written to both files.
	after, err := source.Stat()
	if err != nil {
		return Pushed{}, err
	}
	if after.Size() != info.Size() || !after.ModTime().Equal(info.ModTime()) {
		return Pushed{}, fmt.Errorf("%s changed during the push; shut its virtual machine down, and push again", p.opts.Disk)
	}
	for _, chunk := range chunks {
		pushed.Bytes += chunk.Data
		pushed.Compressed += chunk.Blob.Size
	}
	content, err := os.ReadFile(p.opts.Aux)
	if err != nil {
		return Pushed{}, err
	}
	aux, err := p.pushChunk(ctx, content)
	if err != nil {
		return Pushed{}, err
	}
	pushed.Compressed += aux.Blob.Size
	config, err := json.Marshal(format.Config{DiskSize: info.Size(), HardwareModel: p.opts.HardwareModel, MachineID: p.opts.MachineID})
	if err != nil {
		return Pushed{}, err
	}
	configBlob := descriptor(format.MediaTypeConfig, config)
	if err := p.pushBlob(ctx, configBlob, config); err != nil {
		return Pushed{}, err
	}
	manifest, err := format.Manifest(configBlob, chunks, aux)
	if err != nil {
		return Pushed{}, err
	}
	manifestBlob := descriptor(ocispec.MediaTypeImageManifest, manifest)
	pushed.Digest = manifestBlob.Digest
	if err := p.client.PushManifest(ctx, manifestBlob, manifest); err != nil {
		return Pushed{}, err
	}
	pushed.Uploaded = p.uploaded
	if p.opts.OnProgress != nil {
		p.opts.OnProgress(p.progress)
	}
	return pushed, nil
}

func descriptor(mediaType string, content []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
}

// pushDisk pushes the chunks of the disk that are not all zeros, and returns them in order.
func (p *pusher) pushDisk(ctx context.Context, source *os.File, size int64) ([]format.Chunk, error) {
	length := cmp.Or(p.opts.chunkSize, chunkSize)
	for size > length*maxChunks {
		length *= 2
	}
	found := make([]*format.Chunk, (size+length-1)/length)
	group, inGroup := errgroup.WithContext(ctx)
	group.SetLimit(p.opts.Parallel)
	buffers := sync.Pool{New: func() any { buffer := make([]byte, length); return &buffer }}
	for i := range found {
		if inGroup.Err() != nil {
			break
		}
		group.Go(func() (err error) {
			offset := int64(i) * length
			covers := min(length, size-offset)
			defer func() {
				if err == nil {
					p.report(covers)
				}
			}()
			if hole, err := p.isHole(source, offset, offset+covers); hole || err != nil {
				return err
			}
			buffer := buffers.Get().(*[]byte)
			defer buffers.Put(buffer)
			content := (*buffer)[:covers]
			if err := p.readSparse(source, content, offset); err != nil {
				return err
			}
			if dataOf(content) == 0 {
				return nil
			}
			chunk, err := p.pushChunk(inGroup, content)
			if err != nil {
				return err
			}
			chunk.Offset, found[i] = offset, chunk
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var chunks []format.Chunk
	for _, chunk := range found {
		if chunk != nil {
			chunks = append(chunks, *chunk)
		}
	}
	return chunks, ctx.Err()
}

func (p *pusher) report(pushed int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress.Done += pushed
	if p.opts.OnProgress != nil && p.progress.Done < p.progress.Total {
		p.opts.OnProgress(p.progress)
	}
}

// pushChunk pushes a chunk. The caller sets its offset.
func (p *pusher) pushChunk(ctx context.Context, content []byte) (*format.Chunk, error) {
	compressed := p.encoder.EncodeAll(content, nil)
	chunk := &format.Chunk{Blob: descriptor("application/octet-stream", compressed), Size: int64(len(content)), Data: dataOf(content)}
	return chunk, p.pushBlob(ctx, chunk.Blob, compressed)
}

func (p *pusher) pushBlob(ctx context.Context, blob ocispec.Descriptor, data []byte) error {
	uploaded, err := p.client.PushBlob(ctx, blob, data)
	if uploaded && err == nil {
		p.mu.Lock()
		p.uploaded += blob.Size
		p.mu.Unlock()
	}
	return err
}

// eachExtent calls do for each range of a file that may have data.
func (p *pusher) eachExtent(f *os.File, offset, end int64, do func(start, end int64) error) error {
	if p.opts.readHoles {
		return do(offset, end)
	}
	return disk.EachExtent(f, offset, end, do)
}

// isHole reports whether a range of a file is a hole.
func (p *pusher) isHole(f *os.File, start, end int64) (bool, error) {
	hole := true
	err := p.eachExtent(f, start, end, func(int64, int64) error { hole = false; return nil })
	return hole, err
}

// readSparse fills content from a file and skips holes.
func (p *pusher) readSparse(f *os.File, content []byte, offset int64) error {
	clear(content)
	return p.eachExtent(f, offset, offset+int64(len(content)), func(start, end int64) error {
		_, err := io.ReadFull(io.NewSectionReader(f, start, end-start), content[start-offset:end-offset])
		return err
	})
}

// dataOf returns the number of bytes of p in blocks that are not all zeros.
func dataOf(p []byte) int64 {
	var sum int64
	for len(p) > 0 {
		block := p[:min(format.BlockSize, len(p))]
		if !bytes.Equal(block, zeros[:len(block)]) {
			sum += int64(len(block))
		}
		p = p[len(block):]
	}
	return sum
}
