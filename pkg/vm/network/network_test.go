package network_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/rules/egress"
	"macrack.io/macrack/pkg/vm/network"
	"macrack.io/macrack/pkg/vm/network/netguest"
)

// patience is the time in which what works must work.
const patience = 20 * time.Second

var guestMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}

// world is a guest, its network, and an outside with services at known addresses.
type world struct {
	t       *testing.T
	ctx     context.Context
	clock   *clocktesting.FakePassiveClock
	network *network.Network
	guest   *netguest.Guest

	mu        sync.Mutex
	services  map[string]string   // "tcp 1.2.3.4:80" is served at a loopback address
	answers   map[string][]dns.RR // by name
	authority []dns.RR            // of names without an answer
	dialed    []string
	asked     []string
	refused   []string
}

func newWorld(t *testing.T, cidrs, names []string) *world {
	t.Helper()
	allowed, err := egress.ParseAllowList(cidrs, names)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, clock: clocktesting.NewFakePassiveClock(time.Now()), services: map[string]string{}, answers: map[string][]dns.RR{}}
	w.network, err = network.New(network.Config{
		MAC: guestMAC, Allowed: allowed, Clock: w.clock,
		Refused: func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refused = append(w.refused, err.Error())
		},
		Outside: network.Outside{
			Dial:      w.dial,
			Resolve:   w.resolve,
			Addresses: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("17.1.2.3")}, nil },
		},
	})
	require.NoError(t, err)
	t.Cleanup(w.network.Close)
	w.guest, err = netguest.New(w.network.Device(), guestMAC)
	require.NoError(t, err)
	t.Cleanup(w.guest.Close)
	return w
}

// boot returns a world whose guest has its address.
func boot(t *testing.T, cidrs, names []string) *world {
	t.Helper()
	w := newWorld(t, cidrs, names)
	address, err := w.guest.Configure(w.ctx)
	require.NoError(t, err)
	require.Equal(t, network.Guest, address)
	return w
}

func (w *world) dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	key := network + " " + to.String()
	w.dialed = append(w.dialed, key)
	at, ok := w.services[key]
	w.mu.Unlock()
	if !ok {
		return nil, errors.New("connection refused")
	}
	return (&net.Dialer{}).DialContext(ctx, network, at)
}

func (w *world) resolve(_ context.Context, question *dns.Msg) (*dns.Msg, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := question.Question[0].Name
	w.asked = append(w.asked, dns.TypeToString[question.Question[0].Qtype]+" "+name)
	reply := new(dns.Msg)
	records, ok := w.answers[strings.ToLower(name)]
	if !ok {
		reply.Ns = w.authority
		return reply.SetRcode(question, dns.RcodeNameError), nil
	}
	reply.SetReply(question)
	reply.Answer = records
	return reply, nil
}

// serve starts an echo server at an address of the outside.
func (w *world) serve(address string) {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = l.Close() })
	w.mu.Lock()
	w.services["tcp "+address] = l.Addr().String()
	w.mu.Unlock()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
}

func (w *world) serveUDP(address string) {
	w.t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close() })
	w.mu.Lock()
	w.services["udp "+address] = conn.LocalAddr().String()
	w.mu.Unlock()
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buffer[:n], from)
		}
	}()
}

