// Package ociclient makes the registry client of oras-go fit for unreliable networks: it retries,
// resumes interrupted transfers, cancels stalled ones, gives up on permanent errors, and explains
// them.
package ociclient

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"k8s.io/utils/clock"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
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
	// Stall is how long a registry may neither send nor accept data. The default is 30 seconds.
	Stall time.Duration
	// Answer is how long a registry may take to respond after it has accepted all data of a
	// request. The default is 10 minutes.
	Answer time.Duration
	// Attempts is the limit of consecutive failures without progress. The default is 6.
	Attempts int
	// Wait is the wait after the first failure. It doubles with each failure, up to a minute. The
	// default is half a second.
	Wait time.Duration
	// Retrying is called before a wait; may be nil.
	Retrying func(err error, wait time.Duration)
}

// Client is a client of one repository.
type Client struct {
	opts Options
	repo *remote.Repository
	base string // prefix of the URLs of content
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
	opts.Stall = cmp.Or(opts.Stall, 30*time.Second)
	opts.Answer = cmp.Or(opts.Answer, 10*time.Minute)
	opts.Attempts = cmp.Or(opts.Attempts, 6)
	opts.Wait = cmp.Or(opts.Wait, 500*time.Millisecond)
	if opts.Retrying == nil {
		opts.Retrying = func(error, time.Duration) {}
	}
	host := repo.Reference.Host()
	plain := isLoopback(host)
	authorized := &auth.Client{
		Client:     &http.Client{Transport: &secured{base: opts.Transport, plain: plain}},
		Header:     http.Header{"User-Agent": {"macrack"}},
		Credential: opts.Credential,
		Cache:      auth.NewCache(),
	}
	scheme := "https"
	if plain {
		scheme = "http"
		// The token server of a registry on this machine may be on this machine too.
		authorized.BlockedRealmPrefixes = []netip.Prefix{}
	}
	repo.PlainHTTP = plain
	repo.Client = &doer{
		auth: authorized, host: host, clock: opts.Clock,
		data:   wait{opts.Stall, "has sent nothing"},
		accept: wait{opts.Stall, "has neither accepted data nor responded"},
		answer: wait{opts.Answer, "has accepted all data but not responded"},
	}
	base := fmt.Sprintf("%s://%s/v2/%s/", scheme, host, repo.Reference.Repository)
	return &Client{opts: opts, repo: repo, base: base}, nil
}

// Host returns the registry.
func (c *Client) Host() string { return c.repo.Reference.Registry }
