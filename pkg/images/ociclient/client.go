// Package ociclient is a client of OCI registries for unreliable networks: it retries, resumes
// interrupted transfers, gives up on permanent errors, and explains them.
package ociclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"k8s.io/utils/clock"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// Options configure a Client.
type Options struct {
	// Reference is the repository, with or without a tag, such as
	// registry.example.com/macos/26:xcode-26.
	Reference string
	// Credential returns the credentials for a host; nil for anonymous access.
	Credential auth.CredentialFunc
	// Transport is for tests; nil selects one that trusts the system's CAs.
	Transport http.RoundTripper
	Clock     clock.WithTicker
	// Stall is how long a registry may send nothing. The default is 30 seconds.
	Stall time.Duration
	// Attempts is the limit of consecutive failures without progress. The default is 6.
	Attempts int
	// Wait is the wait after the first failure. It doubles with each failure, up to a minute. The
	// default is half a second.
	Wait time.Duration
	// Retrying is called before a wait; may be nil.
	Retrying func(err error, wait time.Duration)
}

const (
	maxWait = time.Minute
	// maxRetryAfter is the limit of a registry's Retry-After.
	maxRetryAfter = 5 * time.Minute
	// progress is the number of bytes received that resets the count of failures.
	progress = 1 << 20
)

// Client is a client of one repository.
type Client struct {
	opts Options
	ref  registry.Reference
	base string // prefix of URLs
	repo *remote.Repository
	auth *auth.Client
}

// Plain reports whether a registry is accessed without TLS: only one on this machine is.
func Plain(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if name == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil && address.IsLoopback()
}

// New returns a client for the repository of a reference.
func New(opts Options) (*Client, error) {
	repo, err := remote.NewRepository(opts.Reference)
	if err != nil {
		return nil, fmt.Errorf("reference %q: %w", opts.Reference, err)
	}
	if opts.Transport == nil {
		opts.Transport = systemTransport
	}
	if opts.Stall == 0 {
		opts.Stall = 30 * time.Second
	}
	if opts.Attempts == 0 {
		opts.Attempts = 6
	}
	if opts.Wait == 0 {
		opts.Wait = 500 * time.Millisecond
	}
	if opts.Retrying == nil {
		opts.Retrying = func(error, time.Duration) {}
	}
	c := &Client{opts: opts, ref: repo.Reference, repo: repo}
	plain := Plain(c.ref.Host())
	scheme := "https"
	c.auth = &auth.Client{
		Client:     &http.Client{Transport: &secured{base: opts.Transport, plain: plain}},
		Header:     http.Header{"User-Agent": {"macrack"}},
		Credential: opts.Credential,
		Cache:      auth.NewCache(),
	}
	if plain {
		scheme = "http"
		// The token server of a registry on this machine may be on this machine too.
		c.auth.BlockedRealmPrefixes = []netip.Prefix{}
	}
	c.base = fmt.Sprintf("%s://%s/v2/%s/", scheme, c.ref.Host(), c.ref.Repository)
	repo.PlainHTTP, repo.Client = plain, c.auth
	return c, nil
}

// Host returns the registry.
func (c *Client) Host() string { return c.ref.Registry }

// Tag returns the tag of the reference; empty if it has none.
func (c *Client) Tag() string { return c.ref.Reference }

// systemTransport trusts the system's CAs. HTTP/2 would put all transfers on one connection, which
// is slower over long distances.
var systemTransport = NewTransport(nil)

// NewTransport returns a transport that trusts roots; nil selects the system's CAs.
func NewTransport(roots *x509.CertPool) *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		TLSNextProto:          map[string]func(string, *tls.Conn) http.RoundTripper{},
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		MaxIdleConnsPerHost:   16,
		IdleConnTimeout:       90 * time.Second,
		DisableCompression:    true,
		ReadBufferSize:        64 << 10,
	}
}

// secured refuses requests without TLS, except from a registry on this machine to this machine. It
// also covers redirects and token servers.
type secured struct {
	base  http.RoundTripper
	plain bool
}

