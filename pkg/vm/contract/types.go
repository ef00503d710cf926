package contract

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// VMState is the state of a VM.
type VMState string

const (
	// VMStarting: the runner owns the slot and starts the VM.
	VMStarting VMState = "Starting"
	// VMRunning: the hypervisor runs the VM; the guest may still be booting.
	VMRunning VMState = "Running"
	// VMStopping: a stop was requested and the VM has not ended yet.
	VMStopping VMState = "Stopping"
	// VMStopped: the VM has ended; the runner is about to exit.
	VMStopped VMState = "Stopped"
)

// AddressSource is the source of the guest's address.
type AddressSource string

const (
	// AddressFromGuestAgent: the agent inside the guest reported it.
	AddressFromGuestAgent AddressSource = "GuestAgent"
	// AddressFromDHCPLease: the host's DHCP server assigned it.
	AddressFromDHCPLease AddressSource = "DHCP"
	// AddressFromARP: the host's neighbour table maps it to the VM's MAC address.
	AddressFromARP AddressSource = "ARP"
)

// Address is the guest's IP address, with its source and time.
type Address struct {
	Value      string        `json:"value"`
	Source     AddressSource `json:"source"`
	ObservedAt time.Time     `json:"observedAt"`
}

// GuestAgent is the kind of the agent inside a guest.
type GuestAgent string

const (
	// GuestAgentMacRack: macrack-guest-agent.
	GuestAgentMacRack GuestAgent = "MacRack"
	// GuestAgentTart: the guest agent of images made for tart.
	GuestAgentTart GuestAgent = "Tart"
)

// ScriptResult is the outcome of the guest's startup script.
type ScriptResult struct {
	ExitCode int32 `json:"exitCode"`
	// EndedAt is when the runner learned that the script had ended.
	EndedAt time.Time `json:"endedAt"`
	// OutputTail is the end of the script's output, at most MaxScriptOutput bytes.
	OutputTail string `json:"outputTail,omitempty"`
}

// MaxScriptOutput bounds ScriptResult.OutputTail, in bytes.
const MaxScriptOutput = 4096

// State is the state that a runner reports of its VM.
type State struct {
	InstanceUID string  `json:"instanceUID"`
	Namespace   string  `json:"namespace"`
	Name        string  `json:"name"`
	MachineID   string  `json:"machineID"`
	MACAddress  string  `json:"macAddress"`
	VM          VMState `json:"vm"`
	// StartedAt is when the hypervisor had started the VM.
	StartedAt *time.Time `json:"startedAt,omitempty"`
	// GuestReady: the agent inside the guest responds.
	GuestReady bool `json:"guestReady"`
	// GuestSeen: the agent inside the guest has responded before.
	GuestSeen bool `json:"guestSeen,omitempty"`
	// SessionPort is the vsock port of the agent in the guest user's login session; 0 while no user
	// is logged in.
	SessionPort uint32 `json:"sessionPort,omitempty"`
	// GuestAgent is the agent that has responded; empty until then.
	GuestAgent GuestAgent `json:"guestAgent,omitempty"`
	// Isolated: the VM has a network of its own, and the runner reaches its TCP ports.
	Isolated bool `json:"isolated,omitempty"`
	// Address is empty until it is known, and after the VM has stopped.
	Address       *Address      `json:"address,omitempty"`
	StartupScript *ScriptResult `json:"startupScript,omitempty"`
	// EnvironmentMissing: the runner waits for the environment of the startup script.
	EnvironmentMissing bool `json:"environmentMissing,omitempty"`
	// PID is the runner's process ID.
	PID int `json:"pid"`
}

// Display is the virtual display; a macOS guest has one even when headless.
type Display struct {
	Width         int32 `json:"width"`
	Height        int32 `json:"height"`
	PixelsPerInch int32 `json:"pixelsPerInch"`
}

// Synchronization is how a disk treats a request of the guest to flush its data.
type Synchronization string

const (
	// SynchronizationFsync writes the data to the Mac's disk.
	SynchronizationFsync Synchronization = "Fsync"
	// SynchronizationNone ignores the request.
	SynchronizationNone Synchronization = "None"
)

