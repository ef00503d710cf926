package backup

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// partSize is the size of a part of an upload, which is kept in memory. An upload has at most
// 10,000 parts, and etcd at most 8 GiB.
const partSize = 16 << 20

// S3 describes S3-compatible storage. The credentials are in the environment variables
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.
type S3 struct {
	// Endpoint is the URL of the storage, such as https://s3.eu-central-1.amazonaws.com.
	Endpoint string
	Region   string
	// CAFile has the authorities of the endpoint; empty: the public ones.
	CAFile string
}

func (s S3) bucket(name, prefix string) (Store, error) {
	endpoint, err := url.Parse(s.Endpoint)
	if err != nil || endpoint.Scheme != "https" && endpoint.Scheme != "http" || endpoint.Host == "" || strings.Trim(endpoint.Path, "/") != "" {
		return nil, fmt.Errorf("%q is no endpoint of S3; use a URL without a path, such as https://s3.eu-central-1.amazonaws.com", s.Endpoint)
	}
	if name == "" {
		return nil, errors.New("the location has no bucket; use s3://bucket/prefix")
	}
	options := &minio.Options{Creds: credentials.NewEnvAWS(), Secure: endpoint.Scheme == "https", Region: s.Region}
	if s.CAFile != "" {
		if options.Transport, err = trusting(s.CAFile); err != nil {
			return nil, err
		}
	}
	client, err := minio.New(endpoint.Host, options)
	if err != nil {
		return nil, err
	}
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return &bucket{client, name, prefix}, nil
}

// trusting returns a transport that trusts the authorities in a file only.
func trusting(caFile string) (http.RoundTripper, error) {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM", caFile)
	}
	t, err := minio.DefaultTransport(true)
	if err != nil {
		return nil, err
	}
	t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return t, nil
}

// bucket is a Store in a bucket of S3.
type bucket struct {
	client *minio.Client
	name   string
	prefix string
}

func (b *bucket) Put(ctx context.Context, name string, content io.Reader) error {
	_, err := b.client.PutObject(ctx, b.name, b.prefix+name, content, -1, minio.PutObjectOptions{ContentType: "application/octet-stream", PartSize: partSize})
	return b.explain(err)
}

func (b *bucket) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	object, err := b.client.GetObject(ctx, b.name, b.prefix+name, minio.GetObjectOptions{})
	if err != nil {
		return nil, b.explain(err)
	}
	if _, err := object.Stat(); err != nil {
		return nil, errors.Join(b.explain(err), object.Close())
	}
	return object, nil
}

func (b *bucket) List(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the listing after an error
	defer cancel()
	var names []string
	for object := range b.client.ListObjects(ctx, b.name, minio.ListObjectsOptions{Prefix: b.prefix}) {
		if object.Err != nil {
			return nil, b.explain(object.Err)
		}
		names = append(names, strings.TrimPrefix(object.Key, b.prefix))
	}
	return names, nil
}

func (b *bucket) Delete(ctx context.Context, name string) error {
	return b.explain(b.client.RemoveObject(ctx, b.name, b.prefix+name, minio.RemoveObjectOptions{}))
}

func (b *bucket) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bucket %s of %s: %w", b.name, b.client.EndpointURL(), err)
}