func (s *secured) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && (!s.plain || !Plain(req.URL.Host)) {
		return nil, permanent{fmt.Errorf("refused to connect to %s without TLS; only registries on this machine may omit TLS", req.URL.Host)}
	}
	resp, err := s.base.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		preferBearer(resp.Header)
	}
	return resp, err
}

// StatusError is an error response of a registry.
type StatusError struct {
	Host    string
	Code    int
	Message string
	// RetryAfter is the wait that the registry requests; zero if it requests none.
	RetryAfter time.Duration
}

// Error returns the message.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("registry %s responds with %d %s", e.Host, e.Code, http.StatusText(e.Code))
	if e.Message != "" {
		text += ": " + e.Message
	}
	switch e.Code {
	case http.StatusUnauthorized, http.StatusForbidden:
		text += " (the image requires credentials; see spec.pullSecretRef)"
	case http.StatusNotFound:
		text += " (the content was never pushed to the repository, or was deleted)"
	}
	return text
}

// IsUnauthorized reports whether the registry requires other credentials.
func IsUnauthorized(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && (status.Code == http.StatusUnauthorized || status.Code == http.StatusForbidden)
}

// IsNotFound reports whether the requested content does not exist in the registry.
func IsNotFound(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Code == http.StatusNotFound
}

// permanent is an error that a retry does not fix.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// Permanent marks an error that a retry does not fix.
func Permanent(err error) error { return permanent{err} }

func retryable(err error) bool {
	var p permanent
	var status *StatusError
	var tlsErr *tls.CertificateVerificationError
	switch {
	case errors.As(err, &p), errors.As(err, &tlsErr), errors.Is(err, context.Canceled), errors.Is(err, auth.ErrBasicCredentialNotFound):
		return false
	case errors.As(err, &status):
		return status.Code == http.StatusRequestTimeout || status.Code == http.StatusTooManyRequests || status.Code >= 500
	}
	return true
}

// explain turns library errors into errors of this package. It omits the query of URLs, because
// that may hold a signature.
func (c *Client) explain(err error) error {
	var response *errcode.ErrorResponse
	if errors.As(err, &response) {
		return &StatusError{Host: response.URL.Host, Code: response.StatusCode, Message: messageOf(response.Errors)}
	}
	if errors.Is(err, auth.ErrBasicCredentialNotFound) {
		return &StatusError{Host: c.ref.Host(), Code: http.StatusUnauthorized, Message: "no credentials are configured"}
	}
	if errors.Is(err, errdef.ErrNotFound) {
		return &StatusError{Host: c.ref.Host(), Code: http.StatusNotFound}
	}
	var request *url.Error
	if errors.As(err, &request) {
		where := "registry " + c.ref.Host()
		if at, parseErr := url.Parse(request.URL); parseErr == nil && at.Host != c.ref.Host() {
			where += ", by way of " + at.Host
		}
		return fmt.Errorf("%s: %w", where, request.Err)
	}
	return err
}

func oneLine(text string) string {
	const limit = 200
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "..."
	}
	return text
}

// backoff counts failures and waits between attempts.
type backoff struct {
	c        *Client
	failures int
}

// again waits after a failure, or returns the error if a retry is pointless.
func (b *backoff) again(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !retryable(err) {
		return err
	}
	b.failures++
	if b.failures >= b.c.opts.Attempts {
		return fmt.Errorf("%d attempts failed, the last with: %w", b.failures, err)
	}
	wait := min(b.c.opts.Wait<<min(b.failures-1, 16), maxWait)
	wait = wait/2 + rand.N(wait/2+1)
	var status *StatusError
	if errors.As(err, &status) && status.RetryAfter > 0 {
		if status.RetryAfter > maxRetryAfter {
			return fmt.Errorf("the registry requests a wait of %s, which exceeds the limit: %w", status.RetryAfter, err)
		}
		wait = max(wait, status.RetryAfter)
	}
	b.c.opts.Retrying(err, wait)
	timer := b.c.opts.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C():
		return nil
	}
}

