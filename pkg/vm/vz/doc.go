// Package vz runs virtual machines with macOS' Virtualization.framework. It is
// the only package that needs cgo, and is empty anywhere but on Apple silicon. The
// program that uses it must be signed with the entitlement
// com.apple.security.virtualization and run as a user who is logged in.
//
// It type-checks (hack/darwincheck) and has not run on a Mac yet. What only a Mac
// can prove: the configuration boots a macOS guest without a window; the errors of
// a third start have the domain and code that contract.IsLimitExceeded expects;
// StateChangedNotify ends with Stopped or Error; the formats of
// /var/db/dhcpd_leases and arp; how Connect behaves while nobody listens.
package vz
