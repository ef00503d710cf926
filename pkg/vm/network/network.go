package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/rules/egress"
	"macrack.io/macrack/pkg/vm/network/internal/link"
)

// Config configures a Network.
type Config struct {
	// MAC is the Ethernet address of the guest.
	MAC net.HardwareAddr
	// Allowed are the private destinations that the guest may reach.
	Allowed egress.AllowList
	Clock   clock.PassiveClock
	// Refused is called with the reason when a destination is refused, at a bounded rate. May be
	// nil.
	Refused func(error)
	// Leased is called when the guest has leased its address, and when it renews the lease. May be
	// nil.
	Leased func()
	// Outside is the network of the host. The zero value is the real one.
	Outside Outside
}

// Outside is the network to which a guest's connections go. Nil functions are those of the host.
type Outside struct {
	// Dial connects to an address that was checked.
	Dial func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)
	// Resolve asks the resolver of the host.
	Resolve func(ctx context.Context, question *dns.Msg) (*dns.Msg, error)
	// Addresses returns the addresses of the host.
	Addresses func() ([]netip.Addr, error)
}

func (o *Outside) setDefaults() {
	if o.Dial == nil {
		dialer := &net.Dialer{Control: withoutBroadcast}
		o.Dial = func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			return dialer.DialContext(ctx, network, to.String())
		}
	}
	if o.Resolve == nil {
		o.Resolve = newHostResolver().resolve
	}
	if o.Addresses == nil {
		o.Addresses = hostAddresses
	}
}

// Limits of a guest's network. A connection holds at most two buffers of maxBuffer bytes in the
// stack.
const (
	maxBuffer = 256 << 10
	// maxHalfOpen is the limit of TCP connections that are being made.
	maxHalfOpen = 256
	maxTCP      = 1024
	maxUDP      = 512
	// connectionRate and connectionBurst limit the new connections a second.
	connectionRate  = 500
	connectionBurst = 1000
	// refusalInterval and refusalBurst limit the calls of Config.Refused: a program that tries
	// every second for weeks must not fill the console of its guest.
	refusalInterval = time.Minute
	refusalBurst    = 20
	// lingerTimeout ends the memory of a connection that only the host has closed (FIN-WAIT-2), and
	// timeWait that of a closed one (TIME-WAIT). They are short, because the link neither delays
	// nor repeats packets. The stack ignores a new connection from a port in TIME-WAIT, and the
	// guest tries again after a second.
	lingerTimeout = 5 * time.Second
	timeWait      = 100 * time.Millisecond
	// synRetries is the number of tries to reach a guest that does not answer: about 15 seconds.
	synRetries = 4
)

const nic tcpip.NICID = 1

// Network is the network of one guest.
type Network struct {
	config   Config
	policy   *egress.Policy
	host     *hostCache
	names    *nameTable
	device   *os.File
	stack    *stack.Stack
	flows    *udp.Forwarder
	leased   atomic.Bool
	tcp, udp chan struct{} // a token for each connection
	rate     *rate.Limiter
	refusals *rate.Limiter
	// settleTimeout and halfOpen are shorter in tests.
	settleTimeout, halfOpen time.Duration

	ctx     context.Context
	close   context.CancelFunc
	closing sync.Once
}

