package agent

import "syscall"

// attributes makes commands end with the agent: guests on Linux are simulated, and their agent may
// be killed at any time.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
