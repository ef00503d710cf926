package network

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
)

// dnsServer answers the name big.example. over UDP with a truncated message.
func dnsServer(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	packets, err := net.ListenPacket("udp", listener.Addr().String())
	require.NoError(t, err)
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, question *dns.Msg) {
		reply := new(dns.Msg)
		reply.SetReply(question)
		record, _ := dns.NewRR(question.Question[0].Name + " 60 IN A 140.82.121.4")
		_, overUDP := w.RemoteAddr().(*net.UDPAddr)
		if question.Question[0].Name == "big.example." && overUDP {
			reply.Truncated = true
		} else {
			reply.Answer = []dns.RR{record}
		}
		_ = w.WriteMsg(reply)
	})
	for _, server := range []*dns.Server{{Listener: listener, Handler: handler}, {PacketConn: packets, Handler: handler}} {
		go func() { _ = server.ActivateAndServe() }()
		t.Cleanup(func() { _ = server.Shutdown() })
	}
	return listener.Addr().String()
}

func TestAsk(t *testing.T) {
	server := dnsServer(t)
	for _, name := range []string{"small.example.", "big.example."} {
		answer, err := ask(t.Context(), server, new(dns.Msg).SetQuestion(name, dns.TypeA))
		require.NoError(t, err)
		assert.Len(t, answer.Answer, 1, name)
	}
}

func TestHostResolver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	r := &hostResolver{path: path}
	_, err := r.read()
	assert.Error(t, err)
	write := func(content string, at time.Time) {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		require.NoError(t, os.Chtimes(path, at, at))
	}
	now := time.Now()
	write("search corp\nnameserver 10.0.0.1\nnameserver fd00::1\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n", now)
	servers, err := r.read()
	require.NoError(t, err)
	assert.Equal(t, []string{"10.0.0.1:53", "[fd00::1]:53", "10.0.0.3:53"}, servers)
	write("nameserver 10.0.0.9\n", now.Add(time.Second))
	servers, err = r.read()
	require.NoError(t, err)
	assert.Equal(t, []string{"10.0.0.9:53"}, servers)
}

func TestNameTableIsBounded(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Now())
	table := newNameTable(clk)
	for i := range 2 * maxNames {
		table.add(resolved{Guest, fmt.Sprint("name", i)}, time.Duration(i)*time.Second)
	}
	assert.Len(t, table.expires, maxNames)
	assert.Len(t, table.of(Guest), maxNames)
	assert.NotContains(t, table.of(Guest), "name0", "the answer that expires first is dropped first")
	clk.SetTime(clk.Now().Add(maxTTL))
	assert.Empty(t, table.of(Guest))
	table.add(resolved{Guest, "new"}, 0)
	assert.Len(t, table.expires, 1, "expired answers are dropped")
	assert.Equal(t, []string{"new"}, table.of(Guest))
}
