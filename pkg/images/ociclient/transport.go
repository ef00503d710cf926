package ociclient

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"time"
)

// isLoopback reports whether a host is this machine. Only its registries are accessed without TLS.
func isLoopback(host string) bool {
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

// systemTransport trusts the system's CAs. HTTP/2 would put all transfers on one connection, which
// is slower over long distances.
var systemTransport = newTransport(nil)

// newTransport returns a transport that trusts roots; nil selects the system's CAs.
func newTransport(roots *x509.CertPool) *http.Transport {
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
	if req.URL.Scheme != "https" && (!s.plain || !isLoopback(req.URL.Host)) {
		return nil, permanent{fmt.Errorf("refused to connect to %s without TLS; only registries on this machine may omit TLS", req.URL.Host)}
	}
	resp, err := s.base.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		preferBearer(resp.Header)
	}
	return resp, err
}

// preferBearer removes all challenges of a response but Bearer, if that is one of them. The library
// looks only at the first; Basic requires a password where an anonymous token, or a password for a
// token, is sufficient.
func preferBearer(header http.Header) {
	const name = "Www-Authenticate"
	for _, value := range header[name] {
		if at := bearerIn(value); at >= 0 {
			header[name] = []string{value[at:]}
			return
		}
	}
}

// challenge matches a quoted parameter, or the beginning of a Bearer challenge as its group.
var challenge = regexp.MustCompile(`(?i)"(?:[^"\\]|\\.)*"?|(?:^|,)[ \t]*(bearer )`)

// bearerIn returns the index of the Bearer challenge in a header, or -1. A header may have several
// challenges, separated by commas, and a parameter may quote the word.
func bearerIn(value string) int {
	for _, match := range challenge.FindAllStringSubmatchIndex(value, -1) {
		if at := match[2]; at >= 0 {
			return at
		}
	}
	return -1
}
