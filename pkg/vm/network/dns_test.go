package network_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDNS(t *testing.T) {
	w := boot(t, nil, nil)
	w.answer("github.com.", "github.com. 60 IN A 140.82.121.4")
	for _, over := range []string{"udp", "tcp"} {
		answer := w.lookup(over, "github.com.", dns.TypeA)
		assert.Equal(t, dns.RcodeSuccess, answer.Rcode)
		assert.Equal(t, []string{"140.82.121.4"}, addresses(answer))
		assert.EqualValues(t, 60, answer.Answer[0].Header().Ttl)
		assert.Equal(t, dns.RcodeNameError, w.lookup(over, "nowhere.example.", dns.TypeA).Rcode)
	}
	// The guest has no IPv6, and its questions for it do not leave the Mac.
	answer := w.lookup("udp", "github.com.", dns.TypeAAAA)
	assert.Equal(t, dns.RcodeSuccess, answer.Rcode)
	assert.Empty(t, answer.Answer)
	w.mu.Lock()
	assert.NotContains(t, w.asked, "AAAA github.com.")
	w.mu.Unlock()
	assert.Equal(t, dns.RcodeRefused, w.lookup("tcp", "github.com.", dns.TypeANY).Rcode)
	assert.Equal(t, dns.RcodeNotImplemented, w.ask("udp", &dns.Msg{
		MsgHdr: dns.MsgHdr{Id: 7}, Question: []dns.Question{{Name: "version.bind.", Qtype: dns.TypeTXT, Qclass: dns.ClassCHAOS}},
	}).Rcode)
}

// A public name whose address becomes private does not lead to the private network, even though the
// guest knows the address.
func TestRebinding(t *testing.T) {
	w := boot(t, nil, []string{"git.corp"})
	w.serve("10.0.0.1:80")
	w.serve("127.0.0.1:80")
	w.answer("evil.example.", "evil.example. 0 IN A 140.82.121.4")
	assert.Equal(t, []string{"140.82.121.4"}, addresses(w.lookup("udp", "evil.example.", dns.TypeA)))
	w.answer("evil.example.", "evil.example. 0 IN A 10.0.0.1", "evil.example. 0 IN A 127.0.0.1", "evil.example. 0 IN A 17.1.2.3", "evil.example. 0 IN AAAA ::ffff:10.0.0.1")
	assert.Empty(t, w.lookup("udp", "evil.example.", dns.TypeA).Answer)
	w.blocked("10.0.0.1:80")
	w.blocked("127.0.0.1:80")

	// Records that do not belong to the allowed name allow nothing.
	w.answer("git.corp.", "git.corp. 60 IN A 10.0.0.9", "evil.example. 60 IN A 10.0.0.1")
	assert.Equal(t, []string{"10.0.0.9"}, addresses(w.lookup("udp", "git.corp.", dns.TypeA)))
	w.blocked("10.0.0.1:80")
	// An allowed name leads neither to the Mac nor to metadata.
	for _, address := range []string{"127.0.0.1", "17.1.2.3", "169.254.169.254", "192.168.127.1"} {
		w.serve(address + ":80")
		w.answer("git.corp.", "git.corp. 60 IN A "+address)
		assert.Empty(t, addresses(w.lookup("udp", "git.corp.", dns.TypeA)), address)
		w.blocked(address + ":80")
	}
}

func TestAllowedName(t *testing.T) {
	w := boot(t, nil, []string{"git.corp", "*.ci.corp"})
	w.serve("10.0.0.9:443")
	w.serve("10.0.0.10:443")
	w.blocked("10.0.0.9:443") // before the guest has asked for the name
	w.answer("git.corp.", "GIT.corp. 300 IN CNAME lb.corp.", "lb.corp. 60 IN A 10.0.0.9")
	assert.Equal(t, []string{"10.0.0.9"}, addresses(w.lookup("tcp", "git.corp.", dns.TypeA)))
	w.passes("10.0.0.9:443")
	w.blocked("10.0.0.10:443")
	w.answer("a.b.ci.corp.", "a.b.ci.corp. 60 IN A 10.0.0.10")
	w.lookup("udp", "A.b.ci.corp.", dns.TypeA)
	w.passes("10.0.0.10:443")

	// The address is allowed for the shortest time to live of the aliases, and a little longer.
	w.clock.SetTime(w.clock.Now().Add(69 * time.Second))
	w.passes("10.0.0.9:443")
	w.clock.SetTime(w.clock.Now().Add(2 * time.Second))
	w.blocked("10.0.0.9:443")
	w.lookup("udp", "git.corp.", dns.TypeA)
	w.passes("10.0.0.9:443")
}

// An answer is bounded, and so is the number of addresses that a name allows.
func TestManyRecords(t *testing.T) {
	w := boot(t, nil, []string{"*.corp"})
	var records []string
	for i := range 4000 {
		records = append(records, fmt.Sprintf("big.corp. 60 IN A 10.1.%d.%d", i/256, i%256))
	}
	w.answer("big.corp.", records...)
	assert.Len(t, w.lookup("tcp", "big.corp.", dns.TypeA).Answer, 128)
	overUDP := w.lookup("udp", "big.corp.", dns.TypeA)
	assert.True(t, overUDP.Truncated)
	overUDP.Compress = true
	assert.LessOrEqual(t, overUDP.Len(), dns.MinMsgSize)
	w.serve("10.1.15.1:80")
	w.blocked("10.1.15.1:80")
	// Aliases that form a loop.
	w.answer("loop.corp.", "loop.corp. 60 IN CNAME loop.corp.")
	assert.Empty(t, addresses(w.lookup("tcp", "loop.corp.", dns.TypeA)))
}

// Addresses in other records are no way around the answers for addresses.
func TestHints(t *testing.T) {
	w := boot(t, nil, nil)
	w.answer("evil.example.",
		`evil.example. 60 IN HTTPS 1 . alpn="h2" ipv4hint="10.0.0.1" ipv6hint="fd00::1"`, `evil.example. 60 IN SVCB 1 . port="443" ipv4hint="10.0.0.1"`)
	answer := w.lookup("udp", "evil.example.", dns.TypeHTTPS)
	require.Len(t, answer.Answer, 2)
	assert.Contains(t, answer.Answer[0].String(), `alpn="h2"`)
	assert.Contains(t, answer.Answer[1].String(), `port="443"`)
	for _, record := range answer.Answer {
		assert.NotContains(t, record.String(), "hint")
	}
	w.mu.Lock()
	w.authority = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "evil.example.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(10, 0, 0, 1)}}
	w.mu.Unlock()
	assert.Empty(t, w.lookup("udp", "nowhere.example.", dns.TypeA).Ns)
}
