// Package applelz4 reads the streams that Apple's Compression framework writes with
// COMPRESSION_LZ4. A stream consists of blocks with headers. A compressed block may refer to the 64
// KiB before it. All numbers are little-endian.
//
//	"bv41", size, compressed size, an LZ4 block
//	"bv4-", size, as many bytes
//	"bv4$", the end of the stream
package applelz4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/pierrec/lz4/v4"
)

const (
	// window is the maximum distance of an LZ4 reference.
	window = 64 << 10
	// MaxBlock is the maximum size of a block, in bytes. Apple's encoder writes blocks of 64 KiB.
	MaxBlock = 16 << 20
	// room is the size of the buffer for small blocks.
	room = 1 << 20
)

// ErrCorrupt is the error of a corrupt stream.
var ErrCorrupt = errors.New("corrupt Apple LZ4 stream")

// Reader decompresses a stream. It does not read beyond the end of the stream.
type Reader struct {
	src        io.Reader
	compressed []byte
	buf        []byte // the last decompressed data, which later blocks refer to
	unread     int    // the start of the unread data in buf
	err        error
}

// NewReader returns a Reader of the stream in src, which should be buffered.
func NewReader(src io.Reader) *Reader {
	return &Reader{src: src, buf: make([]byte, 0, room)}
}

// Read implements io.Reader. It returns io.EOF at the end of the stream, io.ErrUnexpectedEOF if src
// is truncated, and an error that wraps ErrCorrupt if the stream is corrupt.
func (r *Reader) Read(p []byte) (int, error) {
	if err := r.fill(); err != nil {
		return 0, err
	}
	n := copy(p, r.buf[r.unread:])
	r.unread += n
	return n, nil
}

// WriteTo implements io.WriterTo.
func (r *Reader) WriteTo(w io.Writer) (int64, error) {
	var sum int64
	for {
		if err := r.fill(); errors.Is(err, io.EOF) {
			return sum, nil
		} else if err != nil {
			return sum, err
		}
		n, err := w.Write(r.buf[r.unread:])
		r.unread += n
		sum += int64(n)
		if err != nil {
			return sum, err
		}
	}
}

// fill reads blocks until unread data is available.
func (r *Reader) fill() error {
	for r.err == nil && r.unread == len(r.buf) {
		r.err = r.block()
	}
	if r.unread < len(r.buf) {
		return nil
	}
	return r.err
}

func (r *Reader) block() error {
	var header [8]byte
	magic, sizes := make([]byte, 4), header[:]
	if err := r.read(magic); err != nil {
		return err
	}
	switch string(magic) {
	case "bv4$":
		return io.EOF
	case "bv4-":
		if err := r.read(sizes[:4]); err != nil {
			return err
		}
		dst, err := r.grow(binary.LittleEndian.Uint32(sizes))
		if err != nil {
			return err
		}
		if err := r.read(dst); err != nil {
			return err
		}
		r.buf = r.buf[:len(r.buf)+len(dst)]
		return nil
	case "bv41":
		if err := r.read(sizes); err != nil {
			return err
		}
		return r.decompress(binary.LittleEndian.Uint32(sizes), binary.LittleEndian.Uint32(sizes[4:]))
	default:
		return fmt.Errorf("%w: unknown block type %q", ErrCorrupt, magic)
	}
}

func (r *Reader) decompress(size, compressed uint32) error {
	dst, err := r.grow(size)
	if err != nil {
		return err
	}
	if compressed == 0 || int64(compressed) > int64(lz4.CompressBlockBound(len(dst))) {
		return fmt.Errorf("%w: block of %d bytes has %d compressed bytes", ErrCorrupt, size, compressed)
	}
	if cap(r.compressed) < int(compressed) {
		r.compressed = make([]byte, compressed)
	}
	src := r.compressed[:compressed]
	if err := r.read(src); err != nil {
		return err
	}
	n, err := lz4.UncompressBlockWithDict(src, dst, r.buf[max(0, len(r.buf)-window):])
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if n != len(dst) {
		return fmt.Errorf("%w: block has %d bytes, its header has %d", ErrCorrupt, n, len(dst))
	}
	r.buf = r.buf[:len(r.buf)+n]
	return nil
}

// grow returns size free bytes after buf, which may be moved. All of buf must have been read.
func (r *Reader) grow(size uint32) ([]byte, error) {
	if size > MaxBlock {
		return nil, fmt.Errorf("%w: block of %d bytes exceeds the limit of %d", ErrCorrupt, size, MaxBlock)
	}
	if need := len(r.buf) + int(size); need > cap(r.buf) {
		kept := r.buf[max(0, len(r.buf)-window):]
		if need = len(kept) + int(size); need > cap(r.buf) {
			r.buf = append(make([]byte, 0, need), kept...)
		} else {
			r.buf = r.buf[:copy(r.buf[:len(kept)], kept)]
		}
		r.unread = len(r.buf)
	}
	return r.buf[len(r.buf) : len(r.buf)+int(size) : len(r.buf)+int(size)], nil
}

func (r *Reader) read(p []byte) error {
	if _, err := io.ReadFull(r.src, p); errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	} else {
		return err
	}
}
