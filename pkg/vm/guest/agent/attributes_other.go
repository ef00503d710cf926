//go:build !linux

package agent

import "syscall"

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
