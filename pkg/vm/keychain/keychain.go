// Package keychain recognizes starts of virtual machines that fail because the login keychain is
// locked. macOS 15 and later require an unlocked login keychain to start guests of macOS 15.2 and
// later.
package keychain

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// ExitLocked is the exit code of security(1) for errSecInteractionNotAllowed (-25308).
	ExitLocked = 36
	// internalError and keychainError are the codes with which the framework fails; neither names
	// the keychain.
	internalError = 1
	keychainError = -9

	timeout = 5 * time.Second
)

// Security is security(1), which sees the keychain of the login session that it runs in.
type Security struct {
	// Run runs a command and returns its exit code; nil runs the real command.
	Run func(ctx context.Context, name string, args ...string) (exitCode int, err error)
}

// Locked reports whether the login keychain of this session is locked.
func (s Security) Locked(ctx context.Context) (bool, error) {
	run := s.Run
	if run == nil {
		run = exitCode
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch code, err := run(ctx, "/usr/bin/security", "show-keychain-info"); {
	case err != nil:
		return false, fmt.Errorf("security show-keychain-info: %w", err)
	case code == 0, code == ExitLocked:
		return code == ExitLocked, nil
	default:
		return false, fmt.Errorf("security show-keychain-info: exit status %d", code)
	}
}

func exitCode(ctx context.Context, name string, args ...string) (int, error) {
	err := exec.CommandContext(ctx, name, args...).Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// Explain returns the error of a failed start. If the locked login keychain is the cause, the error
// has the domain contract.KeychainErrorDomain.
func (s Security) Explain(ctx context.Context, err error) error {
	var e *contract.Error
	if !errors.As(err, &e) {
		return err
	}
	if internal := e.Domain == contract.VZErrorDomain && e.Code == internalError; !internal && e.Code != keychainError {
		return err
	}
	if is, checkErr := s.Locked(ctx); checkErr != nil || !is {
		return err
	}
	return &contract.Error{Domain: contract.KeychainErrorDomain, Code: e.Code, Message: "the login keychain is locked: " + e.Message}
}
