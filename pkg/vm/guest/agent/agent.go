// Package agent is the agent inside a guest. It implements the guest's side of the contract of
// package guest.
package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/guest"
	guestv1 "macrack.io/macrack/pkg/vm/guest/v1"
)

const (
	// hostInterval and hostTimeout detect a lost host. The agent ends the host's calls after the
	// sum of both.
	hostInterval = 30 * time.Second
	hostTimeout  = 10 * time.Second
	// hostPings is the minimum interval of the host's keepalive pings.
	hostPings = 5 * time.Second
)

// Config configures an agent.
type Config struct {
	// Version is the agent's version.
	Version string
	// StateDir holds the state that survives a restart of the guest: the result and the output of
	// the startup script.
	StateDir string
	// Shell runs commands; nil if the guest runs none.
	Shell *Shell
	// Script runs the startup script in place of Shell. The environment has entries NAME=VALUE.
	Script func(ctx context.Context, script string, environment []string, output func([]byte)) (exitCode int32)
	// Session is the agent in the login session of the shell's user; nil if the guest has none.
	Session *Session
	// InSession means that this is the agent in the login session. It only runs commands.
	InSession bool
	// GrowDisk grows the file system to the size of the disk, before the startup script; may be
	// nil.
	GrowDisk func(ctx context.Context) error
	// Caches is the place of the lease's caches in the guest; nil if the guest can have none.
	Caches *Caches
	// Shutdown shuts the guest down.
	Shutdown func()
	// Addresses returns the guest's addresses; nil selects those of its interfaces.
	Addresses func() ([]netip.Addr, error)
	Clock     clock.Clock
}

// Agent serves the contract.
type Agent struct {
	guestv1.UnimplementedGuestServer
	config   Config
	setup    *setup
	sessions chan struct{} // one token for each command and forwarded connection
}

// New returns an agent.
func New(config Config) (*Agent, error) {
	if config.Addresses == nil {
		config.Addresses = interfaceAddresses
	}
	a := &Agent{config: config, sessions: make(chan struct{}, guest.MaxCommands)}
	if config.InSession {
		return a, nil
	}
	if config.Session != nil {
		config.Session.begin(config.Clock)
	}
	var err error
	a.setup, err = openSetup(config)
	return a, err
}

// Serve serves on the listeners until ctx ends or one of them fails. The end of ctx also ends
// commands and the startup script.
func (a *Agent) Serve(ctx context.Context, listeners ...net.Listener) error {
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(guest.MaxRequest),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: hostPings, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: hostInterval, Timeout: hostTimeout}),
	)
	guestv1.RegisterGuestServer(server, a)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	served := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { served <- server.Serve(l) }()
	}
	err := <-served
	server.Stop()
	for range len(listeners) - 1 {
		err = errors.Join(err, <-served)
	}
	if a.setup != nil {
		a.setup.close()
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Info implements guestv1.GuestServer.
func (a *Agent) Info(ctx context.Context, _ *guestv1.InfoRequest) (*guestv1.InfoResponse, error) {
	addresses, err := a.config.Addresses()
	if err != nil {
		klog.ErrorS(err, "Failed to list the guest's addresses")
	}
	info := &guestv1.InfoResponse{Version: a.config.Version, SetsEnvironment: true}
	for _, address := range addresses {
		info.Addresses = append(info.Addresses, address.String())
	}
	if s := a.config.Session; s != nil {
		if s.present(ctx) {
			info.SessionPort = s.Port
		}
		info.SessionPending = s.pending()
	}
	return info, nil
}

// Shutdown implements guestv1.GuestServer.
func (a *Agent) Shutdown(context.Context, *guestv1.ShutdownRequest) (*guestv1.ShutdownResponse, error) {
	if a.config.InSession {
		return nil, errInSession
	}
	klog.InfoS("Host requested shutdown")
	go a.config.Shutdown()
	return &guestv1.ShutdownResponse{}, nil
}

var errInSession = status.Error(codes.Unimplemented, "this is the agent in the login session, which only runs commands; use the guest's system agent")

// enter takes one of the tokens that limit concurrent calls.
func (a *Agent) enter() (leave func(), err error) {
	select {
	case a.sessions <- struct{}{}:
		return func() { <-a.sessions }, nil
	default:
		return nil, status.Errorf(codes.ResourceExhausted, "the guest already runs %d commands, which is the limit; end one first", cap(a.sessions))
	}
}

// interfaceAddresses lists the useful addresses of the guest, IPv4 first.
func interfaceAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var useful []netip.Addr
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && guest.Useful(prefix.Addr().Unmap()) {
			useful = append(useful, prefix.Addr().Unmap())
		}
	}
	slices.SortStableFunc(useful, netip.Addr.Compare) // IPv4 sorts first
	return first(useful, defaultRouteAddress()), nil
}

// defaultRouteAddress returns the guest's address on its default route, which an address of a VPN
// must not hide. It sends no packets.
func defaultRouteAddress() netip.Addr {
	conn, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		return netip.Addr{}
	}
	defer conn.Close()
	address, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return address.Addr().Unmap()
}

// first moves address to the front, if addresses contains it.
func first(addresses []netip.Addr, address netip.Addr) []netip.Addr {
	i := slices.Index(addresses, address)
	if i < 0 {
		return addresses
	}
	return slices.Concat([]netip.Addr{address}, addresses[:i], addresses[i+1:])
}
