// Package contract is the contract between the agent and a VM's runner: the files of a slot
// directory, and the HTTP API that a runner serves on its unix socket. The runner of
// Virtualization.framework and the simulated runner share it.
//
// A slot directory holds:
//
//	spec.json     the VM to run; written by the agent before a runner starts
//	lock          flock of the slot's owner: the runner while it lives, or the agent
//	              while it prepares or erases the slot
//	started.json  written by the runner once it owns the slot: the spec has run
//	vm.sock       the runner's API, mode 0600
//	result.json   written by the runner last: the reason why the VM ended
//	disk/         the VM's disk and auxiliary storage
//	console.log   the guest's console: lines with their times (ConsoleTime)
//	guest/        the files of a simulated guest that runs commands
//
// Every JSON file is written atomically and survives a power loss at any point.
package contract
