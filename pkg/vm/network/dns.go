package network

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/rules/egress"
)

// Limits of the DNS server of a guest.
const (
	maxQueries    = 64 // at once
	queryRate     = 200
	queryBurst    = 400
	maxDNSClients = 32 // over TCP
	// maxRecords is the limit of records in an answer.
	maxRecords = 128
	// maxAliases is the limit of aliases (CNAME) that lead from a name to its addresses.
	maxAliases = 8
	// udpSize is the limit of an answer over UDP, in bytes, if the guest accepts it.
	udpSize = 1232
	// resolveTimeout bounds a question.
	resolveTimeout = 8 * time.Second
)

// nameserver answers the questions of a guest, and remembers the addresses of allowed names.
type nameserver struct {
	network *Network
	queries chan struct{}
	rate    *rate.Limiter
}

// serveDNS starts the DNS server on the gateway.
func (n *Network) serveDNS() error {
	address := tcpip.FullAddress{NIC: nic, Addr: gatewayAddress, Port: dnsPort}
	packets, err := gonet.DialUDP(n.stack, &address, nil, ipv4.ProtocolNumber)
	if err != nil {
		return err
	}
	listener, err := n.listen(dnsPort)
	if err != nil {
		return err
	}
	context.AfterFunc(n.ctx, func() {
		_ = packets.Close()
		_ = listener.Close()
	})
	handler := &nameserver{network: n, queries: make(chan struct{}, maxQueries), rate: rate.NewLimiter(queryRate, queryBurst)}
	for _, server := range []*dns.Server{
		{PacketConn: packets, Handler: handler},
		{Listener: netutil.LimitListener(listener, maxDNSClients), Handler: handler},
	} {
		go func() {
			if err := server.ActivateAndServe(); err != nil && n.ctx.Err() == nil {
				klog.ErrorS(err, "DNS server of guest failed")
			}
		}()
	}
	return nil
}

// ServeDNS implements dns.Handler. Questions beyond the limits have no answer, and the guest
// repeats them.
func (s *nameserver) ServeDNS(w dns.ResponseWriter, question *dns.Msg) {
	if !s.rate.AllowN(s.network.config.Clock.Now(), 1) || !acquire(s.queries) {
		return
	}
	defer func() { <-s.queries }()
	ctx, cancel := context.WithTimeout(s.network.ctx, resolveTimeout)
	defer cancel()
	reply := s.answer(ctx, question)
	limit := dns.MaxMsgSize
	if _, overUDP := w.RemoteAddr().(*net.UDPAddr); overUDP {
		limit = dns.MinMsgSize
		if options := question.IsEdns0(); options != nil {
			limit = min(max(limit, int(options.UDPSize())), udpSize)
		}
	}
	if question.IsEdns0() != nil {
		reply.SetEdns0(udpSize, false)
	}
	reply.Truncate(limit)
	_ = w.WriteMsg(reply) // the guest repeats the question
}

// answer returns the reply to a message of the guest.
func (s *nameserver) answer(ctx context.Context, message *dns.Msg) *dns.Msg {
	reply := new(dns.Msg)
	if message.Opcode != dns.OpcodeQuery || len(message.Question) != 1 || message.Question[0].Qclass != dns.ClassINET {
		return reply.SetRcode(message, dns.RcodeNotImplemented)
	}
	reply.SetReply(message)
	reply.RecursionAvailable = true
	question := message.Question[0]
	switch question.Qtype {
	case dns.TypeAAAA:
		return reply // the guest has no IPv6
	case dns.TypeANY, dns.TypeAXFR, dns.TypeIXFR:
		reply.Rcode = dns.RcodeRefused
		return reply
	}
	ask := new(dns.Msg)
	ask.SetQuestion(question.Name, question.Qtype)
	ask.SetEdns0(udpSize, false)
	response, err := s.network.config.Outside.Resolve(ctx, ask)
	if err != nil || len(response.Question) != 1 || dns.CanonicalName(response.Question[0].Name) != dns.CanonicalName(question.Name) {
		reply.Rcode = dns.RcodeServerFailure
		return reply
	}
	reply.Rcode = response.Rcode
	answers := response.Answer[:min(len(response.Answer), maxRecords)]
	if question.Qtype == dns.TypeA {
		s.network.learn(question.Name, answers)
	}
	reply.Answer = s.network.reachable(answers)
	if len(reply.Answer) == 0 {
		reply.Ns = s.network.reachable(response.Ns[:min(len(response.Ns), maxRecords)])
	}
	return reply
}

// learn remembers the addresses of an allowed name. Records that no alias connects with the name do
// not count.
func (n *Network) learn(question string, answers []dns.RR) {
	if !n.config.Allowed.AllowsName(question) {
		return
	}
	owner, ttl := dns.CanonicalName(question), uint32(maxTTL/time.Second)
	for range maxAliases {
		next := ""
		for _, record := range answers {
			if dns.CanonicalName(record.Header().Name) != owner {
				continue
			}
			switch record := record.(type) {
			case *dns.A:
				if address, ok := netip.AddrFromSlice(record.A); ok {
					n.names.add(resolved{address.Unmap(), dns.CanonicalName(question)}, time.Duration(min(ttl, record.Hdr.Ttl))*time.Second)
				}
			case *dns.CNAME:
				next, ttl = dns.CanonicalName(record.Target), min(ttl, record.Hdr.Ttl)
			}
		}
		if next == "" {
			return
		}
		owner = next
	}
}

// reachable returns the records without the addresses that the guest may not reach. So a public
// name with a private address, as in DNS rebinding, has no address for the guest. Neither have the
// names of a site's machines.
func (n *Network) reachable(answers []dns.RR) []dns.RR {
	host, err := n.host.addresses()
	if err != nil {
		return nil
	}
	var kept []dns.RR
	for _, record := range answers {
		switch record := record.(type) {
		case *dns.AAAA:
			continue
		case *dns.A:
			address, _ := netip.AddrFromSlice(record.A)
			if err := n.policy.Check(egress.Destination{Address: address, Names: n.names.of(address)}, host); err != nil {
				continue
			}
		case *dns.SVCB:
			record.Value = withoutHints(record.Value)
		case *dns.HTTPS:
			record.Value = withoutHints(record.Value)
		}
		kept = append(kept, record)
	}
	return kept
}

// withoutHints returns the parameters of a service without its addresses. They are optional: the
// guest asks for the addresses of the name.
func withoutHints(values []dns.SVCBKeyValue) []dns.SVCBKeyValue {
	return slices.DeleteFunc(values, func(v dns.SVCBKeyValue) bool {
		return v.Key() == dns.SVCB_IPV4HINT || v.Key() == dns.SVCB_IPV6HINT
	})
}
