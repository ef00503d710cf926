package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/rules/egress"
	"macrack.io/macrack/pkg/vm/network"
	"macrack.io/macrack/pkg/vm/network/netguest"
)

// allowedName is a name of the allow list whose owner is the attacker.
const allowedName = "git.attack.example."

// guestNetwork are attempts of a guest to reach its Mac and the networks around it. The network is
// that of a runner on this machine, and the guest a network stack.
func (w *world) guestNetwork() []attempt {
	const family = "guest network"
	server := func(w *world) int { return w.cluster.Port("macrack-apiserver-1") }
	agent := func(w *world) int { return w.cluster.Port(w.acmeMac) }
	ssh := func(*world) int { return 22 }
	// The stacks drop packets to the loopback network themselves.
	loopback := anyOf([]int{0}, "an address of the Mac itself", "no route to host", "deadline exceeded")
	attempts := []attempt{
		{family, "the server on the loopback interface of its Mac", "-", fromGuest("127.0.0.1", server, ""), loopback, ""},
		{family, "the agent on the loopback interface of its Mac", "-", fromGuest("127.0.0.1", agent, ""), loopback, ""},
		{family, "the agent, by another loopback address", "-", fromGuest("127.0.0.2", agent, ""), loopback, ""},
		{family, "the server, by the unspecified address", "-", fromGuest("0.0.0.0", server, ""), loopback, ""},
		{family, "the server, by an allowed name that leads to the loopback interface", "-", fromGuest("127.0.0.1", server, "127.0.0.1"), loopback, ""},
		{family, "the metadata of a cloud", "-", fromGuest("169.254.169.254", ssh, ""), says(0, "a link-local address"), ""},
		{family, "the metadata of a cloud, by an allowed name", "-", fromGuest("169.254.169.254", ssh, "169.254.169.254"), says(0, "a link-local address"), ""},
		{family, "a private network", "-", fromGuest("192.168.1.1", ssh, ""), says(0, "a private address"), ""},
		{family, "carrier-grade NAT", "-", fromGuest("100.64.0.1", ssh, ""), says(0, "carrier-grade NAT"), ""},
		{family, "its gateway", "-", fromGuest(network.Gateway.String(), ssh, ""), says(0, "the guest's own network"), ""},
		{family, "a multicast group", "-", fromGuest("224.0.0.251", ssh, ""), anyOf([]int{0}, "a multicast address", "no route to host", "deadline exceeded"), ""},
	}
	for _, own := range ownAddresses() {
		attempts = append(attempts, attempt{family, "the agent, by another address of its Mac", "-", fromGuest(own, agent, ""), says(0, "an address of the Mac itself"), ""})
	}
	return attempts
}

// ownAddresses returns an IPv4 address of this machine outside the loopback network, if any.
func ownAddresses() []string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Is4() && !prefix.Addr().IsLoopback() {
			return []string{prefix.Addr().String()}
		}
	}
	return nil
}

// fromGuest connects to a port of an address from a guest. If resolved is not empty, the guest has
// asked for the allowed name before, which has that address.
func fromGuest(to string, port func(*world) int, resolved string) step {
	return func(ctx context.Context, w *world, _ string) answer {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := connectFromGuest(ctx, fmt.Sprintf("%s:%d", to, port(w)), resolved); err != nil {
			return answer{err: err}
		}
		return answer{code: http.StatusOK, body: "connected"}
	}
}

// connectFromGuest returns the reason for which the connection failed.
func connectFromGuest(ctx context.Context, to, resolved string) error {
	mac := net.HardwareAddr{0x02, 0, 0, 0, 0, 1}
	allowed, err := egress.ParseAllowList([]string{"10.0.0.0/8"}, []string{"*.attack.example"})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var refusal error
	n, err := network.New(network.Config{
		MAC: mac, Allowed: allowed, Clock: clock.RealClock{},
		Refused: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			refusal = err
		},
		Outside: network.Outside{Resolve: func(_ context.Context, question *dns.Msg) (*dns.Msg, error) {
			record, err := dns.NewRR(allowedName + " 60 IN A " + resolved)
			reply := new(dns.Msg)
			reply.SetReply(question)
			reply.Answer = []dns.RR{record}
			return reply, err
		}},
	})
	if err != nil {
		return err
	}
	defer n.Close()
	guest, err := netguest.New(n.Device(), mac)
	if err != nil {
		return err
	}
	defer guest.Close()
	if _, err := guest.Configure(ctx); err != nil {
		return err
	}
	if resolved != "" {
		if err := ask(ctx, guest); err != nil {
			return err
		}
	}
	conn, err := guest.DialContext(ctx, "tcp", to)
	if err == nil {
		_ = conn.Close()
		return nil
	}
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(refusal, err)
}

// ask asks the guest's DNS server for the allowed name.
func ask(ctx context.Context, guest *netguest.Guest) error {
	conn, err := guest.DialContext(ctx, "tcp", netip.AddrPortFrom(network.Gateway, 53).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	client := &dns.Client{Net: "tcp"}
	_, _, err = client.ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion(allowedName, dns.TypeA), &dns.Conn{Conn: conn})
	return err
}
