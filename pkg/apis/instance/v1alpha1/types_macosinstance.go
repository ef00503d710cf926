package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/rules"
)

// +genclient
// +genclient:method=Stop,verb=create,subresource=stop,input=MacOSInstanceStop,result=MacOSInstanceStop
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacOSInstance is a macOS virtual machine in a MacNodeLease. It runs on the Mac of the lease and
// ends with the lease.
type MacOSInstance struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec is the specification of the desired instance. It is immutable.
	Spec MacOSInstanceSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
	// status is the most recently observed status of the instance. Populated by the system.
	// Read-only.
	// +optional
	Status MacOSInstanceStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// MacOSInstanceSpec is the specification of an instance.
type MacOSInstanceSpec struct {
	// leaseName is the name of the MacNodeLease, in the same namespace, that the instance runs in.
	LeaseName string `json:"leaseName" protobuf:"bytes,1,opt,name=leaseName"`
	// className is the name of the InstanceClass, which sets the size of the virtual machine.
	ClassName string `json:"className" protobuf:"bytes,2,opt,name=className"`
	// imageName is the name of the MacOSImage that the virtual machine boots from.
	ImageName string `json:"imageName" protobuf:"bytes,3,opt,name=imageName"`
	// resources are the resources that the instance requests. Defaults to one macrack.io/macos-vm,
	// the only permitted value.
	// +optional
	Resources InstanceResources `json:"resources,omitempty" protobuf:"bytes,4,opt,name=resources"`
	// sshAuthorizedKeys lists the public keys that can log in to the virtual machine, in the format
	// of authorized_keys. Maximum: 32 keys.
	// +listType=atomic
	// +optional
	SSHAuthorizedKeys []string `json:"sshAuthorizedKeys,omitempty" protobuf:"bytes,5,rep,name=sshAuthorizedKeys"`
	// startupScript is a script that the guest agent runs once in the virtual machine. It may run
	// as long as the virtual machine. Maximum: 64 KiB.
	// +optional
	StartupScript string `json:"startupScript,omitempty" protobuf:"bytes,6,opt,name=startupScript"`
	// env lists environment variables of the startup script. No other process of the virtual
	// machine gets them. They override variables of envFrom with the same name. Maximum: 256
	// variables, and 64 KiB of names and values. The variables of env and envFrom together have at
	// most 512 KiB.
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	// +optional
	Env []EnvVar `json:"env,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,7,rep,name=env"`
	// envFrom lists Secrets and ConfigMaps whose keys become environment variables of the startup
	// script. If a key is in several of them, the last one takes precedence. Maximum: 32 sources.
	// +listType=atomic
	// +optional
	EnvFrom []EnvFromSource `json:"envFrom,omitempty" protobuf:"bytes,8,rep,name=envFrom"`
	// activeDeadlineSeconds is the time in seconds that the virtual machine may run, measured from
	// its start. Then it is shut down, and the instance fails with the reason DeadlineExceeded.
	// Range: 1 to 94608000 (three years). The lease and its floor do not change.
	// +optional
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty" protobuf:"varint,9,opt,name=activeDeadlineSeconds"`
	// ttlSecondsAfterFinished is the time in seconds after which an instance that has ended is
	// deleted. 0 deletes it at once. An instance without this field is kept until its lease ends.
	// Range: 0 to 94608000 (three years).
	// +optional
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty" protobuf:"varint,10,opt,name=ttlSecondsAfterFinished"`
	// caches lists the caches of the lease that the virtual machine uses. The startup script finds
	// them in the directory MACRACK_CACHES, each under its name. Maximum: 8 caches.
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	// +optional
	Caches []InstanceCache `json:"caches,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,11,rep,name=caches"`
}

// InstanceCache is the use of a cache of the lease by an instance.
type InstanceCache struct {
	// name is the name of the cache in spec.caches of the lease.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// readOnly specifies that the virtual machine cannot change the cache.
	// +optional
	ReadOnly bool `json:"readOnly,omitempty" protobuf:"varint,2,opt,name=readOnly"`
}

