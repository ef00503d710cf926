package images

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/images/applelz4"
	"macrack.io/macrack/pkg/images/format"
	"macrack.io/macrack/pkg/images/ociclient"
)

const (
	// tries is the limit of downloads of a chunk that arrives corrupt.
	tries      = 3
	bufferSize = 256 << 10
)

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
	if err != nil && err != io.EOF { // an interrupted transfer may wrap io.EOF
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
