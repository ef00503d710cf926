package network_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/vm/network"
	"macrack.io/macrack/pkg/vm/network/netguest"
)

// startWith returns a guest whose connections dial handles.
func startWith(t *testing.T, dial func(context.Context, string, netip.AddrPort) (net.Conn, error)) *world {
	t.Helper()
	w := &world{t: t, ctx: t.Context(), clock: clocktesting.NewFakePassiveClock(time.Now())}
	var err error
	w.network, err = network.New(network.Config{
		MAC: guestMAC, Clock: w.clock,
		Refused: func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refused = append(w.refused, err.Error())
		},
		Outside: network.Outside{Dial: dial, Addresses: func() ([]netip.Addr, error) { return nil, nil }},
	})
	require.NoError(t, err)
	t.Cleanup(w.network.Close)
	w.guest, err = netguest.New(w.network.Device(), guestMAC)
	require.NoError(t, err)
	t.Cleanup(w.guest.Close)
	_, err = w.guest.Configure(w.ctx)
	require.NoError(t, err)
	return w
}

// echoPipe is a service without descriptors.
func echoPipe(context.Context, string, netip.AddrPort) (net.Conn, error) {
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		_, _ = io.Copy(far, far)
	}()
	return near, nil
}

// open makes n connections, a few at once, and returns the number of those that carry data.
func (w *world) open(over string, n int) int {
	w.t.Helper()
	var mu sync.Mutex
	var opening sync.WaitGroup
	opened := 0
	few := make(chan struct{}, 32)
	for i := range n {
		few <- struct{}{}
		opening.Go(func() {
			defer func() { <-few }()
			ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
			defer cancel()
			conn, err := w.guest.DialContext(ctx, over, fmt.Sprintf("140.82.121.4:%d", 1000+i))
			if err != nil {
				return
			}
			w.t.Cleanup(func() { _ = conn.Close() })
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			if _, err := conn.Write([]byte("x")); err != nil {
				return
			}
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			opened++
		})
	}
	opening.Wait()
	return opened
}

func TestConnectionLimits(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of connections")
	}
	w := startWith(t, echoPipe)
	// The clock stands still, so the burst is all that the rate admits.
	assert.Equal(t, 1000, w.open("tcp", 1010))
	w.clock.SetTime(w.clock.Now().Add(time.Second))
	assert.Equal(t, 24, w.open("tcp", 40))
	w.mu.Lock()
	assert.Contains(t, w.refused, "the guest has 1024 TCP connections, and the limit is 1024; close one first")
	w.mu.Unlock()
}

func TestFlowLimit(t *testing.T) {
	w := startWith(t, echoPipe)
	assert.Equal(t, 512, w.open("udp", 520))
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.Contains(t, w.refused, "the guest has 512 UDP flows, and the limit is 512; a flow ends after 1m0s without packets")
}

// A guest that starts connections to machines that do not answer.
func TestHalfOpenLimit(t *testing.T) {
	var mu sync.Mutex
	open, most := 0, 0
	w := startWith(t, func(ctx context.Context, _ string, _ netip.AddrPort) (net.Conn, error) {
		mu.Lock()
		open++
		most = max(most, open)
		mu.Unlock()
		<-ctx.Done()
		mu.Lock()
		open--
		mu.Unlock()
		return nil, ctx.Err()
	})
	var dialing sync.WaitGroup
	for i := range 600 {
		dialing.Go(func() {
			ctx, cancel := context.WithTimeout(w.ctx, time.Second)
			defer cancel()
			_, _ = w.guest.DialContext(ctx, "tcp", fmt.Sprintf("140.82.121.4:%d", 1000+i))
		})
	}
	dialing.Wait()
	mu.Lock()
	assert.Equal(t, 256, most)
	mu.Unlock()
	// The end of the network ends them.
	w.network.Close()
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return open == 0
	}, patience, 10*time.Millisecond)
}

// The server answers one question of a TCP connection after the other, and closes the connection
// after 128. Its end therefore proves that each question was answered or dropped.
func TestQueryLimit(t *testing.T) {
	w := boot(t, nil, nil)
	w.answer("github.com.", "github.com. 60 IN A 140.82.121.4")
	question := new(dns.Msg)
	question.SetQuestion("github.com.", dns.TypeA)
	answered := 0
	for range 5 {
		conn, err := w.guest.DialContext(w.ctx, "tcp", netip.AddrPortFrom(network.Gateway, 53).String())
		require.NoError(t, err)
		stream := &dns.Conn{Conn: conn}
		for range 128 {
			require.NoError(t, stream.WriteMsg(question))
		}
		for {
			if _, err := stream.ReadMsg(); err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
			answered++
		}
		require.NoError(t, conn.Close())
	}
	assert.Equal(t, 400, answered, "the clock stands still, so the burst is all that the rate admits")
	w.clock.SetTime(w.clock.Now().Add(time.Second))
	assert.Len(t, w.lookup("tcp", "github.com.", dns.TypeA).Answer, 1)
}

// The address is that of the guest, whatever it asks for and how often.
func TestDHCPFlood(t *testing.T) {
	w := newWorld(t, nil, nil)
	assert.False(t, w.network.Leased())
	for range 200 {
		forged := make(net.HardwareAddr, 6)
		for i := range forged {
			forged[i] = byte(rand.IntN(256))
		}
		discover, err := dhcpv4.NewDiscovery(forged)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(w.ctx, time.Millisecond)
		_, _ = w.guest.Exchange(ctx, discover)
		cancel()
	}
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	address, err := w.guest.Configure(w.ctx)
	require.NoError(t, err)
	assert.Equal(t, network.Guest, address)
	assert.Equal(t, net.IPv4Mask(255, 255, 255, 252), w.guest.Lease().SubnetMask())
	assert.Equal(t, network.Gateway.String(), w.guest.Lease().DNS()[0].String())
	require.Eventually(t, w.network.Leased, patience, time.Millisecond)
}

// Frames of any content do not disturb the network.
func TestHostileFrames(t *testing.T) {
	w := boot(t, nil, nil)
	w.serve("140.82.121.4:443")
	random := rand.New(rand.NewPCG(1, 2))
	gateway := []byte{0x5a, 0x94, 0xef, 0xe4, 0x0c, 0xdd}
	for range 20_000 {
		frame := make([]byte, random.IntN(1600))
		for i := range frame {
			frame[i] = byte(random.Uint32())
		}
		if len(frame) > 34 && random.IntN(10) > 0 { // a plausible header
			copy(frame, gateway)
			copy(frame[6:], guestMAC)
			frame[12], frame[13] = 8, byte([]int{0, 0, 0, 6}[random.IntN(4)])
			if frame[13] == 0 {
				size := len(frame) - 14
				frame[14], frame[16], frame[17] = 0x45, byte(size>>8), byte(size)
				if random.IntN(4) > 0 {
					frame[20], frame[21] = 0, 0 // no fragment
				}
				frame[23] = []byte{1, 6, 17}[random.IntN(3)]
				copy(frame[26:], network.Guest.AsSlice())
				copy(frame[30:], [][]byte{network.Gateway.AsSlice(), {140, 82, 121, 4}, {10, 0, 0, 1}, {127, 0, 0, 1}, {17, 1, 2, 3}}[random.IntN(5)])
			}
		}
		require.NoError(t, w.guest.Send(frame))
	}
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	w.passes("140.82.121.4:443")
	dialed := w.reset()
	assert.Greater(t, len(dialed), 10, "some of the frames start connections")
	for _, to := range dialed {
		assert.Contains(t, to, " 140.82.121.4:")
	}
}
