package backup

import (
	"context"
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

// partSize is the size in bytes of a part of an upload, which is in memory. 10,000 parts are
// allowed, so 156 GiB.
const partSize = 16 << 20

// maxRetries is the number of attempts of a request, within about 10 seconds.
const maxRetries = 5

// S3Options are the address of a bucket. The environment variables AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN have the credentials.
type S3Options struct {
	Endpoint, Bucket, Prefix, Region string
	// CAFile is the authority of the server; empty: those of the system.
	CAFile string
}

// S3 is a Store in a bucket of an S3-compatible server.
type S3 struct {
	client         minio.Core
	bucket, prefix string
}

// NewS3 returns a store, to which it does not connect yet.
func NewS3(o S3Options) (*S3, error) {
	endpoint, err := url.Parse(o.Endpoint)
	if err != nil || endpoint.Host == "" || strings.Trim(endpoint.Path, "/") != "" || endpoint.User != nil ||
		endpoint.Scheme != "https" && endpoint.Scheme != "http" {
		return nil, errors.New("--s3-endpoint is not the URL of a server; use a URL such as https://s3.example.com, and --s3-bucket for the bucket")
	}
	if os.Getenv("AWS_ACCESS_KEY_ID") == "" || os.Getenv("AWS_SECRET_ACCESS_KEY") == "" {
		return nil, errors.New("no credentials of the S3 server; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	}
	transport, err := newTransport(endpoint.Scheme == "https", o.CAFile)
	if err != nil {
		return nil, err
	}
	client, err := minio.NewCore(endpoint.Host, &minio.Options{
		Creds: credentials.NewEnvAWS(), Secure: endpoint.Scheme == "https", Transport: transport, Region: o.Region, MaxRetries: maxRetries,
	})
	if err != nil {
		return nil, err
	}
	prefix := strings.Trim(o.Prefix, "/")
	if prefix != "" {
		prefix += "/"
	}
	return &S3{client: *client, bucket: o.Bucket, prefix: prefix}, nil
}

func newTransport(secure bool, caFile string) (*http.Transport, error) {
	transport, err := minio.DefaultTransport(secure)
	if err != nil || caFile == "" || !secure {
		return transport, err
	}
	authorities, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("%s has no certificate; use a file in PEM format", caFile)
	}
	transport.TLSClientConfig.RootCAs = pool
	return transport, nil
}

// List returns the names of the objects below the prefix.
func (s *S3) List(ctx context.Context) ([]string, error) {
	var found []string
	for object := range s.client.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: s.prefix}) {
		if object.Err != nil {
			return nil, s.explain(object.Err)
		}
		found = append(found, strings.TrimPrefix(object.Key, s.prefix))
	}
	return found, nil
}

// Put uploads an object in parts, which become an object with the last request.
func (s *S3) Put(ctx context.Context, name string, content io.Reader) error {
	// Object Lock asks for a checksum; Content-MD5 is the one that all servers know.
	_, err := s.client.Client.PutObject(ctx, s.bucket, s.prefix+name, content, -1,
		minio.PutObjectOptions{PartSize: partSize, ContentType: "application/octet-stream", SendContentMd5: true})
	return s.explain(err)
}

// Get opens an object.
func (s *S3) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	body, _, _, err := s.client.GetObject(ctx, s.bucket, s.prefix+name, minio.GetObjectOptions{})
	if err != nil {
		return nil, s.explain(err)
	}
	return body, nil
}

// Delete deletes an object.
func (s *S3) Delete(ctx context.Context, name string) error {
	return s.explain(s.client.RemoveObject(ctx, s.bucket, s.prefix+name, minio.RemoveObjectOptions{}))
}

// explain adds the remedy to an error.
func (s *S3) explain(err error) error {
	var response minio.ErrorResponse
	if !errors.As(err, &response) {
		return err
	}
	switch response.Code {
	case "NoSuchBucket":
		return fmt.Errorf("bucket %q: %w; create the bucket, or correct --s3-bucket and --s3-region", s.bucket, err)
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken":
		return fmt.Errorf("bucket %q: the server refuses the credentials (%s): %w; replace AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", s.bucket, response.Code, err)
	case "AccessDenied":
		return fmt.Errorf("bucket %q: %w; permit s3:ListBucket, s3:PutObject and s3:AbortMultipartUpload, s3:DeleteObject unless --keep=0, and s3:GetObject to fetch",
			s.bucket, err)
	case "AuthorizationHeaderMalformed", "PermanentRedirect":
		return fmt.Errorf("bucket %q: %w; correct --s3-region", s.bucket, err)
	}
	return fmt.Errorf("bucket %q: %w (%s)", s.bucket, err, response.Code)
}