// NetworkMode is the kind of network of a VM.
type NetworkMode string

const (
	// NetworkIsolated is a network of the VM's own in its runner. It is the default.
	NetworkIsolated NetworkMode = "Isolated"
	// NetworkNAT is the NAT of macOS.
	NetworkNAT NetworkMode = "NAT"
)

// Network is the network of a VM.
type Network struct {
	Mode NetworkMode `json:"mode,omitempty"`
	// AllowedCIDRs and AllowedNames are the private destinations that an isolated VM may reach.
	AllowedCIDRs []string `json:"allowedCIDRs,omitempty"`
	AllowedNames []string `json:"allowedNames,omitempty"`
}

// Isolated reports whether the VM has a network of its own.
func (n *Network) Isolated() bool { return n.Mode != NetworkNAT }

// Share is a directory of the Mac that a VM shares.
type Share struct {
	// Name is the name of the directory in the guest.
	Name string `json:"name"`
	// Path is the directory on the Mac. Guests control its content.
	Path     string `json:"path"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Spec is the VM to run: spec.json. It never changes while a runner lives.
type Spec struct {
	InstanceUID string `json:"instanceUID"`
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	// MachineID is the backend's machine identifier, in base64.
	MachineID   string `json:"machineID"`
	MACAddress  string `json:"macAddress"`
	CPU         int    `json:"cpu"`
	MemoryBytes int64  `json:"memoryBytes"`
	// HardwareModel is the image's hardware model, in base64.
	HardwareModel     string   `json:"hardwareModel,omitempty"`
	Display           *Display `json:"display,omitempty"`
	SSHAuthorizedKeys []string `json:"sshAuthorizedKeys,omitempty"`
	StartupScript     string   `json:"startupScript,omitempty"`
	// Environment reports whether the startup script has an environment. The agent sends it to the
	// runner, because its values must not be on the disk.
	Environment bool `json:"environment,omitempty"`
	// Synchronization is how the disk treats a request of the guest to flush its data; empty
	// selects SynchronizationFsync.
	Synchronization Synchronization `json:"synchronization,omitempty"`
	Network         Network         `json:"network,omitzero"`
	// Shares are the caches of the lease.
	Shares []Share `json:"shares,omitempty"`
	// Simulation is used only by the simulated backend.
	Simulation *Simulation `json:"simulation,omitempty"`
}

// Validate returns an error if a runner could not identify or start the VM.
func (s *Spec) Validate() error {
	var errs []error
	for name, value := range map[string]string{
		"instanceUID": s.InstanceUID, "namespace": s.Namespace, "name": s.Name,
		"machineID": s.MachineID, "macAddress": s.MACAddress,
	} {
		if value == "" {
			errs = append(errs, fmt.Errorf("%s is empty", name))
		}
	}
	if s.CPU < 1 {
		errs = append(errs, fmt.Errorf("invalid cpu %d; use at least 1", s.CPU))
	}
	if s.MemoryBytes < 1 {
		errs = append(errs, fmt.Errorf("invalid memoryBytes %d; use at least 1", s.MemoryBytes))
	}
	for _, share := range s.Shares {
		if strings.Trim(share.Name, ".") == "" || strings.ContainsAny(share.Name, "/\x00") || !filepath.IsAbs(share.Path) {
			errs = append(errs, fmt.Errorf("invalid share %q of %q; use the name of a file and an absolute path", share.Name, share.Path))
		}
	}
	return errors.Join(errs...)
}

// Simulation is the behavior of a simulated guest.
type Simulation struct {
	// BootMillis is the time from the start until the guest responds.
	BootMillis int64 `json:"bootMillis,omitempty"`
	// ShutdownMillis is the time that the guest takes to shut down.
	ShutdownMillis int64 `json:"shutdownMillis,omitempty"`
	// CrashAfterMillis, if not zero, makes the VM fail that long after its start.
	CrashAfterMillis int64 `json:"crashAfterMillis,omitempty"`
	// IgnoreShutdown makes the guest ignore requests to shut down.
	IgnoreShutdown bool `json:"ignoreShutdown,omitempty"`
	// NeverReady makes the guest hang at boot: it runs and never responds.
	NeverReady bool `json:"neverReady,omitempty"`
	// TartAgent makes the guest speak the protocol of tart's guest agent instead of MacRack's.
	TartAgent bool `json:"tartAgent,omitempty"`
	// NoGuestAgent makes the guest boot without a guest agent.
	NoGuestAgent bool `json:"noGuestAgent,omitempty"`
	// StartError, if set, is the error of the start.
	StartError *Error `json:"startError,omitempty"`
	// ScriptExitCode is the exit code of the startup script.
	ScriptExitCode int32 `json:"scriptExitCode,omitempty"`
	// LoginMillis, if not zero, is the time from the boot until a user is logged in. Only guests
	// that run commands have a login session.
	LoginMillis int64 `json:"loginMillis,omitempty"`
}

// Error is a hypervisor's error. Callers match domain and code, never the text.
type Error struct {
	Domain  string `json:"domain"`
	Code    int    `json:"code"`
	Message string `json:"message,omitempty"`
}

// Error returns the message.
func (e *Error) Error() string {
	return fmt.Sprintf("%s code %d: %s", e.Domain, e.Code, e.Message)
}

// Domain and code of the error with which macOS refuses a VM beyond its limit
// (VZErrorVirtualMachineLimitExceeded).
const (
	VZErrorDomain            = "VZErrorDomain"
	VZErrorCodeLimitExceeded = 6
)

// IsLimitExceeded reports whether err is the kernel's refusal of a VM beyond its limit.
func IsLimitExceeded(err error) bool {
	var e *Error
	return errors.As(err, &e) && e != nil && e.Domain == VZErrorDomain && e.Code == VZErrorCodeLimitExceeded
}

// KeychainErrorDomain is the domain of the start errors that a locked login keychain causes.
const KeychainErrorDomain = "macrack.io/keychain"

// IsKeychainLocked reports whether err is a failed start because of a locked login keychain.
func IsKeychainLocked(err error) bool {
	var e *Error
	return errors.As(err, &e) && e != nil && e.Domain == KeychainErrorDomain
}

// ExitReason is the reason why a VM ended.
type ExitReason string

const (
	// ExitStopped: a stop was requested and the guest shut down within its grace period.
	ExitStopped ExitReason = "Stopped"
	// ExitStoppedByForce: the grace period ended and the VM was forced off.
	ExitStoppedByForce ExitReason = "StoppedByForce"
	// ExitKilled: a kill was requested.
	ExitKilled ExitReason = "Killed"
	// ExitGuestShutdown: the guest shut down by itself.
	ExitGuestShutdown ExitReason = "GuestShutdown"
	// ExitCrashed: the VM stopped with an error.
	ExitCrashed ExitReason = "Crashed"
	// ExitStartFailed: the VM did not start.
	ExitStartFailed ExitReason = "StartFailed"
	// ExitVanished is never written. It is the reason of a slot that has started, has no result and
	// is not locked: the runner was killed, or the Mac lost power.
	ExitVanished ExitReason = "Vanished"
)

// Result is the file that the runner writes last: result.json.
type Result struct {
	InstanceUID string     `json:"instanceUID"`
	Reason      ExitReason `json:"reason"`
	// Error is set for Crashed and StartFailed.
	Error     *Error     `json:"error,omitempty"`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	EndedAt   time.Time  `json:"endedAt"`
}

// Started is the file that the runner writes first: started.json.
type Started struct {
	InstanceUID string    `json:"instanceUID"`
	PID         int       `json:"pid"`
	At          time.Time `json:"at"`
}

// MaxGrace bounds the grace period of a stop.
const MaxGrace = 10 * time.Minute

// StopRequest requests a stop: the guest is asked to shut down, and the VM is forced off after
// GraceSeconds (0 to 600).
type StopRequest struct {
	GraceSeconds int64 `json:"graceSeconds"`
}
