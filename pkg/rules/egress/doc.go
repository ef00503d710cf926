// Package egress decides which addresses an isolated guest may reach. It does no I/O. It depends on
// nothing of Kubernetes, because the runner of a virtual machine uses it.
package egress
