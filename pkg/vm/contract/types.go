package contract

import (
	"errors"
	"fmt"
	"time"
)

// VMState is where a VM is in its life.
type VMState string

const (
	// VMStarting: the runner owns the slot and is bringing the VM up.
	VMStarting VMState = "Starting"
	// VMRunning: the hypervisor runs the VM; the guest may still be booting.
	VMRunning VMState = "Running"
	// VMStopping: a stop was asked for and the VM has not ended yet.
	VMStopping VMState = "Stopping"
	// VMStopped: the VM has ended; the runner is about to exit.
	VMStopped VMState = "Stopped"
)

// AddressSource says who told the runner the guest's address.
type AddressSource string

const (
	// AddressFromGuestAgent: the agent inside the guest reported it.
	AddressFromGuestAgent AddressSource = "GuestAgent"
	// AddressFromDHCPLease: the host's DHCP server handed it out.
	AddressFromDHCPLease AddressSource = "DHCP"
	// AddressFromARP: the host's neighbour table maps it to the VM's MAC address.
	AddressFromARP AddressSource = "ARP"
)

// Address is the guest's IP address, with where it came from and when.
type Address struct {
	Value      string        `json:"value"`
	Source     AddressSource `json:"source"`
	ObservedAt time.Time     `json:"observedAt"`
}

// ScriptResult is the outcome of the guest's startup script.
type ScriptResult struct {
	ExitCode int32 `json:"exitCode"`
	// EndedAt is when the runner learnt that the script had ended.
	EndedAt time.Time `json:"endedAt"`
	// OutputTail is the end of the script's output, at most MaxScriptOutput bytes.
	OutputTail string `json:"outputTail,omitempty"`
}

// MaxScriptOutput bounds ScriptResult.OutputTail, in bytes.
const MaxScriptOutput = 4096

// State is what a runner says about its VM.
type State struct {
	InstanceUID string  `json:"instanceUID"`
	Namespace   string  `json:"namespace"`
	Name        string  `json:"name"`
	MachineID   string  `json:"machineID"`
	MACAddress  string  `json:"macAddress"`
	VM          VMState `json:"vm"`
	// StartedAt is when the hypervisor had started the VM.
	StartedAt *time.Time `json:"startedAt,omitempty"`
	// GuestReady: the agent inside the guest answers.
	GuestReady bool `json:"guestReady"`
	// GuestSeen: it has answered before.
	GuestSeen bool `json:"guestSeen,omitempty"`
	// Address is empty until one is known, and again once the VM has stopped.
	Address       *Address      `json:"address,omitempty"`
	StartupScript *ScriptResult `json:"startupScript,omitempty"`
	// PID is the runner's process ID.
	PID int `json:"pid"`
}

// Display is the virtual display; a macOS guest has one even when headless.
type Display struct {
	Width         int32 `json:"width"`
	Height        int32 `json:"height"`
	PixelsPerInch int32 `json:"pixelsPerInch"`
}

// Spec is what a runner runs: spec.json. It never changes while a runner lives.
type Spec struct {
	InstanceUID string `json:"instanceUID"`
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	// MachineID is the base64 of the backend's machine identifier.
	MachineID   string `json:"machineID"`
	MACAddress  string `json:"macAddress"`
	CPU         int    `json:"cpu"`
	MemoryBytes int64  `json:"memoryBytes"`
	// HardwareModel is the base64 of the image's hardware model; empty when the
	// image brings it as a file.
	HardwareModel     string   `json:"hardwareModel,omitempty"`
	Display           *Display `json:"display,omitempty"`
	SSHAuthorizedKeys []string `json:"sshAuthorizedKeys,omitempty"`
	StartupScript     string   `json:"startupScript,omitempty"`
	// Simulation is read by the simulated backend only.
	Simulation *Simulation `json:"simulation,omitempty"`
}

