package instance

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/rules"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSInstance is a macOS virtual machine in a MacNodeLease. It runs on the Mac of the lease and
// ends with the lease.
type MacOSInstance struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   MacOSInstanceSpec
	Status MacOSInstanceStatus
}

// MacOSInstanceSpec is the specification of an instance.
type MacOSInstanceSpec struct {
	LeaseName         string
	ClassName         string
	ImageName         string
	Resources         InstanceResources
	SSHAuthorizedKeys []string
	StartupScript     string

	Env                     []EnvVar
	EnvFrom                 []EnvFromSource
	ActiveDeadlineSeconds   *int64
	TTLSecondsAfterFinished *int32
	Caches                  []InstanceCache
}

// InstanceCache is the use of a cache of the lease by an instance.
type InstanceCache struct {
	Name     string
	ReadOnly bool
}

// EnvVar is an environment variable of the startup script.
type EnvVar struct {
	Name      string
	Value     string
	ValueFrom *EnvVarSource
}

// EnvVarSource is the source of the value of an environment variable. Exactly one of its fields is
// set.
type EnvVarSource struct {
	ConfigMapKeyRef *KeySelector
	SecretKeyRef    *KeySelector
}

// KeySelector selects a key of a Secret or a ConfigMap.
type KeySelector struct {
	Name     string
	Key      string
	Optional *bool
}

// EnvFromSource is a source of several environment variables. Exactly one of ConfigMapRef and
// SecretRef is set.
type EnvFromSource struct {
	Prefix       string
	ConfigMapRef *EnvSource
	SecretRef    *EnvSource
}

// EnvSource selects a Secret or a ConfigMap.
type EnvSource struct {
	Name     string
	Optional *bool
}

// ResourceList is a set of (resource name, quantity) pairs.
type ResourceList map[string]scalar.Quantity

// InstanceResources are the resources that an instance requests from its Mac.
type InstanceResources struct {
	Requests ResourceList
}

// MacOSInstancePhase is the phase in the lifecycle of an instance.
type MacOSInstancePhase string

const (
	// MacOSInstancePending means that the instance has been accepted, but its placeholder pod is
	// not scheduled yet.
	MacOSInstancePending MacOSInstancePhase = "Pending"
	// MacOSInstanceScheduled means that the placeholder pod is scheduled to the Mac of the lease.
	MacOSInstanceScheduled MacOSInstancePhase = "Scheduled"
	// MacOSInstancePulling means that the agent is pulling the image.
	MacOSInstancePulling MacOSInstancePhase = "Pulling"
	// MacOSInstanceStarting means that the virtual machine is booting.
	MacOSInstanceStarting MacOSInstancePhase = "Starting"
	// MacOSInstanceRunning means that the virtual machine is running.
	MacOSInstanceRunning MacOSInstancePhase = "Running"
	// MacOSInstanceStopping means that the virtual machine is shutting down.
	MacOSInstanceStopping MacOSInstancePhase = "Stopping"
	// MacOSInstanceStopped means that the virtual machine has stopped as requested. It does not
	// start again.
	MacOSInstanceStopped MacOSInstancePhase = "Stopped"
	// MacOSInstanceFailed means that the virtual machine has stopped unexpectedly or could not
	// start. It does not start again.
	MacOSInstanceFailed MacOSInstancePhase = "Failed"
)

// Types of conditions of a MacOSInstance.
const (
	// MacOSInstanceScheduledCondition is True when the placeholder pod is scheduled to the Mac of
	// the lease.
	MacOSInstanceScheduledCondition = "Scheduled"
	// MacOSInstanceImageReady is True when the image is on the disk of the Mac.
	MacOSInstanceImageReady = "ImageReady"
	// MacOSInstanceGuestReady is True while the guest agent answers, False before its first answer
	// and after it stops answering, and Unknown while the Mac is offline.
	MacOSInstanceGuestReady = "GuestReady"
	// MacOSInstanceEnvironmentReady is False while the environment of the startup script cannot be
	// read, and True after the virtual machine has received it; absent without an environment.
	MacOSInstanceEnvironmentReady = "EnvironmentReady"
	// MacOSInstanceMacReady is False while the Mac of the instance is offline or in quarantine; its
	// reason is Offline or that of the quarantine.
	MacOSInstanceMacReady = "MacReady"
	// MacOSInstanceReady is True while the virtual machine runs and its guest agent answers.
	MacOSInstanceReady = "Ready"
	// MacOSInstanceReconciling is True while the instance can still become Ready without
	// intervention, or is stopping; absent otherwise.
	MacOSInstanceReconciling = "Reconciling"
	// MacOSInstanceStalled is True while the instance cannot become Ready without intervention;
	// absent otherwise.
	MacOSInstanceStalled = "Stalled"
)

// ReasonRestored is the reason of the condition Scheduled=False of an instance that was restored
// while its virtual machine runs: it gets a new placeholder pod. Until then, a missing pod does not
// end the virtual machine.
const ReasonRestored = "Restored"

// Reasons of the condition ImageReady=False.
const (
	// ReasonPulling means that the agent is pulling the image; the message has the progress.
	ReasonPulling = "Pulling"
	// ReasonPullFailed means that the image could not be pulled; the agent retries.
	ReasonPullFailed = "PullFailed"
	// ReasonImageNotFound means that the registry does not have the image.
	ReasonImageNotFound = "ImageNotFound"
	// ReasonPullUnauthorized means that the registry refuses the credentials of the image, or that
	// the cluster refuses access to them.
	ReasonPullUnauthorized = "PullUnauthorized"
	// ReasonInsufficientStorage means that the image does not fit on the Mac's disk.
	ReasonInsufficientStorage = "InsufficientStorage"
)

// Reasons of the condition EnvironmentReady=False. The virtual machine starts, or its startup
// script, once the environment can be read.
const (
	// ReasonSecretNotFound means that a Secret or its key does not exist.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonConfigMapNotFound means that a ConfigMap or its key does not exist.
	ReasonConfigMapNotFound = "ConfigMapNotFound"
	// ReasonEnvironmentInvalid means that the environment is larger than its limit, or that a value
	// contains a zero byte.
	ReasonEnvironmentInvalid = "EnvironmentInvalid"
	// ReasonEnvironmentUnreadable means that the API refuses or fails to return a Secret or a
	// ConfigMap.
	ReasonEnvironmentUnreadable = "EnvironmentUnreadable"
	// ReasonEnvironmentPending means that the environment can be read, and that the virtual machine
	// has not received it yet.
	ReasonEnvironmentPending = "EnvironmentPending"
)

// ReasonDeadlineExceeded is the reason of the stop of an instance that has run for
// activeDeadlineSeconds, and of its condition Ready.
const ReasonDeadlineExceeded = rules.ReasonDeadlineExceeded

// MacOSInstanceStatus is the most recently observed status of an instance.
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

	// NamespaceUID is the UID of the namespace that the instance was created in. The server sets
	// it.
	NamespaceUID   types.UID
	StartGrantedAt *metav1.Time
}

// IPAddress is an IP address and the source that reported it.
type IPAddress struct {
	Value      string
	Source     string
	ObservedAt *metav1.Time
}

// StopRequest is a request to stop a virtual machine.
type StopRequest struct {
	At                 metav1.Time
	By                 string
	Reason             string
	GracePeriodSeconds int64
}

// StartupResult is the result of a startup script.
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

// MacOSInstanceStop requests a graceful stop of an instance. It is created as a subresource of the
// instance. The instance itself is not deleted.
type MacOSInstanceStop struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	GracePeriodSeconds *int64
	Reason             string
}