// Retry repeats attempt until it succeeds or a retry is pointless.
func (c *Client) Retry(ctx context.Context, attempt func(context.Context) error) error {
	b := backoff{c: c}
	for {
		err := attempt(ctx)
		if err == nil {
			return nil
		}
		if err := b.again(ctx, c.explain(err)); err != nil {
			return err
		}
	}
}

// Manifest fetches the manifest with that digest, even if the tag has moved.
func (c *Client) Manifest(ctx context.Context, pinned digest.Digest, limit int64) ([]byte, error) {
	accept := http.Header{"Accept": {ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex}}
	return c.small(ctx, "manifests/"+pinned.String(), accept, pinned, limit)
}

// Blob fetches a small blob into memory.
func (c *Client) Blob(ctx context.Context, blob ocispec.Descriptor, limit int64) ([]byte, error) {
	if blob.Size > limit {
		return nil, fmt.Errorf("blob %s has %d bytes, and the limit is %d", blob.Digest, blob.Size, limit)
	}
	return c.small(ctx, "blobs/"+blob.Digest.String(), nil, blob.Digest, blob.Size)
}

func (c *Client) small(ctx context.Context, path string, header http.Header, want digest.Digest, limit int64) (data []byte, err error) {
	err = c.Retry(ctx, func(ctx context.Context) error {
		t, err := c.get(ctx, path, header)
		if err != nil {
			return err
		}
		defer func() { _ = t.Close() }()
		if t.html {
			return fmt.Errorf("registry %s responds to a request for %s with %s", c.ref.Host(), want, htmlMessage)
		}
		if data, err = io.ReadAll(io.LimitReader(t, limit+1)); err != nil {
			return err
		}
		if int64(len(data)) > limit {
			return permanent{fmt.Errorf("registry %s sends more than %d bytes for %s", c.ref.Host(), limit, want)}
		}
		if got := digest.FromBytes(data); got != want {
			return &DigestError{Host: c.ref.Host(), Want: want, Got: got}
		}
		return nil
	})
	return data, err
}

// DigestError means that a registry sent content with another digest.
type DigestError struct {
	Host      string
	Want, Got digest.Digest
}

// Error returns the message.
func (e *DigestError) Error() string {
	return fmt.Sprintf("registry %s sent content with digest %s for %s; the content was damaged or replaced", e.Host, e.Got, e.Want)
}

// transfer is the body of a response. Its request is canceled when the registry sends nothing for
// too long.
type transfer struct {
	io.ReadCloser
	status int
	html   bool
	beat   chan struct{}
	cancel context.CancelCauseFunc
	ctx    context.Context
}

var errStalled = errors.New("stalled")

// get sends a request. A response other than 200 and 206 is an error.
func (c *Client) get(ctx context.Context, path string, header http.Header) (*transfer, error) {
	ctx, cancel := context.WithCancelCause(auth.AppendRepositoryScope(ctx, c.ref, auth.ActionPull))
	t := &transfer{beat: make(chan struct{}, 1), cancel: cancel, ctx: ctx}
	go c.watch(t)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		cancel(nil)
		return nil, permanent{err}
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := c.auth.Do(req) //nolint:bodyclose // transfer.Close does
	if err != nil {
		err = t.cause(err)
		cancel(nil)
		return nil, err
	}
	t.ReadCloser, t.status, t.html = resp.Body, resp.StatusCode, isHTML(resp.Header)
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent {
		defer func() { _ = t.Close() }()
		return nil, c.statusError(resp)
	}
	return t, nil
}

// watch cancels a transfer that makes no progress.
func (c *Client) watch(t *transfer) {
	timer := c.opts.Clock.NewTimer(c.opts.Stall)
	defer timer.Stop()
	last := c.opts.Clock.Now()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.beat:
			last = c.opts.Clock.Now()
		case <-timer.C():
			idle := c.opts.Clock.Since(last)
			if idle >= c.opts.Stall {
				t.cancel(fmt.Errorf("registry %s has sent nothing for %s: %w", c.ref.Host(), c.opts.Stall, errStalled))
				return
			}
			timer.Reset(c.opts.Stall - idle)
		}
	}
}