// Validate refuses a spec that no runner could identify or start.
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
		errs = append(errs, fmt.Errorf("cpu is %d, must be at least 1", s.CPU))
	}
	if s.MemoryBytes < 1 {
		errs = append(errs, fmt.Errorf("memoryBytes is %d, must be at least 1", s.MemoryBytes))
	}
	return errors.Join(errs...)
}

// Simulation is how a simulated guest behaves.
type Simulation struct {
	// BootDelay is the time from start to a guest that answers, in milliseconds.
	BootMillis int64 `json:"bootMillis,omitempty"`
	// ShutdownMillis is how long the guest takes to shut down when asked.
	ShutdownMillis int64 `json:"shutdownMillis,omitempty"`
	// CrashAfterMillis, if not zero, makes the VM fail that long after its start.
	CrashAfterMillis int64 `json:"crashAfterMillis,omitempty"`
	// IgnoreShutdown makes the guest ignore a request to shut down.
	IgnoreShutdown bool `json:"ignoreShutdown,omitempty"`
	// NeverReady makes the guest hang at boot: it runs, and never answers.
	NeverReady bool `json:"neverReady,omitempty"`
	// StartError, if set, makes the start fail with it.
	StartError *Error `json:"startError,omitempty"`
	// ScriptExitCode is what the startup script ends with.
	ScriptExitCode int32 `json:"scriptExitCode,omitempty"`
}

// Error is a hypervisor's error. Domain and code are matched, never the text.
type Error struct {
	Domain  string `json:"domain"`
	Code    int    `json:"code"`
	Message string `json:"message,omitempty"`
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s code %d: %s", e.Domain, e.Code, e.Message)
}

// The error with which macOS refuses a VM beyond its limit
// (VZErrorVirtualMachineLimitExceeded).
const (
	VZErrorDomain            = "VZErrorDomain"
	VZErrorCodeLimitExceeded = 6
)

// IsLimitExceeded tells whether err is the kernel's refusal of one VM too many.
func IsLimitExceeded(err error) bool {
	var e *Error
	return errors.As(err, &e) && e != nil && e.Domain == VZErrorDomain && e.Code == VZErrorCodeLimitExceeded
}

// ExitReason is why a runner ended.
type ExitReason string

const (
	// ExitStopped: a stop was asked for and the guest shut down within its grace.
	ExitStopped ExitReason = "Stopped"
	// ExitStoppedByForce: the grace ran out and the plug was pulled.
	ExitStoppedByForce ExitReason = "StoppedByForce"
	// ExitKilled: a kill was asked for.
	ExitKilled ExitReason = "Killed"
	// ExitGuestShutdown: the guest shut itself down, unasked.
	ExitGuestShutdown ExitReason = "GuestShutdown"
	// ExitCrashed: the VM stopped with an error.
	ExitCrashed ExitReason = "Crashed"
	// ExitStartFailed: the VM did not start.
	ExitStartFailed ExitReason = "StartFailed"
	// ExitVanished is never written: it is what a slot that has started, holds no
	// result and is not locked amounts to. The runner was killed, or power was lost.
	ExitVanished ExitReason = "Vanished"
)

// Result is the runner's last word: result.json.
type Result struct {
	InstanceUID string     `json:"instanceUID"`
	Reason      ExitReason `json:"reason"`
	// Error is set for Crashed and StartFailed.
	Error     *Error     `json:"error,omitempty"`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	EndedAt   time.Time  `json:"endedAt"`
}

// Started is the runner's first word: started.json.
type Started struct {
	InstanceUID string    `json:"instanceUID"`
	PID         int       `json:"pid"`
	At          time.Time `json:"at"`
}

// MaxGrace bounds the grace of a stop.
const MaxGrace = 10 * time.Minute

// StopRequest asks for a stop: the guest is asked to shut down, and the plug is
// pulled after GraceSeconds (0 to 600).
type StopRequest struct {
	GraceSeconds int64 `json:"graceSeconds"`
}
