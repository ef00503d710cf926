package images

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"macrack.io/macrack/pkg/agent/images/applelz4"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	"macrack.io/macrack/pkg/images/format"
	"macrack.io/macrack/pkg/images/ociclient"
	"macrack.io/macrack/pkg/images/verify"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// tries is the limit of downloads of a chunk that arrives corrupt.
	tries = 3
	// journalInterval is the interval at which a pull becomes durable. A killed agent downloads at
	// most this much again.
	journalInterval = time.Second
	bufferSize      = 256 << 10
)

// pull pulls an image. The caller holds the image's lock.
func (s *OCI) pull(ctx context.Context, image Image, pinned digest.Digest, needs Needs) (Cached, error) {
	began := s.Clock.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, end := s.begin(image.Name, cancel)
	defer end()

	client, err := s.client(ctx, image, needs)
	if err != nil {
		return Cached{}, err
	}
	layout, hardwareModel, err := verify.Layout(ctx, client, pinned)
	if err != nil {
		return Cached{}, err
	}
	cached := Cached{Name: image.Name, Digest: image.Digest, Private: image.Private, HardwareModel: hardwareModel}
	if layout.DiskSize > image.DiskSize {
		return Cached{}, fmt.Errorf("the image's disk has %d bytes, spec.diskSize of MacOSImage %s is %d", layout.DiskSize, image.Name, image.DiskSize)
	}
	cached.DiskSize = layout.DiskSize

	j, err := s.resume(image, layout)
	if err != nil {
		return Cached{}, err
	}
	w := &work{store: s, client: client, pull: p, dir: filepath.Join(s.Dir, image.Name), chunks: layout.Chunks(), done: map[int]bool{}, journal: j}
	needed := w.plan()
	s.mu.Lock()
	err = s.makeRoom(image, p, needed, needs)
	s.mu.Unlock()
	if err != nil {
		if len(j.Chunks) == 0 {
			err = errors.Join(err, remove(s.Dir, image.Name))
		}
		return Cached{}, err
	}
	klog.InfoS("Pulling image", "image", image.Name, "reference", image.Reference, "digest", image.Digest, "bytes", p.total.Load(), "resumedAt", p.done.Load())
	needs.tell(EventPulling, pullingMessage(image, p.progress()))

	resumed := p.done.Load()
	if err := w.run(ctx, layout); err != nil {
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			// Running virtual machines take precedence over a partial pull.
			free, _ := s.freeBytes()
			err = fmt.Errorf("the disk became full during the pull of image %s (%s free); the partial pull is removed: %w", image.Name, Size(free), err)
			return Cached{}, errors.Join(err, remove(s.Dir, image.Name))
		}
		return Cached{}, err
	}
	cached.LastUsedAt = s.Clock.Now()
	if cached.Bytes, err = occupied(w.dir); err != nil {
		return Cached{}, err
	}
	if err := s.writeMetadata(cached); err != nil {
		return Cached{}, err
	}
	if err := os.Remove(filepath.Join(w.dir, journalName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Cached{}, err
	}
	took := s.Clock.Since(began)
	klog.InfoS("Image pulled", "image", image.Name, "took", took, "downloaded", p.done.Load()-resumed, "occupies", cached.Bytes)
	message := fmt.Sprintf("Pulled image %s in %s: %s downloaded, %s on the disk", image.Name, took.Round(time.Millisecond), Size(p.done.Load()-resumed), Size(cached.Bytes))
	if resumed > 0 {
		message += fmt.Sprintf(" (%s reused from an earlier pull)", Size(resumed))
	}
	needs.tell(EventPulled, message)
	return read(s.Dir, image.Name)
}

func pullingMessage(image Image, p Progress) string {
	message := fmt.Sprintf("Pulling image %s (%s) from %s", image.Name, Size(p.Total), image.Reference)
	if p.Done > 0 {
		message += ", going on at " + p.String()
	}
	return message
}