// cause returns the cause of a canceled transfer in place of the resulting error.
func (t *transfer) cause(err error) error {
	if cause := context.Cause(t.ctx); cause != nil && errors.Is(cause, errStalled) {
		return cause
	}
	return err
}

func (t *transfer) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if n > 0 {
		select {
		case t.beat <- struct{}{}:
		default:
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = t.cause(err)
	}
	return n, err
}

func (t *transfer) Close() error {
	t.cancel(nil)
	return t.ReadCloser.Close()
}

func (c *Client) statusError(resp *http.Response) error {
	e := &StatusError{Host: resp.Request.URL.Host, Code: resp.StatusCode}
	if text := resp.Header.Get("Retry-After"); text != "" {
		if seconds, err := strconv.Atoi(text); err == nil && seconds > 0 {
			e.RetryAfter = time.Duration(min(seconds, 1<<30)) * time.Second
		} else if at, err := http.ParseTime(text); err == nil {
			e.RetryAfter = max(0, at.Sub(c.opts.Clock.Now()))
		}
	}
	var body struct {
		Errors errcode.Errors `json:"errors"`
	}
	if isHTML(resp.Header) {
		e.Message = htmlMessage
	} else if data, err := io.ReadAll(io.LimitReader(resp.Body, 8<<10)); err == nil && json.Unmarshal(data, &body) == nil {
		e.Message = messageOf(body.Errors)
	}
	return e
}

// Open returns a blob's content. An interrupted transfer resumes at its offset. The caller must
// verify the content.
func (c *Client) Open(ctx context.Context, blob ocispec.Descriptor) io.ReadCloser {
	return &reader{c: c, ctx: ctx, blob: blob, backoff: backoff{c: c}}
}

type reader struct {
	c       *Client
	ctx     context.Context
	blob    ocispec.Descriptor
	offset  int64
	settled int64 // offset of the last reset of the failure count
	current *transfer
	backoff backoff
}

func (r *reader) Read(p []byte) (int, error) {
	for r.offset < r.blob.Size {
		n, err := r.read(p[:min(int64(len(p)), r.blob.Size-r.offset)])
		r.offset += int64(n)
		if r.offset-r.settled >= progress {
			r.settled, r.backoff.failures = r.offset, 0
		}
		if n > 0 {
			return n, nil
		}
		if err == nil {
			continue
		}
		_ = r.Close()
		if err := r.backoff.again(r.ctx, r.c.explain(err)); err != nil {
			return 0, err
		}
	}
	return 0, io.EOF
}

func (r *reader) read(p []byte) (int, error) {
	if r.current == nil {
		if err := r.open(); err != nil {
			return 0, err
		}
	}
	n, err := r.current.Read(p)
	if n > 0 {
		return n, nil // a persistent error recurs
	}
	if err != nil && !errors.Is(err, errStalled) {
		err = fmt.Errorf("registry %s interrupted the transfer after %d of %d bytes of %s: %w", r.c.ref.Host(), r.offset, r.blob.Size, r.blob.Digest, err)
	}
	return 0, err
}

// open starts the transfer, or resumes it at the offset.
func (r *reader) open() error {
	header := http.Header{}
	if r.offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", r.offset, r.blob.Size-1))
	}
	t, err := r.c.get(r.ctx, "blobs/"+r.blob.Digest.String(), header)
	if err != nil {
		return err
	}
	if r.offset > 0 && t.status == http.StatusOK { // the registry does not support ranges
		if _, err := io.CopyN(io.Discard, t, r.offset); err != nil {
			_ = t.Close()
			return err
		}
	}
	r.current = t
	return nil
}

func (r *reader) Close() error {
	if r.current == nil {
		return nil
	}
	err := r.current.Close()
	r.current = nil
	return err
}
