package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +genclient
// +genclient:method=Stop,verb=create,subresource=stop,input=MacOSInstanceStop,result=MacOSInstanceStop
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSInstance is a macOS virtual machine inside a lease. It runs on the lease's Mac and ends with the lease.
type MacOSInstance struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec is what the tenant asks for. It cannot be changed.
	Spec MacOSInstanceSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
	// status is what the agent reports.
	// +optional
	Status MacOSInstanceStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// MacOSInstanceSpec is what a tenant asks for.
type MacOSInstanceSpec struct {
	// leaseName names the MacNodeLease in the same namespace that the instance runs in.
	LeaseName string `json:"leaseName" protobuf:"bytes,1,opt,name=leaseName"`
	// className names the InstanceClass, the size of the virtual machine.
	ClassName string `json:"className" protobuf:"bytes,2,opt,name=className"`
	// imageName names the MacOSImage that the virtual machine starts from.
	ImageName string `json:"imageName" protobuf:"bytes,3,opt,name=imageName"`
	// resources is exactly one macrack.io/macos-vm, which is also the default.
	// +optional
	Resources InstanceResources `json:"resources,omitempty" protobuf:"bytes,4,opt,name=resources"`
	// sshAuthorizedKeys are public keys that may log in to the virtual machine, in the format of authorized_keys, at most 32.
	// +listType=atomic
	// +optional
	SSHAuthorizedKeys []string `json:"sshAuthorizedKeys,omitempty" protobuf:"bytes,5,rep,name=sshAuthorizedKeys"`
	// startupScript is run once in the virtual machine by the guest agent, at most 64 KiB.
	// +optional
	StartupScript string `json:"startupScript,omitempty" protobuf:"bytes,6,opt,name=startupScript"`
}

// ResourceList is a set of named amounts.
type ResourceList map[string]scalar.Quantity

// InstanceResources is what an instance asks of its Mac.
type InstanceResources struct {
	// requests is exactly macrack.io/macos-vm: 1.
	// +optional
	Requests ResourceList `json:"requests,omitempty" protobuf:"bytes,1,rep,name=requests,casttype=ResourceList"`
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
	// phase is Pending, Scheduled, Pulling, Starting, Running, Stopping, Stopped or Failed; the last two are final and free the slot.
	// +optional
	Phase MacOSInstancePhase `json:"phase,omitempty" protobuf:"bytes,1,opt,name=phase,casttype=MacOSInstancePhase"`
	// message says why the instance is not running.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,2,opt,name=message"`
	// nodeName is the MacNode of the lease.
	// +optional
	NodeName string `json:"nodeName,omitempty" protobuf:"bytes,3,opt,name=nodeName"`
	// serialNumber is the serial number of the Mac.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty" protobuf:"bytes,4,opt,name=serialNumber"`
	// podName is the placeholder pod, in the same namespace.
	// +optional
	PodName string `json:"podName,omitempty" protobuf:"bytes,5,opt,name=podName"`
	// machineID is the machine identifier of the virtual machine, unique in the fleet. Once set it does not change.
	// +optional
	MachineID string `json:"machineID,omitempty" protobuf:"bytes,6,opt,name=machineID"`
	// macAddress is the network address of the virtual machine, unique in the fleet. Once set it does not change.
	// +optional
	MACAddress string `json:"macAddress,omitempty" protobuf:"bytes,7,opt,name=macAddress"`
	// ipAddress is where the virtual machine is reached; unset unless it runs.
	// +optional
	IPAddress *IPAddress `json:"ipAddress,omitempty" protobuf:"bytes,8,opt,name=ipAddress"`
	// imageDigest is the digest of the image that the virtual machine started from.
	// +optional
	ImageDigest string `json:"imageDigest,omitempty" protobuf:"bytes,9,opt,name=imageDigest"`
	// startedAt is when the virtual machine started.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty" protobuf:"bytes,10,opt,name=startedAt"`
	// stoppedAt is when the virtual machine had ended.
	// +optional
	StoppedAt *metav1.Time `json:"stoppedAt,omitempty" protobuf:"bytes,11,opt,name=stoppedAt"`
	// stopRequest is set once the virtual machine is to stop.
	// +optional
	StopRequest *StopRequest `json:"stopRequest,omitempty" protobuf:"bytes,12,opt,name=stopRequest"`
	// startup is how the startup script went.
	// +optional
	Startup *StartupResult `json:"startup,omitempty" protobuf:"bytes,13,opt,name=startup"`
	// conditions are Ready, Scheduled, ImageReady, GuestReady and MacReady, and Reconciling or Stalled while the instance is not Ready.
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type" protobuf:"bytes,14,rep,name=conditions"`
	// namespaceUID is the UID of the namespace that the instance was created in. The server sets it once. Users of a later namespace of the same
	// name have nothing to do with the instance.
	// +optional
	NamespaceUID types.UID `json:"namespaceUID,omitempty" protobuf:"bytes,15,opt,name=namespaceUID,casttype=k8s.io/apimachinery/pkg/types.UID"`
	// startGrantedAt is when the registry granted the start of the virtual machine, before which it is not launched. From then
	// until it has ended it counts as running on its Mac. The registry sets it.
	// +optional
	StartGrantedAt *metav1.Time `json:"startGrantedAt,omitempty" protobuf:"bytes,16,opt,name=startGrantedAt"`
}

