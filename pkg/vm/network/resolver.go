package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// resolverConfig lists the DNS servers of the host. macOS keeps it up to date.
	resolverConfig = "/etc/resolv.conf"
	// serverTimeout bounds a question to one server.
	serverTimeout = 2 * time.Second
	// maxServers is the limit of servers that are asked.
	maxServers = 3
)

// hostResolver asks the DNS servers of the host. It does not use the resolver of the system, which
// hides the time to live of an answer.
type hostResolver struct {
	path string

	mu      sync.Mutex
	changed time.Time // of the file
	servers []string
}

func newHostResolver() *hostResolver { return &hostResolver{path: resolverConfig} }

func (r *hostResolver) resolve(ctx context.Context, question *dns.Msg) (*dns.Msg, error) {
	servers, err := r.read()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, server := range servers {
		answer, err := ask(ctx, server, question)
		if err == nil && answer.Rcode != dns.RcodeServerFailure && answer.Rcode != dns.RcodeRefused {
			return answer, nil
		}
		if err == nil {
			err = fmt.Errorf("%s answers %s", server, dns.RcodeToString[answer.Rcode])
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// ask asks one server, again over TCP if the answer is too long for UDP.
func ask(ctx context.Context, server string, question *dns.Msg) (*dns.Msg, error) {
	client := &dns.Client{Timeout: serverTimeout, UDPSize: udpSize}
	answer, _, err := client.ExchangeContext(ctx, question, server)
	if err == nil && answer.Truncated {
		client.Net = "tcp"
		answer, _, err = client.ExchangeContext(ctx, question, server)
	}
	return answer, err
}

// read returns the servers, and reads the file again after a change.
func (r *hostResolver) read() ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	info, err := os.Stat(r.path)
	if err != nil {
		return nil, err
	}
	if r.servers != nil && info.ModTime().Equal(r.changed) {
		return r.servers, nil
	}
	config, err := dns.ClientConfigFromFile(r.path)
	if err != nil {
		return nil, err
	}
	var servers []string
	for _, server := range config.Servers[:min(len(config.Servers), maxServers)] {
		servers = append(servers, net.JoinHostPort(server, config.Port))
	}
	if len(servers) == 0 {
		return nil, fmt.Errorf("%s has no DNS server", r.path)
	}
	r.servers, r.changed = servers, info.ModTime()
	return servers, nil
}
