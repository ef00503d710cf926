// Package contract is what the agent and a VM's runner agree on: the files of a
// slot directory, and the HTTP API that a runner serves on its unix socket. The
// real (Virtualization.framework) and the simulated runner share it.
//
// A slot directory holds:
//
//	spec.json     what to run; written by the agent before a runner starts
//	lock          flock held by whoever owns the slot: the runner for all of its
//	              life, or the agent for the moment in which it prepares or erases
//	started.json  written by the runner once it owns the slot: this spec has run
//	vm.sock       the runner's API, mode 0600
//	result.json   written by the runner last: why the VM ended
//	disk/         the VM's disk and auxiliary storage
//	console.log   the guest's console: lines with their times (ConsoleTime)
//	guest/        what a simulated guest has in place of a disk, if it runs commands
//
// Every JSON file is written atomically and survives power loss at any point.
package contract
