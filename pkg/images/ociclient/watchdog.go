package ociclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// doer sends requests: it cancels stalled ones, and returns responses that report a failure as
// errors of this package.
type doer struct {
	auth  *auth.Client
	host  string
	clock clock.PassiveClock
	// data, accept and answer are the waits for the registry.
	data, accept, answer wait
}

// wait is the limit of a wait and the failure that exceeding it means.
type wait struct {
	limit   time.Duration
	failure string
}

// Do implements remote.Client.
func (d *doer) Do(req *http.Request) (*http.Response, error) {
	w, req := d.watch(req)
	resp, err := d.auth.Do(req)
	w.timer.Stop()
	if err != nil {
		err = w.cause(err)
		w.cancel(nil)
		return nil, err
	}
	resp.Body = download{resp.Body, w}
	absent := req.Method == http.MethodHead && resp.StatusCode == http.StatusNotFound // not a failure
	if resp.StatusCode >= http.StatusMultipleChoices && !absent {
		defer func() { _ = resp.Body.Close() }()
		return nil, d.statusError(resp)
	}
	if req.Method == http.MethodGet && isHTML(resp.Header) {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("registry %s responds to a request for %s with %s", d.host, path.Base(req.URL.Path), htmlMessage)
	}
	// The library quotes the URL in errors. The query of a redirect can be a signature.
	at := resp.Request.URL
	resp.Request = resp.Request.WithContext(req.Context())
	resp.Request.URL = &url.URL{Scheme: at.Scheme, Host: at.Host, Path: at.Path}
	return resp, nil
}

// watchdog cancels a request when the registry neither sends nor accepts data for too long. It runs
// while the registry is waited for, not while the reader of a response is.
type watchdog struct {
	doer   *doer
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	wait   atomic.Pointer[wait]
}

var errStalled = errors.New("stalled")

// watch starts the watchdog of a request and returns the request to send.
func (d *doer) watch(req *http.Request) (*watchdog, *http.Request) {
	w := &watchdog{doer: d}
	w.ctx, w.cancel = context.WithCancelCause(req.Context())
	first := &d.data
	hasBody := req.Body != nil && req.Body != http.NoBody
	if hasBody {
		first = &d.accept
	}
	w.wait.Store(first)
	w.timer = time.AfterFunc(first.limit, func() {
		wait := w.wait.Load()
		w.cancel(fmt.Errorf("registry %s %s for %s: %w", d.host, wait.failure, wait.limit, errStalled))
	})
	req = req.WithContext(w.ctx)
	if hasBody {
		req.Body = upload{req.Body, w}
		if body := req.GetBody; body != nil {
			req.GetBody = func() (io.ReadCloser, error) {
				again, err := body()
				return upload{again, w}, err
			}
		}
	}
	return w, req
}

// restart begins another wait.
func (w *watchdog) restart(next *wait) {
	w.wait.Store(next)
	w.timer.Reset(next.limit)
}

// cause returns the cause of a canceled request in place of the resulting error.
func (w *watchdog) cause(err error) error {
	if cause := context.Cause(w.ctx); errors.Is(cause, errStalled) {
		return cause
	}
	return err
}

// upload is the body of a request. A read means that the registry, or a proxy before it, has
// accepted the previous data. A proxy may forward the content only when it has all of it.
type upload struct {
	io.ReadCloser
	watchdog *watchdog
}

func (u upload) Read(p []byte) (int, error) {
	u.watchdog.restart(&u.watchdog.doer.accept)
	n, err := u.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		u.watchdog.restart(&u.watchdog.doer.answer)
	}
	return n, err
}

// download is the body of a response.
type download struct {
	io.ReadCloser
	watchdog *watchdog
}

func (d download) Read(p []byte) (int, error) {
	d.watchdog.restart(&d.watchdog.doer.data)
	n, err := d.ReadCloser.Read(p)
	d.watchdog.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = d.watchdog.cause(err)
	}
	return n, err
}

func (d download) Close() error {
	d.watchdog.cancel(nil)
	return d.ReadCloser.Close()
}
