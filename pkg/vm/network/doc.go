// Package network is the network of an isolated guest: a network stack in the process of the
// runner, with one link to the guest. It has DHCP with one address, DNS, and connections to the
// outside. Package egress checks each connection, which then goes to the address that was checked.
// The guest's packets do not reach the host: the stack ends each connection, and makes another one.
//
// The stack is gVisor's. github.com/containers/gvisor-tap-vsock combines the same parts, but its
// forwarders have no hook for a policy, its DNS hides the time to live, its addresses come from a
// pool that a guest can exhaust, and its switch fails on a short frame.
package network