func (w *world) answer(name string, records ...string) {
	w.t.Helper()
	var all []dns.RR
	for _, text := range records {
		record, err := dns.NewRR(text)
		require.NoError(w.t, err)
		all = append(all, record)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[name] = all
}

func (w *world) reset() (dialed []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	dialed, w.dialed = w.dialed, nil
	return dialed
}

// echo sends text to an address and returns what comes back.
func (w *world) echo(network, address, text string, patience time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	conn, err := w.guest.DialContext(ctx, network, address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte(text)); err != nil {
		return "", err
	}
	back := make([]byte, len(text))
	_, err = io.ReadFull(conn, back)
	return string(back), err
}

func (w *world) passes(address string) {
	w.t.Helper()
	got, err := w.echo("tcp", address, "hello", patience)
	require.NoError(w.t, err, address)
	assert.Equal(w.t, "hello", got)
}

func (w *world) blocked(address string) {
	w.t.Helper()
	w.reset()
	for _, network := range []string{"tcp", "udp"} {
		_, err := w.echo(network, address, "hello", 100*time.Millisecond)
		assert.Error(w.t, err, address)
		assert.Empty(w.t, w.reset(), "no connection to %s may be tried", address)
	}
}

// lookup asks the guest's DNS server.
func (w *world) lookup(network, name string, kind uint16) *dns.Msg {
	w.t.Helper()
	question := new(dns.Msg)
	question.SetQuestion(name, kind)
	return w.ask(network, question)
}

func (w *world) ask(over string, question *dns.Msg) *dns.Msg {
	w.t.Helper()
	conn, err := w.guest.DialContext(w.ctx, over, netip.AddrPortFrom(network.Gateway, 53).String())
	require.NoError(w.t, err)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if over == "udp" {
		packed, err := question.Pack()
		require.NoError(w.t, err)
		_, err = conn.Write(packed)
		require.NoError(w.t, err)
		buffer := make([]byte, 64<<10)
		n, err := conn.Read(buffer)
		require.NoError(w.t, err)
		answer := new(dns.Msg)
		require.NoError(w.t, answer.Unpack(buffer[:n]))
		return answer
	}
	stream := &dns.Conn{Conn: conn}
	require.NoError(w.t, stream.WriteMsg(question))
	answer, err := stream.ReadMsg()
	require.NoError(w.t, err)
	return answer
}

func addresses(answer *dns.Msg) []string {
	var all []string
	for _, record := range answer.Answer {
		if a, ok := record.(*dns.A); ok {
			all = append(all, a.A.String())
		}
	}
	return all
}

func TestPublicAddress(t *testing.T) {
	w := boot(t, nil, nil)
	w.serve("140.82.121.4:443")
	w.serveUDP("140.82.121.4:443")
	w.passes("140.82.121.4:443")
	got, err := w.echo("udp", "140.82.121.4:443", "datagram", patience)
	require.NoError(t, err)
	assert.Equal(t, "datagram", got)
	assert.Equal(t, []string{"tcp 140.82.121.4:443", "udp 140.82.121.4:443"}, w.reset(), "the address that was checked")

	// A large transfer, and a long datagram in fragments.
	big := strings.Repeat("0123456789abcdef", 1<<16)
	conn, err := w.guest.DialContext(w.ctx, "tcp", "140.82.121.4:443")
	require.NoError(t, err)
	defer conn.Close()
	go func() {
		_, _ = io.WriteString(conn, big)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	back, err := io.ReadAll(conn) // ends, because each direction is closed by itself
	require.NoError(t, err)
	assert.True(t, string(back) == big, "%d of %d bytes", len(back), len(big))
	got, err = w.echo("udp", "140.82.121.4:443", big[:9000], patience)
	require.NoError(t, err)
	assert.True(t, got == big[:9000])
}

func TestRefusedOutside(t *testing.T) {
	w := boot(t, nil, nil)
	_, err := w.echo("tcp", "140.82.121.4:81", "hello", patience)
	assert.ErrorContains(t, err, "refused")
	assert.Equal(t, []string{"tcp 140.82.121.4:81"}, w.reset())
}

func TestBlockedAddresses(t *testing.T) {
	w := boot(t, []string{"10.20.0.0/16"}, nil)
	for _, address := range []string{
		"10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "168.63.129.16", "127.0.0.1", "127.0.0.53", "0.0.0.0",
		"17.1.2.3", "224.0.0.251", "255.255.255.255", "240.0.0.1", network.Gateway.String(), "192.168.127.3", "198.18.0.1", "10.21.0.1",
	} {
		w.serve(address + ":80")
		w.serveUDP(address + ":80")
		w.blocked(address + ":80")
	}
	w.serve("10.20.1.2:80")
	w.passes("10.20.1.2:80")
	assert.Equal(t, []string{"tcp 10.20.1.2:80"}, w.reset())
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.Contains(t, w.refused[0], "tcp port 80: 10.0.0.1 is a private address; ask the operator")
	assert.LessOrEqual(t, len(w.refused), 25, "refusals are reported at a bounded rate")
}

// A program that tries a private address again and again does not fill the console.
func TestRefusalsOfAnHour(t *testing.T) {
	w := boot(t, nil, nil)
	for range 60 * 4 {
		w.clock.SetTime(w.clock.Now().Add(time.Minute / 4))
		_, err := w.echo("tcp", "10.0.0.1:80", "hello", patience)
		require.ErrorContains(t, err, "refused")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.GreaterOrEqual(t, len(w.refused), 60)
	assert.LessOrEqual(t, len(w.refused), 20+60)
}

func TestDial(t *testing.T) {
	w := boot(t, nil, nil)
	for _, port := range []uint16{22, 5900} {
		l, err := w.guest.Listen(port)
		require.NoError(t, err)
		go func() {
			conn, err := l.Accept()
			if err == nil {
				fmt.Fprintf(conn, "port %d for %s", port, conn.RemoteAddr().(*net.TCPAddr).IP)
				_ = conn.Close()
			}
		}()
		conn, err := w.network.Dial(w.ctx, port)
		require.NoError(t, err)
		got, err := io.ReadAll(conn)
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("port %d for %s", port, network.Gateway), string(got))
	}
	_, err := w.network.Dial(w.ctx, 23)
	assert.ErrorContains(t, err, "refused")
}

// A guest that is down, or that does not read its link, delays a caller to its deadline at most.
func TestDialSilentGuest(t *testing.T) {
	w := newWorld(t, nil, nil)
	w.guest.Close()
	ctx, cancel := context.WithTimeout(w.ctx, 300*time.Millisecond)
	defer cancel()
	started := time.Now()
	_, err := w.network.Dial(ctx, 22)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(started), 3*time.Second)
}

func TestCloseEndsConnections(t *testing.T) {
	w := boot(t, nil, nil)
	w.serve("140.82.121.4:443")
	l, err := w.guest.Listen(22)
	require.NoError(t, err)
	go func() { _, _ = l.Accept() }()
	conn, err := w.network.Dial(w.ctx, 22)
	require.NoError(t, err)
	w.network.Close()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	var timeout net.Error
	assert.False(t, errors.As(err, &timeout) && timeout.Timeout(), "the connection must end by itself: %v", err)
}
