package images

import (
	"bytes"
	"errors"
	"hash"

	"macrack.io/macrack/pkg/images/format"
)

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
