// Package vz runs virtual machines with macOS' Virtualization.framework. It is
// the only package that needs cgo, and is empty anywhere but on Apple silicon. The
// program that uses it must be signed with the entitlement
// com.apple.security.virtualization and run as a user who is logged in.
package vz