// client returns a client of the image's registry.
func (s *OCI) client(ctx context.Context, image Image, needs Needs) (*ociclient.Client, error) {
	opts := ociclient.Options{
		Reference: image.Reference, Clock: s.Clock, Transport: s.transport, Stall: s.stall, Wait: s.wait,
		Retrying: func(err error, wait time.Duration) {
			klog.InfoS("Registry failed; retrying", "image", image.Name, "err", err, "wait", wait)
		},
	}
	if needs.Credentials != nil {
		config, err := needs.Credentials(ctx)
		if err != nil {
			return nil, &verify.ReasonError{Reason: imagev1alpha1.ReasonPullSecretUnreadable, Err: err}
		}
		if config != nil {
			store, err := credentials.NewMemoryStoreFromDockerConfig(config)
			if err != nil {
				// The wrapped error could quote the credentials.
				return nil, &verify.ReasonError{Reason: imagev1alpha1.ReasonPullSecretUnreadable,
					Err: errors.New("the credentials are not in the form of kubernetes.io/dockerconfigjson")}
			}
			opts.Credential = credentials.Credential(store)
		}
	}
	return ociclient.New(opts)
}

// resume returns the journal of an interrupted pull of the same image, or a new journal in an empty
// directory.
func (s *OCI) resume(image Image, layout *format.Layout) (journal, error) {
	dir := filepath.Join(s.Dir, image.Name)
	j, err := s.readJournal(image.Name)
	if err == nil && j.Digest == image.Digest {
		if info, err := os.Stat(filepath.Join(dir, diskName)); err == nil && info.Size() == layout.DiskSize && s.auxThere(dir, layout) {
			if image.Private && !j.Private {
				j.Private = true
				return j, contract.WriteJSON(filepath.Join(dir, journalName), j)
			}
			return j, nil
		}
	}
	if err := remove(s.Dir, image.Name); err != nil {
		return journal{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return journal{}, err
	}
	j = journal{Digest: image.Digest, Private: image.Private}
	return j, contract.WriteJSON(filepath.Join(dir, journalName), j)
}

func (s *OCI) auxThere(dir string, layout *format.Layout) bool {
	if layout.Aux == nil {
		return true
	}
	info, err := os.Stat(filepath.Join(dir, auxName))
	return err == nil && info.Size() == layout.Aux.Size
}

// work is the work of a pull.
type work struct {
	store  *OCI
	client *ociclient.Client
	pull   *pull
	dir    string
	chunks []format.Chunk
	disk   file
	aux    file

	mu      sync.Mutex
	done    map[int]bool
	journal journal
	changed bool // done is ahead of the journal
}

// plan finds the missing chunks and returns the storage that they need.
func (w *work) plan() (needed int64) {
	for _, i := range w.journal.Chunks {
		if i >= 0 && i < len(w.chunks) {
			w.done[i] = true
		}
	}
	for i, chunk := range w.chunks {
		w.pull.total.Add(chunk.Blob.Size)
		if w.done[i] {
			w.pull.done.Add(chunk.Blob.Size)
		} else {
			needed += chunk.Data
		}
	}
	return needed
}

// run downloads the missing chunks and returns when all are durable.
func (w *work) run(ctx context.Context, layout *format.Layout) (err error) {
	if w.disk, err = w.openFile(diskName, layout.DiskSize); err != nil {
		return err
	}
	defer func() { _ = w.disk.Close() }() // the relevant data has been synced
	if layout.Aux != nil {
		if w.aux, err = w.openFile(auxName, layout.Aux.Size); err != nil {
			return err
		}
		defer func() { _ = w.aux.Close() }()
	}
	stop := w.keepJournal()
	err = w.fetchAll(ctx, layout)
	return errors.Join(err, stop())
}

func (w *work) openFile(name string, size int64) (file, error) {
	open := w.store.open
	if open == nil {
		open = openFile
	}
	f, err := open(filepath.Join(w.dir, name))
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (w *work) fetchAll(ctx context.Context, layout *format.Layout) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(w.parallel())
	var missing []int // listed first, because done changes during the downloads
	for i := range w.chunks {
		if !w.done[i] {
			missing = append(missing, i)
		}
	}
	for _, i := range missing {
		if ctx.Err() != nil {
			break
		}
		chunk, target := w.chunks[i], w.disk
		if layout.Aux != nil && i == len(w.chunks)-1 {
			target = w.aux
		}
		group.Go(func() error {
			if err := w.fetch(ctx, chunk, target); err != nil {
				return err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.done[i], w.changed = true, true
			return nil
		})
	}
	err := group.Wait()
	if cause := context.Cause(ctx); err != nil && cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

func (w *work) parallel() int {
	if w.store.Parallel > 0 {
		return w.store.Parallel
	}
	return 4
}

// keepJournal writes the journal at intervals until stop is called, which writes it a last time.
func (w *work) keepJournal() (stop func() error) {
	ended, stopped := make(chan struct{}), make(chan struct{})
	ticker := w.store.Clock.NewTicker(journalInterval)
	go func() {
		defer close(stopped)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C():
				if err := w.writeJournal(); err != nil {
					klog.ErrorS(err, "Failed to write the journal of a pull", "dir", w.dir)
				}
			}
		}
	}()
	return func() error {
		close(ended)
		<-stopped
		return w.writeJournal()
	}
}

// writeJournal makes the finished chunks durable: first the data, then the journal.
func (w *work) writeJournal() error {
	w.mu.Lock()
	if !w.changed {
		w.mu.Unlock()
		return nil
	}
	w.changed = false
	j := w.journal
	j.Chunks = nil
	for i := range w.done {
		j.Chunks = append(j.Chunks, i)
	}
	w.mu.Unlock()
	slices.Sort(j.Chunks)
	if err := w.disk.Sync(); err != nil {
		return err
	}
	if w.aux != nil {
		if err := w.aux.Sync(); err != nil {
			return err
		}
	}
	return contract.WriteJSON(filepath.Join(w.dir, journalName), j)
}

// fetch downloads a chunk to its place. It retries if the chunk arrives corrupt.
func (w *work) fetch(ctx context.Context, chunk format.Chunk, target file) error {
	missing := chunk.Data
	for try := 1; ; try++ {
		err := w.fetchOnce(ctx, chunk, target)
		if err == nil {
			w.pull.missing.Add(-missing)
			return nil
		}
		var damaged *damagedError
		if !errors.As(err, &damaged) || ctx.Err() != nil {
			return err
		}
		if try == tries {
			return fmt.Errorf("blob %s arrived corrupt %d times: %w", chunk.Blob.Digest, tries, err)
		}
		klog.InfoS("Blob corrupt; retrying", "blob", chunk.Blob.Digest, "err", err)
	}
}

// damagedError means that the received data is corrupt.
type damagedError struct{ error }

func (e *damagedError) Unwrap() error { return e.error }

// pullReader counts and hashes the data read.
type pullReader struct {
	io.Reader
	hash  hash.Hash
	pull  *pull
	count int64
	err   error // error of Reader, which a decompressor may hide
}

func (r *pullReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.hash.Write(p[:n])
	r.count += int64(n)
	r.pull.done.Add(int64(n))
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

func (w *work) fetchOnce(ctx context.Context, chunk format.Chunk, target file) (err error) {
	// Data of a failed or interrupted try must not remain in the holes.
	if err := target.Zero(chunk.Offset, chunk.Size); err != nil {
		return err
	}
	body := w.client.Open(ctx, chunk.Blob)
	defer body.Close()
	src := &pullReader{Reader: body, hash: sha256.New(), pull: w.pull}
	defer func() {
		if err != nil {
			w.pull.done.Add(-src.count)
		}
	}()
	dst := &sparseWriter{f: target, offset: chunk.Offset, left: chunk.Size, room: chunk.Data}
	if chunk.Content != "" {
		dst.hash = sha256.New()
	}
	buffered := bufio.NewReaderSize(src, bufferSize)
	err = decompress(chunk.Codec, dst, buffered)
	if err == nil {
		err = dst.flush()
	}
	tooMuch := errors.Is(dst.err, errTooMuchData) // the manifest is at fault only if the digest matches
	if err == nil || tooMuch {
		_, err = io.Copy(io.Discard, buffered) // the digest covers the whole blob
	}
	switch {
	case dst.err != nil && !tooMuch:
		return dst.err
	case src.err != nil:
		return src.err
	case err != nil:
		return &damagedError{fmt.Errorf("decompressing: %w", err)}
	case hex.EncodeToString(src.hash.Sum(nil)) != chunk.Blob.Digest.Encoded():
		return &damagedError{&ociclient.DigestError{Host: w.client.Host(), Want: chunk.Blob.Digest, Got: digest.NewDigest(digest.SHA256, src.hash)}}
	case tooMuch:
		return fmt.Errorf("blob %s has more data than the %d bytes in the manifest (annotation %s); push the image again", chunk.Blob.Digest, chunk.Data, format.AnnotationData)
	case dst.left != 0:
		return fmt.Errorf("blob %s decompresses to %d bytes less than the %d in the manifest", chunk.Blob.Digest, dst.left, chunk.Size)
	case dst.hash != nil && digest.NewDigest(digest.SHA256, dst.hash) != chunk.Content:
		return fmt.Errorf("blob %s decompresses to content with digest %s, the manifest has %s", chunk.Blob.Digest, digest.NewDigest(digest.SHA256, dst.hash), chunk.Content)
	}
	return nil
}

// decoders are reused because they are large.
var decoders = sync.Pool{New: func() any {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(16<<20))
	if err != nil {
		panic(err) // the options are constants
	}
	return decoder
}}

func decompress(codec format.Codec, dst io.Writer, src io.Reader) error {
	var err error
	switch codec {
	case format.Raw:
		_, err = io.CopyBuffer(dst, src, make([]byte, bufferSize))
	case format.AppleLZ4:
		_, err = applelz4.NewReader(src).WriteTo(dst)
	case format.Zstd:
		decoder := decoders.Get().(*zstd.Decoder)
		defer decoders.Put(decoder)
		if err = decoder.Reset(src); err == nil {
			_, err = decoder.WriteTo(dst)
		}
		_ = decoder.Reset(nil) // releases src
	default:
		err = fmt.Errorf("no codec %d", codec)
	}
	return err
}

// sparseWriter writes to a zeroed range of a file and skips zeros.
type sparseWriter struct {
	f      file
	offset int64
	left   int64
	room   int64     // the limit of data to write
	hash   hash.Hash // may be nil
	rest   []byte    // less than a block
	err    error
}

var (
	errTooLong     = errors.New("the content is longer than stated in the manifest")
	errTooMuchData = errors.New("the content has more data than stated in the manifest")
	zeros          = make([]byte, format.BlockSize)
)

// Write implements io.Writer.
func (w *sparseWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > w.left {
		return 0, errTooLong
	}
	w.left -= int64(len(p))
	if w.hash != nil {
		w.hash.Write(p)
	}
	n := len(p)
	if len(w.rest) > 0 {
		take := min(format.BlockSize-len(w.rest), len(p))
		w.rest, p = append(w.rest, p[:take]...), p[take:]
		if len(w.rest) < format.BlockSize {
			return n, nil
		}
		if w.err = w.blocks(w.rest); w.err != nil {
			return 0, w.err
		}
		w.rest = w.rest[:0]
	}
	whole := len(p) / format.BlockSize * format.BlockSize
	if w.err = w.blocks(p[:whole]); w.err != nil {
		return 0, w.err
	}
	w.rest = append(w.rest, p[whole:]...)
	return n, nil
}

// blocks writes whole blocks, or the last one. It merges consecutive blocks with data into one
// write.
func (w *sparseWriter) blocks(p []byte) error {
	for len(p) > 0 {
		length, data := 0, false
		for length < len(p) {
			block := p[length:min(length+format.BlockSize, len(p))]
			isData := !bytes.Equal(block, zeros[:len(block)])
			if length > 0 && isData != data {
				break
			}
			data = isData
			length += len(block)
		}
		if data {
			if w.room -= int64(length); w.room < 0 {
				return errTooMuchData
			}
			if _, err := w.f.WriteAt(p[:length], w.offset); err != nil {
				return err
			}
		}
		w.offset += int64(length)
		p = p[length:]
	}
	return nil
}

func (w *sparseWriter) flush() error {
	w.err = w.blocks(w.rest)
	w.rest = nil
	return w.err
}
