package backup

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// answerTimeout is the time for a connection to a member of etcd, and for its first answer.
const answerTimeout = 10 * time.Second

// Etcd has the URLs of the members of etcd, and the files of the client's certificate.
type Etcd struct {
	Servers                   []string
	CAFile, CertFile, KeyFile string
}

// source is a snapshot that etcd sends.
type source struct {
	io.ReadCloser
	revision int64
	client   *clientv3.Client
}

// Close ends the connection too.
func (s *source) Close() error {
	_ = s.ReadCloser.Close()
	return s.client.Close()
}

// open opens the snapshot of the first member that is up to date.
func (e Etcd) open(ctx context.Context) (*source, error) {
	var config *tls.Config
	if e.CAFile != "" {
		var err error
		if config, err = (transport.TLSInfo{TrustedCAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile}).ClientConfig(); err != nil {
			return nil, fmt.Errorf("reading the client certificate of etcd: %w; check --etcd-cafile, --etcd-certfile and --etcd-keyfile", err)
		}
	}
	var errs []error
	for _, server := range e.Servers {
		s, err := open(ctx, server, config)
		if err == nil {
			return s, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", server, err))
	}
	return nil, fmt.Errorf("no member of etcd sends a snapshot: %w; check that etcd runs, and that it accepts this client",
		utilerrors.NewAggregate(errs))
}

func open(ctx context.Context, server string, config *tls.Config) (s *source, err error) {
	if err := dial(ctx, server, config); err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{server}, TLS: config, Logger: zap.NewNop(),
		// A member can vanish while it sends the snapshot.
		DialKeepAliveTime: answerTimeout, DialKeepAliveTimeout: answerTimeout,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = client.Close()
		}
	}()
	// A member answers a linearizable read once it has all writes, so the snapshot has this
	// revision.
	readCtx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	response, err := client.Get(readCtx, "health")
	if err != nil {
		return nil, fmt.Errorf("no read of the current revision: %w", err)
	}
	snapshot, err := client.SnapshotWithVersion(ctx)
	if err != nil {
		return nil, err
	}
	return &source{ReadCloser: snapshot.Snapshot, revision: response.Header.Revision, client: client}, nil
}

// dial connects once, because the client of etcd returns no reason why it cannot connect.
func dial(ctx context.Context, server string, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	address, err := url.Parse(server)
	if err != nil {
		return err
	}
	hostPort := net.JoinHostPort(address.Hostname(), cmp.Or(address.Port(), "443")) // as gRPC
	var conn net.Conn
	if address.Scheme == "https" {
		conn, err = (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", hostPort)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", hostPort)
	}
	if err != nil {
		return err
	}
	return conn.Close()
}
