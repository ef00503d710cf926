package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/network"
	"macrack.io/macrack/pkg/vm/network/netguest"
)

const (
	// networkStreams is the number of connections that carry data at once.
	networkStreams = 4
	// networkConnections is the number of connections of a round. It is below the burst of
	// connections that a guest may make.
	networkConnections = 500
	// networkChunk is what the server sends and receives at once, in bytes.
	networkChunk = 64 << 10
	// throughputBound and connectionBound are the goals of the ratios to the loopback interface.
	throughputBound = 60
	connectionBound = 12
)

// networkPeer is the server, and the ways to it.
type networkPeer struct {
	server net.Listener
	// public is the address under which a guest knows the server.
	public netip.AddrPort
}

// dial connects to the server over the loopback interface.
func (p *networkPeer) dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", p.server.Addr().String())
}

// The first byte of a connection is what the server does with it.
const (
	networkSource = 's' // sends until the client closes the connection
	networkSink   = 'r' // receives
	networkEcho   = 'e' // answers with one byte
)

func startNetworkPeer() (*networkPeer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serveNetworkPeer(conn)
		}
	}()
	return &networkPeer{server: l, public: netip.MustParseAddrPort("140.82.121.4:443")}, nil
}

func serveNetworkPeer(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, networkChunk)
	if _, err := io.ReadFull(conn, buffer[:1]); err != nil {
		return
	}
	switch buffer[0] {
	case networkSource:
		for {
			if _, err := conn.Write(buffer); err != nil {
				return
			}
		}
	case networkSink:
		_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, buffer)
	case networkEcho:
		_, _ = conn.Write(buffer[:1])
	}
}

// startGuest returns a guest whose network leads to the server.
func (p *networkPeer) startGuest(ctx context.Context) (guest *netguest.Guest, stop func(), err error) {
	mac := net.HardwareAddr{0x02, 0, 0, 0, 0, 1}
	n, err := network.New(network.Config{MAC: mac, Clock: clock.RealClock{}, Outside: network.Outside{
		Dial: func(ctx context.Context, _ string, _ netip.AddrPort) (net.Conn, error) { return p.dial(ctx) },
	}})
	if err != nil {
		return nil, nil, err
	}
	guest, err = netguest.New(n.Device(), mac)
	if err != nil {
		n.Close()
		return nil, nil, err
	}
	stop = func() {
		guest.Close()
		n.Close()
	}
	if _, err := guest.Configure(ctx); err != nil {
		stop()
		return nil, nil, err
	}
	return guest, stop, nil
}

// measureNetwork compares a guest's network with the loopback interface under it.
func (b *bench) measureNetwork(ctx context.Context) error {
	peer, err := startNetworkPeer()
	if err != nil {
		return err
	}
	defer peer.server.Close()
	var ours, direct networkSamples
	for range b.rounds {
		guest, stop, err := peer.startGuest(ctx)
		if err != nil {
			return err
		}
		err = ours.add(ctx, b.slice, func(ctx context.Context) (net.Conn, error) {
			return guest.DialContext(ctx, "tcp", peer.public.String())
		})
		stop()
		if err != nil {
			return fmt.Errorf("isolated network: %w", err)
		}
		if err := direct.add(ctx, b.slice, peer.dial); err != nil {
			return fmt.Errorf("loopback: %w", err)
		}
	}
	b.more(fmt.Sprintf("download of a guest, %d connections", networkStreams), "MB/s", ours.download, direct.download, throughputBound)
	b.more("the same, upload", "MB/s", ours.upload, direct.upload, throughputBound)
	b.more("connections of a guest, one after the other, with a byte each way", "1/s", ours.connections, direct.connections, connectionBound)
	b.note = "The peer is the loopback interface without a guest. A guest that is a real VM also pays for its own network stack and for virtio."
	return nil
}

// networkSamples are the results of the rounds of one side.
type networkSamples struct {
	download, upload []float64 // MB/s
	connections      []float64 // a second
}

type networkDialer func(context.Context) (net.Conn, error)

func (s *networkSamples) add(ctx context.Context, slice time.Duration, dial networkDialer) error {
	download, err := transfer(ctx, slice, dial, networkSource)
	if err != nil {
		return err
	}
	upload, err := transfer(ctx, slice, dial, networkSink)
	if err != nil {
		return err
	}
	connections, err := connect(ctx, dial)
	if err != nil {
		return err
	}
	s.download, s.upload, s.connections = append(s.download, download), append(s.upload, upload), append(s.connections, connections)
	return nil
}

// transfer returns the bytes, in MB/s, that the connections carry in one direction.
func transfer(ctx context.Context, slice time.Duration, dial networkDialer, direction byte) (float64, error) {
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range networkStreams {
		conn, err := dial(ctx)
		if err != nil {
			return 0, err
		}
		conns = append(conns, conn)
		if _, err := conn.Write([]byte{direction}); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	moved := make(chan int64, networkStreams)
	for _, conn := range conns {
		_ = conn.SetDeadline(start.Add(slice))
		go func() {
			buffer := make([]byte, networkChunk)
			move := conn.Read
			if direction == networkSink {
				move = conn.Write
			}
			total := int64(0)
			for {
				n, err := move(buffer)
				total += int64(n)
				if err != nil {
					moved <- total
					return
				}
			}
		}()
	}
	total := int64(0)
	for range conns {
		total += <-moved
	}
	return float64(total) / 1e6 / time.Since(start).Seconds(), nil
}

// connect returns the connections a second that one client makes.
func connect(ctx context.Context, dial networkDialer) (float64, error) {
	start := time.Now()
	for range networkConnections {
		conn, err := dial(ctx)
		if err != nil {
			return 0, err
		}
		_, err = conn.Write([]byte{networkEcho})
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		_ = conn.Close()
		if err != nil {
			return 0, err
		}
	}
	return networkConnections / time.Since(start).Seconds(), nil
}
