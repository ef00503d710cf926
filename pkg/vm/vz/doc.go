// Package vz runs virtual machines with macOS' Virtualization.framework. It is the only package
// that needs cgo, and it is empty except on Apple silicon. Programs that use it must be signed with
// the entitlement com.apple.security.virtualization and run as the logged-in user.
//
// It type-checks (hack/darwincheck) and has not run on a Mac yet. Only a test on a Mac can confirm:
//
//   - The configuration boots a macOS guest without a window.
//   - The errors of a third start have the domain and code that contract.IsLimitExceeded expects.
//   - StateChangedNotify ends with Stopped or Error, and DidStopWithError has the cause by then, or
//     within a second after Error.
//   - The formats of /var/db/dhcpd_leases and arp are as package netaddr expects.
//   - Connect returns if no process listens on the port.
package vz
