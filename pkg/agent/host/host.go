// Package host describes the Mac that an agent runs on.
package host

import (
	"crypto/rand"
	"errors"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/vm/sim"
)

// Info describes a host. Sizes are in bytes.
type Info struct {
	SerialNumber    string
	ModelIdentifier string
	MacOSVersion    string
	// BootID changes with each boot.
	BootID  string
	CPU     int64
	Memory  int64
	Storage int64
	// FreeStorage is the free storage of the disk that holds the agent's state.
	FreeStorage int64
}

// Host is a Mac.
type Host interface {
	Info() (Info, error)
}

// SessionChecker is a host on which virtual machines run only in a login session.
type SessionChecker interface {
	// LoginSession returns an error while the agent's user is not logged in at the screen.
	LoginSession() error
}

// NewBootID returns a unique boot ID.
func NewBootID() string { return rand.Text() }

// Simulated is a Mac mini of the base class on a simulated host.
type Simulated struct {
	Dir sim.HostDir
	// StateDir is the directory on whose file system free storage is measured.
	StateDir string
}

// LoginSession implements SessionChecker.
func (s *Simulated) LoginSession() error {
	if s.Dir.LoggedOut() {
		return errors.New("no user is logged in at the simulated screen")
	}
	return nil
}

// Info implements Host.
func (s *Simulated) Info() (Info, error) {
	info := Info{
		ModelIdentifier: "Mac16,10",
		MacOSVersion:    "26.1",
		CPU:             10,
		Memory:          16 << 30,
		Storage:         256 << 30,
	}
	var err error
	if info.SerialNumber, err = s.Dir.SerialNumber(); err != nil {
		return Info{}, err
	}
	if info.BootID, err = s.Dir.BootID(); err != nil {
		return Info{}, err
	}
	if info.FreeStorage, err = disk.Free(s.StateDir); err != nil {
		return Info{}, err
	}
	// The real disk may have less free storage than the simulated disk has in total.
	info.FreeStorage = min(info.FreeStorage, info.Storage)
	return info, nil
}