// EnvVar is an environment variable of the startup script.
type EnvVar struct {
	// name is the name of the variable: printable ASCII characters other than '='.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// value is the value of the variable. It is not expanded. All users with view in the namespace
	// can read it; for a secret value, use valueFrom.
	// +optional
	Value string `json:"value,omitempty" protobuf:"bytes,2,opt,name=value"`
	// valueFrom is the source of the value. Cannot be used if value is not empty.
	// +optional
	ValueFrom *EnvVarSource `json:"valueFrom,omitempty" protobuf:"bytes,3,opt,name=valueFrom"`
}

// EnvVarSource is the source of the value of an environment variable. Exactly one of its fields is
// set.
type EnvVarSource struct {
	// configMapKeyRef selects a key of a ConfigMap in the namespace of the instance.
	// +optional
	ConfigMapKeyRef *KeySelector `json:"configMapKeyRef,omitempty" protobuf:"bytes,1,opt,name=configMapKeyRef"`
	// secretKeyRef selects a key of a Secret in the namespace of the instance.
	// +optional
	SecretKeyRef *KeySelector `json:"secretKeyRef,omitempty" protobuf:"bytes,2,opt,name=secretKeyRef"`
}

// KeySelector selects a key of a Secret or a ConfigMap.
type KeySelector struct {
	// name is the name of the Secret or ConfigMap.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// key is the key to select.
	Key string `json:"key" protobuf:"bytes,2,opt,name=key"`
	// optional specifies that the object or its key may be missing. The variable is then not set.
	// +optional
	Optional *bool `json:"optional,omitempty" protobuf:"varint,3,opt,name=optional"`
}

// EnvFromSource is a source of several environment variables. Exactly one of configMapRef and
// secretRef is set.
type EnvFromSource struct {
	// prefix is put before each key.
	// +optional
	Prefix string `json:"prefix,omitempty" protobuf:"bytes,1,opt,name=prefix"`
	// configMapRef selects a ConfigMap in the namespace of the instance.
	// +optional
	ConfigMapRef *EnvSource `json:"configMapRef,omitempty" protobuf:"bytes,2,opt,name=configMapRef"`
	// secretRef selects a Secret in the namespace of the instance.
	// +optional
	SecretRef *EnvSource `json:"secretRef,omitempty" protobuf:"bytes,3,opt,name=secretRef"`
}

// EnvSource selects a Secret or a ConfigMap.
type EnvSource struct {
	// name is the name of the Secret or ConfigMap.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// optional specifies that the object may be missing.
	// +optional
	Optional *bool `json:"optional,omitempty" protobuf:"varint,2,opt,name=optional"`
}

// ResourceList is a set of (resource name, quantity) pairs.
type ResourceList map[string]scalar.Quantity

