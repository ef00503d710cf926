package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// readTimeout is the time in which a member of etcd must answer before the next one is asked.
const readTimeout = 10 * time.Second

// Etcd is the etcd to back up.
type Etcd struct {
	Servers                   []string
	CAFile, CertFile, KeyFile string
}

// snapshot returns a snapshot of the first member that answers, and a revision that it includes.
func (e Etcd) snapshot(ctx context.Context) (io.ReadCloser, int64, error) {
	config := clientv3.Config{DialTimeout: readTimeout, Logger: zap.NewNop()}
	if e.CAFile != "" || e.CertFile != "" {
		info := transport.TLSInfo{TrustedCAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile}
		var err error
		if config.TLS, err = info.ClientConfig(); err != nil {
			return nil, 0, fmt.Errorf("the certificates for etcd: %w", err)
		}
	}
	errs := []error{errors.New("no member of etcd returned a snapshot")}
	for _, server := range e.Servers {
		config.Endpoints = []string{server}
		snapshot, revision, err := open(ctx, config)
		if err == nil {
			return snapshot, revision, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", server, err))
	}
	return nil, 0, errors.Join(errs...)
}

// open starts the snapshot of a member. The member of a minority could return an old snapshot, so
// it must first answer a read that needs the majority.
func open(ctx context.Context, config clientv3.Config) (io.ReadCloser, int64, error) {
	client, err := clientv3.New(config)
	if err != nil {
		return nil, 0, err
	}
	readCtx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	read, err := client.Get(readCtx, "/", clientv3.WithCountOnly())
	if err != nil {
		return nil, 0, errors.Join(err, client.Close())
	}
	snapshot, err := client.SnapshotWithVersion(ctx)
	if err != nil {
		return nil, 0, errors.Join(err, client.Close())
	}
	return &stream{snapshot.Snapshot, client}, read.Header.Revision, nil
}

type stream struct {
	io.ReadCloser
	client *clientv3.Client
}

func (s *stream) Close() error { return errors.Join(s.ReadCloser.Close(), s.client.Close()) }

var errIncomplete = errors.New("the snapshot is not complete: the hash at its end is not that of its content; discard it")

// A verifier reads a snapshot of etcd, which ends with the hash of its content. A read at the end
// fails if the hash differs. The errors are wrapped, because the uploader of S3 takes
// io.ErrUnexpectedEOF for a regular end.
type verifier struct {
	r    io.Reader
	hash hash.Hash
	tail []byte
}

func newVerifier(r io.Reader) *verifier { return &verifier{r: r, hash: sha256.New()} }

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.tail = append(v.tail, p[:n]...)
	if content := len(v.tail) - sha256.Size; content > 0 {
		v.hash.Write(v.tail[:content])
		v.tail = v.tail[:copy(v.tail, v.tail[content:])]
	}
	switch {
	case err == io.EOF && !bytes.Equal(v.hash.Sum(nil), v.tail):
		return n, errIncomplete
	case err != nil && err != io.EOF:
		return n, fmt.Errorf("reading the snapshot: %w", err)
	}
	return n, err
}
