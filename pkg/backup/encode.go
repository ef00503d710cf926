package backup

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
)

var errIdentity = errors.New("no identity is that of a recipient of the snapshot; use the identity file of one of its recipients")

// encode compresses and encrypts a snapshot, whose hash it verifies.
func encode(w io.Writer, snapshot io.Reader, recipients []age.Recipient) error {
	encrypted, err := age.Encrypt(w, recipients...)
	if err != nil {
		return err
	}
	compressed, err := zstd.NewWriter(encrypted, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	if _, err := io.Copy(compressed, newVerifier(snapshot)); err != nil {
		return err
	}
	if err := compressed.Close(); err != nil {
		return err
	}
	return encrypted.Close()
}

// decode writes the snapshot that encode has encoded, and verifies its hash.
func decode(w io.Writer, encoded io.Reader, identities []age.Identity) error {
	compressed, err := age.Decrypt(encoded, identities...)
	if mismatch := (*age.NoIdentityMatchError)(nil); errors.As(err, &mismatch) {
		return errIdentity
	}
	if err != nil {
		return err
	}
	snapshot, err := zstd.NewReader(compressed, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer snapshot.Close()
	_, err = io.Copy(w, newVerifier(snapshot))
	return err
}

// page divides the size of a database of etcd.
const page = 512

// A verifier passes a snapshot through. At its end, it returns an error unless the last 32 bytes
// are the SHA-256 of the database before them.
type verifier struct {
	snapshot io.Reader
	hash     hash.Hash
	size     int64
	tail     []byte // the last bytes, which are not yet in hash
}

func newVerifier(snapshot io.Reader) *verifier {
	return &verifier{snapshot: snapshot, hash: sha256.New()}
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.snapshot.Read(p)
	v.size += int64(n)
	v.tail = append(v.tail, p[:n]...)
	if before := len(v.tail) - sha256.Size; before > 0 {
		v.hash.Write(v.tail[:before])
		v.tail = append(v.tail[:0], v.tail[before:]...)
	}
	if errors.Is(err, io.EOF) {
		if problem := v.verify(); problem != nil {
			err = problem
		}
	}
	return n, err
}

func (v *verifier) verify() error {
	if v.size <= sha256.Size || v.size%page != sha256.Size {
		return fmt.Errorf("the snapshot is truncated: %d bytes are not a database and its SHA-256", v.size)
	}
	if !bytes.Equal(v.hash.Sum(nil), v.tail) {
		return errors.New("the SHA-256 of the snapshot is wrong")
	}
	return nil
}
