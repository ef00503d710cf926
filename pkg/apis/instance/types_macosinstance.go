package instance

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSInstance is a macOS virtual machine inside a lease. It runs on the lease's Mac and ends with the lease.
type MacOSInstance struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   MacOSInstanceSpec
	Status MacOSInstanceStatus
}

// MacOSInstanceSpec is what a tenant asks for.
type MacOSInstanceSpec struct {
	LeaseName         string
	ClassName         string
	ImageName         string
	Resources         InstanceResources
	SSHAuthorizedKeys []string
	StartupScript     string
}

// ResourceList is a set of named amounts.
type ResourceList map[string]scalar.Quantity

// InstanceResources is what an instance asks of its Mac.
type InstanceResources struct {
	Requests ResourceList
}

// MacOSInstancePhase is where an instance is in its life.
type MacOSInstancePhase string

const (
	// MacOSInstancePending means that nothing has been done yet.
	MacOSInstancePending MacOSInstancePhase = "Pending"
	// MacOSInstanceScheduled means that the instance's placeholder pod is on the lease's Mac.
	MacOSInstanceScheduled MacOSInstancePhase = "Scheduled"
	// MacOSInstancePulling means that the agent fetches the image.
	MacOSInstancePulling MacOSInstancePhase = "Pulling"
	// MacOSInstanceStarting means that the virtual machine boots.
	MacOSInstanceStarting MacOSInstancePhase = "Starting"
	// MacOSInstanceRunning means that the virtual machine runs.
	MacOSInstanceRunning MacOSInstancePhase = "Running"
	// MacOSInstanceStopping means that the virtual machine was asked to stop.
	MacOSInstanceStopping MacOSInstancePhase = "Stopping"
	// MacOSInstanceStopped means that the virtual machine has ended as asked. It does not start again.
	MacOSInstanceStopped MacOSInstancePhase = "Stopped"
	// MacOSInstanceFailed means that the virtual machine has ended, or could not start. It does not start again.
	MacOSInstanceFailed MacOSInstancePhase = "Failed"
)

// Types of conditions of a MacOSInstance.
const (
	// MacOSInstanceScheduledCondition is True when the placeholder pod is on the lease's Mac.
	MacOSInstanceScheduledCondition = "Scheduled"
	// MacOSInstanceImageReady is True when the image is on the Mac's disk.
	MacOSInstanceImageReady = "ImageReady"
	// MacOSInstanceGuestReady is True when the guest agent answers. An instance whose image has no guest agent does not have it.
	MacOSInstanceGuestReady = "GuestReady"
	// MacOSInstanceMacReady is False while the instance's Mac is offline or in quarantine, and says which.
	MacOSInstanceMacReady = "MacReady"
	// MacOSInstanceReady is True while the virtual machine runs and its guest agent, if it has one, answers.
	MacOSInstanceReady = "Ready"
	// MacOSInstanceReconciling is True while the instance is not Ready and may become so by itself, or stops; absent otherwise.
	MacOSInstanceReconciling = "Reconciling"
	// MacOSInstanceStalled is True while the instance does not become Ready by itself; absent otherwise.
	MacOSInstanceStalled = "Stalled"
)

// Reasons of the condition ImageReady=False.
const (
	// ReasonPulling means that the image is being fetched; the message says how much of it is there.
	ReasonPulling = "Pulling"
	// ReasonPullFailed means that the image could not be fetched; the agent tries again.
	ReasonPullFailed = "PullFailed"
	// ReasonImageNotFound means that the registry does not have the image.
	ReasonImageNotFound = "ImageNotFound"
	// ReasonPullUnauthorized means that the registry, or the cluster, refuses the image's credentials.
	ReasonPullUnauthorized = "PullUnauthorized"
	// ReasonInsufficientStorage means that the image does not fit on the Mac's disk.
	ReasonInsufficientStorage = "InsufficientStorage"
)

// MacOSInstanceStatus is what is known of a virtual machine.
type MacOSInstanceStatus struct {
	Phase        MacOSInstancePhase
	Message      string
	NodeName     string
	SerialNumber string
	PodName      string
	MachineID    string
	MACAddress   string
	IPAddress    *IPAddress
	ImageDigest  string
	StartedAt    *metav1.Time
	StoppedAt    *metav1.Time
	StopRequest  *StopRequest
	Startup      *StartupResult
	Conditions   []metav1.Condition

	// NamespaceUID is the UID of the namespace that the instance was created in, set by the server.
	NamespaceUID   types.UID
	StartGrantedAt *metav1.Time
}

// IPAddress is an address with where it was learnt.
type IPAddress struct {
	Value      string
	Source     string
	ObservedAt *metav1.Time
}

// StopRequest says that a virtual machine is to stop.
type StopRequest struct {
	At                 metav1.Time
	By                 string
	Reason             string
	GracePeriodSeconds int64
}

// StartupResult is how a startup script went.
type StartupResult struct {
	ExitCode   int32
	Output     string
	FinishedAt *metav1.Time
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSInstanceList is a list of MacOSInstances.
type MacOSInstanceList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []MacOSInstance
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSInstanceStop asks an instance to stop gracefully. It is created as a subresource of the instance; the instance stays, to be read.
type MacOSInstanceStop struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	GracePeriodSeconds *int64
	Reason             string
}