// IPAddress is an address with where it was learnt.
type IPAddress struct {
	// value is the address.
	Value string `json:"value" protobuf:"bytes,1,opt,name=value"`
	// source is where the address was learnt: GuestAgent, DHCP or ARP.
	// +optional
	Source string `json:"source,omitempty" protobuf:"bytes,2,opt,name=source"`
	// observedAt is when the address was last seen.
	// +optional
	ObservedAt *metav1.Time `json:"observedAt,omitempty" protobuf:"bytes,3,opt,name=observedAt"`
}

// StopRequest says that a virtual machine is to stop.
type StopRequest struct {
	// at is when the stop was asked for.
	At metav1.Time `json:"at" protobuf:"bytes,1,opt,name=at"`
	// by is the user who asked for it.
	// +optional
	By string `json:"by,omitempty" protobuf:"bytes,2,opt,name=by"`
	// reason is why.
	// +optional
	Reason string `json:"reason,omitempty" protobuf:"bytes,3,opt,name=reason"`
	// gracePeriodSeconds is how long the guest may take to shut down before the plug is pulled.
	// +optional
	GracePeriodSeconds int64 `json:"gracePeriodSeconds,omitempty" protobuf:"varint,4,opt,name=gracePeriodSeconds"`
}

// StartupResult is how a startup script went.
type StartupResult struct {
	// exitCode is the exit code of the script.
	ExitCode int32 `json:"exitCode" protobuf:"varint,1,opt,name=exitCode"`
	// output is the end of what the script printed, at most 4 KiB.
	// +optional
	Output string `json:"output,omitempty" protobuf:"bytes,2,opt,name=output"`
	// finishedAt is when the script ended.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty" protobuf:"bytes,3,opt,name=finishedAt"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSInstanceList is a list of MacOSInstances.
type MacOSInstanceList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of lists.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	Items []MacOSInstance `json:"items" protobuf:"bytes,2,rep,name=items"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSInstanceStop asks an instance to stop gracefully. It is created as a subresource of the instance; the instance stays, to be read.
type MacOSInstanceStop struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// gracePeriodSeconds is how long the guest may take to shut down before the plug is pulled: 0 to 600, 30 by default.
	// +optional
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty" protobuf:"varint,2,opt,name=gracePeriodSeconds"`
	// reason is why, for those who read the instance later.
	// +optional
	Reason string `json:"reason,omitempty" protobuf:"bytes,3,opt,name=reason"`
}
