// Package guesttest makes a test program act as the guest agent of simulated guests.
package guesttest

import (
	"os"
	"testing"

	guestagent "macrack.io/macrack/pkg/vm/guest/agent"
)

// command is the first argument that selects the guest agent.
const command = "guest-agent"

// Main is for TestMain. It runs the tests, or the guest agent if Command started the program.
func Main(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != command {
		os.Exit(m.Run())
	}
	cmd := guestagent.NewCommand()
	cmd.SetArgs(os.Args[2:])
	if cmd.Execute() != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// Command returns the command of the guest agent: the test program itself.
func Command(t testing.TB) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, command}
}