// New starts the network of a guest.
func New(config Config) (*Network, error) {
	if len(config.MAC) != header.EthernetAddressSize {
		return nil, fmt.Errorf("invalid MAC address %q", config.MAC)
	}
	config.Outside.setDefaults()
	ours, device, err := link.Pair()
	if err != nil {
		return nil, err
	}
	n := &Network{
		config:   config,
		policy:   &egress.Policy{Allowed: config.Allowed, Guest: Subnet},
		host:     &hostCache{clock: config.Clock, read: config.Outside.Addresses},
		names:    newNameTable(config.Clock),
		device:   device,
		tcp:      make(chan struct{}, maxTCP),
		udp:      make(chan struct{}, maxUDP),
		rate:     rate.NewLimiter(connectionRate, connectionBurst),
		refusals: rate.NewLimiter(rate.Every(refusalInterval), refusalBurst),

		settleTimeout: settleTimeout, halfOpen: halfOpen,
	}
	n.ctx, n.close = context.WithCancel(context.Background())
	context.AfterFunc(n.ctx, func() { _ = ours.Close() })
	if err := n.start(ours); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Device returns the guest's end of the link: a datagram socket that carries Ethernet frames. It
// belongs to the network, which closes it.
func (n *Network) Device() *os.File { return n.device }

// Leased reports whether the guest has leased its address.
func (n *Network) Leased() bool { return n.leased.Load() }

// Close ends the network and all connections of the guest.
func (n *Network) Close() { n.closing.Do(n.shutDown) }

func (n *Network) shutDown() {
	n.close()
	_ = n.device.Close()
	if n.stack != nil {
		n.stack.Close()
	}
}

func (n *Network) start(ours *net.UnixConn) error {
	wire, endpoint, err := link.New(ours, gatewayMAC)
	if err != nil {
		return err
	}
	if n.stack, err = newStack(endpoint, tcpip.LinkAddress(n.config.MAC)); err != nil {
		return err
	}
	tcpForwarder := tcp.NewForwarder(n.stack, maxBuffer, maxHalfOpen, n.forwardTCP)
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcpForwarder.HandlePacket)
	n.flows = udp.NewForwarder(n.stack, n.startFlow)
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, n.forwardUDP)
	if err := n.serveDHCP(); err != nil {
		return fmt.Errorf("DHCP server: %w", err)
	}
	if err := n.serveDNS(); err != nil {
		return fmt.Errorf("DNS server: %w", err)
	}
	go func() {
		if err := wire.Run(filter{guest: tcpip.LinkAddress(n.config.MAC)}.admit); err != nil {
			klog.ErrorS(err, "Guest network failed")
		}
	}()
	return nil
}

// newStack returns the stack of the gateway. It accepts packets to every address, which the
// forwarders handle.
func newStack(endpoint stack.LinkEndpoint, guest tcpip.LinkAddress) (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	var errs []error
	try := func(err tcpip.Error) {
		if err != nil {
			errs = append(errs, errors.New(err.String()))
		}
	}
	sack, moderate, retries := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(false), tcpip.TCPSynRetriesOption(synRetries)
	linger, wait := tcpip.TCPLingerTimeoutOption(lingerTimeout), tcpip.TCPTimeWaitTimeoutOption(timeWait)
	for _, option := range []tcpip.SettableTransportProtocolOption{
		&sack, &moderate, &retries, &linger, &wait,
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: maxBuffer, Max: maxBuffer},
		&tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: maxBuffer, Max: maxBuffer},
	} {
		try(s.SetTransportProtocolOption(tcp.ProtocolNumber, option))
	}
	try(s.CreateNIC(nic, endpoint))
	try(s.AddProtocolAddress(nic, tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: gatewayAddress, PrefixLen: Subnet.Bits()},
	}, stack.AddressProperties{}))
	try(s.SetSpoofing(nic, true))
	try(s.SetPromiscuousMode(nic, true))
	// The address of the guest is known, so its ARP changes nothing.
	try(s.AddStaticNeighbor(nic, ipv4.ProtocolNumber, guestAddress, guest))
	subnet := tcpip.AddressWithPrefix{Address: gatewayAddress, PrefixLen: Subnet.Bits()}.Subnet()
	s.SetRouteTable([]tcpip.Route{{Destination: subnet, NIC: nic}})
	return s, errors.Join(errs...)
}

// check refuses a destination of the guest.
func (n *Network) check(network string, to netip.AddrPort) error {
	host, err := n.host.addresses()
	if err != nil {
		return fmt.Errorf("the addresses of the Mac are unknown: %w", err)
	}
	err = n.policy.Check(egress.Destination{Address: to.Addr(), Names: n.names.of(to.Addr())}, host)
	if err != nil {
		return fmt.Errorf("%s port %d: %w", network, to.Port(), err)
	}
	return nil
}

func (n *Network) refused(err error) {
	if n.config.Refused != nil && n.refusals.AllowN(n.config.Clock.Now(), 1) {
		n.config.Refused(err)
	}
}

// admitsConnection reports whether the rate of new connections is within the limit.
func (n *Network) admitsConnection() bool { return n.rate.AllowN(n.config.Clock.Now(), 1) }

// acquire takes a token of a limit.
func acquire(tokens chan struct{}) bool {
	select {
	case tokens <- struct{}{}:
		return true
	default:
		return false
	}
}
