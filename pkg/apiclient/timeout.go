// Package apiclient has the API client helpers of the controllers and agents: every request has a
// timeout, and status writes do not conflict with other writers of the same object.
package apiclient

import (
	"context"
	"io"
	"net/http"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// RequestTimeout is the maximum duration of one request, including its response. Servers time out
// after at most a minute.
const RequestTimeout = 20 * time.Second

// BoundRequests limits each request of a client to timeout, except watches. [rest.Config.Timeout]
// would end watches too.
func BoundRequests(config *rest.Config, timeout time.Duration) *rest.Config {
	config = rest.CopyConfig(config)
	config.WrapTransport = transport.Wrappers(config.WrapTransport, func(rt http.RoundTripper) http.RoundTripper {
		return &bounded{rt, timeout}
	})
	return config
}

type bounded struct {
	rt      http.RoundTripper
	timeout time.Duration
}

var _ utilnet.RoundTripperWrapper = &bounded{}

func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.rt }

func (b *bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	if watch := req.URL.Query().Get("watch"); watch == "true" || watch == "1" {
		return b.rt.RoundTrip(req)
	}
	ctx, cancel := context.WithTimeout(req.Context(), b.timeout)
	resp, err := b.rt.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &body{resp.Body, cancel}
	return resp, nil
}

// body cancels the timeout of a request when its response has been read.
type body struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *body) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