// InstanceResources are the resources that an instance requests from its Mac.
type InstanceResources struct {
	// requests are the requested quantities. The only permitted value is macrack.io/macos-vm: 1.
	// +optional
	Requests ResourceList `json:"requests,omitempty" protobuf:"bytes,1,rep,name=requests,casttype=ResourceList"`
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
	// phase is a summary of the status: Pending, Scheduled, Pulling, Starting, Running, Stopping,
	// Stopped or Failed. Stopped and Failed are final and free the slot.
	// +optional
	Phase MacOSInstancePhase `json:"phase,omitempty" protobuf:"bytes,1,opt,name=phase,casttype=MacOSInstancePhase"`
	// message is a human-readable explanation of why the instance is not running.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,2,opt,name=message"`
	// nodeName is the name of the MacNode that the lease is bound to.
	// +optional
	NodeName string `json:"nodeName,omitempty" protobuf:"bytes,3,opt,name=nodeName"`
	// serialNumber is the serial number of the Mac.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty" protobuf:"bytes,4,opt,name=serialNumber"`
	// podName is the name of the placeholder pod, in the same namespace.
	// +optional
	PodName string `json:"podName,omitempty" protobuf:"bytes,5,opt,name=podName"`
	// machineID is the machine identifier of the virtual machine. It is unique in the fleet and
	// never changes once set.
	// +optional
	MachineID string `json:"machineID,omitempty" protobuf:"bytes,6,opt,name=machineID"`
	// macAddress is the MAC address of the virtual machine. It is unique in the fleet and never
	// changes once set.
	// +optional
	MACAddress string `json:"macAddress,omitempty" protobuf:"bytes,7,opt,name=macAddress"`
	// ipAddress is the IP address of the virtual machine. It is set only while the virtual machine
	// is running.
	// +optional
	IPAddress *IPAddress `json:"ipAddress,omitempty" protobuf:"bytes,8,opt,name=ipAddress"`
	// imageDigest is the digest of the image that the virtual machine booted from.
	// +optional
	ImageDigest string `json:"imageDigest,omitempty" protobuf:"bytes,9,opt,name=imageDigest"`
	// startedAt is the time at which the virtual machine started.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty" protobuf:"bytes,10,opt,name=startedAt"`
	// stoppedAt is the time at which the virtual machine ended.
	// +optional
	StoppedAt *metav1.Time `json:"stoppedAt,omitempty" protobuf:"bytes,11,opt,name=stoppedAt"`
	// stopRequest is the request to stop the virtual machine, if there is one.
	// +optional
	StopRequest *StopRequest `json:"stopRequest,omitempty" protobuf:"bytes,12,opt,name=stopRequest"`
	// startup is the result of the startup script.
	// +optional
	Startup *StartupResult `json:"startup,omitempty" protobuf:"bytes,13,opt,name=startup"`
	// conditions are the latest observations of the instance: Ready, Scheduled, ImageReady,
	// EnvironmentReady, GuestReady and MacReady, and Reconciling or Stalled while the instance is
	// not Ready.
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type" protobuf:"bytes,14,rep,name=conditions"`
	// namespaceUID is the UID of the namespace that the instance was created in. The server sets it
	// once. Users of a later namespace with the same name have no access to the instance.
	// +optional
	NamespaceUID types.UID `json:"namespaceUID,omitempty" protobuf:"bytes,15,opt,name=namespaceUID,casttype=k8s.io/apimachinery/pkg/types.UID"`
	// startGrantedAt is the time at which the API server granted the start of the virtual machine.
	// The agent does not launch the virtual machine before this time. From then until it ends, the
	// virtual machine counts as running on its Mac.
	// +optional
	StartGrantedAt *metav1.Time `json:"startGrantedAt,omitempty" protobuf:"bytes,16,opt,name=startGrantedAt"`
}

// IPAddress is an IP address and the source that reported it.
type IPAddress struct {
	// value is the IP address.
	Value string `json:"value" protobuf:"bytes,1,opt,name=value"`
	// source is the source that reported the address: GuestAgent, DHCP or ARP.
	// +optional
	Source string `json:"source,omitempty" protobuf:"bytes,2,opt,name=source"`
	// observedAt is the time at which the address was last observed.
	// +optional
	ObservedAt *metav1.Time `json:"observedAt,omitempty" protobuf:"bytes,3,opt,name=observedAt"`
}

// StopRequest is a request to stop a virtual machine.
type StopRequest struct {
	// at is the time of the request.
	At metav1.Time `json:"at" protobuf:"bytes,1,opt,name=at"`
	// by is the name of the user who made the request.
	// +optional
	By string `json:"by,omitempty" protobuf:"bytes,2,opt,name=by"`
	// reason is the reason for the request.
	// +optional
	Reason string `json:"reason,omitempty" protobuf:"bytes,3,opt,name=reason"`
	// gracePeriodSeconds is the time in seconds that the guest has to shut down before the virtual
	// machine is powered off.
	// +optional
	GracePeriodSeconds int64 `json:"gracePeriodSeconds,omitempty" protobuf:"varint,4,opt,name=gracePeriodSeconds"`
}

// StartupResult is the result of a startup script.
type StartupResult struct {
	// exitCode is the exit code of the script.
	ExitCode int32 `json:"exitCode" protobuf:"varint,1,opt,name=exitCode"`
	// output is the last 4 KiB of the output of the script.
	// +optional
	Output string `json:"output,omitempty" protobuf:"bytes,2,opt,name=output"`
	// finishedAt is the time at which the script ended.
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

// MacOSInstanceStop requests a graceful stop of an instance. It is created as a subresource of the
// instance. The instance itself is not deleted.
type MacOSInstanceStop struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// gracePeriodSeconds is the time in seconds that the guest has to shut down before the virtual
	// machine is powered off, from 0 to 600. Defaults to 30.
	// +optional
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty" protobuf:"varint,2,opt,name=gracePeriodSeconds"`
	// reason is the reason for the stop. It is recorded in the status of the instance.
	// +optional
	Reason string `json:"reason,omitempty" protobuf:"bytes,3,opt,name=reason"`
}
