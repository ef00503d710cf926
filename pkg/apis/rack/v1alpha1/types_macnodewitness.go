package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ChainPosition identifies a record of the chain of a Mac.
type ChainPosition struct {
	// sequence is the sequence number of the record. 0 means that there is no record.
	Sequence int64 `json:"sequence" protobuf:"varint,1,opt,name=sequence"`
	// hash is the hash of the record.
	// +optional
	Hash string `json:"hash,omitempty" protobuf:"bytes,2,opt,name=hash"`
	// namespace is the namespace of the record.
	// +optional
	Namespace string `json:"namespace,omitempty" protobuf:"bytes,3,opt,name=namespace"`
}

// MacNodeLedger is the state of the chain of a Mac. The server sets it.
type MacNodeLedger struct {
	// head is the last record of the chain.
	Head ChainPosition `json:"head" protobuf:"bytes,1,opt,name=head"`
	// accepted is the last record that the Mac has seen and the server has lost. An administrator
	// has accepted the loss, which is recorded.
	// +optional
	Accepted *ChainPosition `json:"accepted,omitempty" protobuf:"bytes,2,opt,name=accepted"`
	// unconfirmed is true while the server may have been restored from a backup, until the agent
	// reports its witness. Meanwhile, no lease is bound to the Mac.
	// +optional
	Unconfirmed bool `json:"unconfirmed,omitempty" protobuf:"varint,3,opt,name=unconfirmed"`
	// lastRecordAt is the time of the last record when the Mac was marked as unconfirmed. All lost
	// records are later.
	// +optional
	LastRecordAt *metav1.Time `json:"lastRecordAt,omitempty" protobuf:"bytes,4,opt,name=lastRecordAt"`
	// loss is the loss of history that the witness of the Mac has revealed, until an administrator
	// restores the Mac or ends its quarantine.
	// +optional
	Loss *LedgerLoss `json:"loss,omitempty" protobuf:"bytes,5,opt,name=loss"`
}

// LedgerLoss is a loss of history that the witness of a Mac has revealed.
type LedgerLoss struct {
	// witness is the witness that has revealed the loss. Later reports of the agent do not change
	// it.
	Witness MacNodeWitness `json:"witness" protobuf:"bytes,1,opt,name=witness"`
	// lastRecordAt is the time of the last record that the server has from before the loss. It is
	// not set if the server cannot know it, for example after the loss of all of etcd.
	// +optional
	LastRecordAt *metav1.Time `json:"lastRecordAt,omitempty" protobuf:"bytes,2,opt,name=lastRecordAt"`
	// quarantine is the quarantine that the Mac has for another reason. It continues after the end
	// of the loss.
	// +optional
	Quarantine *Quarantine `json:"quarantine,omitempty" protobuf:"bytes,3,opt,name=quarantine"`
}

// MacNodeWitness is what the Mac has seen of its chain, and what it serves.
type MacNodeWitness struct {
	// head is the last record that the Mac has seen.
	Head ChainPosition `json:"head" protobuf:"bytes,1,opt,name=head"`
	// leaseRef is the lease that the Mac serves.
	// +optional
	LeaseRef *LeaseReference `json:"leaseRef,omitempty" protobuf:"bytes,2,opt,name=leaseRef"`
	// earliestReleaseAt is the floor of the lease.
	// +optional
	EarliestReleaseAt *metav1.Time `json:"earliestReleaseAt,omitempty" protobuf:"bytes,3,opt,name=earliestReleaseAt"`
	// instances are the instances of the lease that the Mac serves.
	// +listType=map
	// +listMapKey=uid
	// +optional
	Instances []WitnessedInstance `json:"instances,omitempty" protobuf:"bytes,4,rep,name=instances"`
	// caches are the caches of the lease.
	// +listType=map
	// +listMapKey=name
	// +optional
	Caches []LeaseCache `json:"caches,omitempty" protobuf:"bytes,5,rep,name=caches"`
}

// WitnessedInstance is an instance that the Mac serves.
type WitnessedInstance struct {
	// name is the name of the instance in the namespace of the lease.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// uid is the UID of the instance.
	UID types.UID `json:"uid" protobuf:"bytes,2,opt,name=uid,casttype=k8s.io/apimachinery/pkg/types.UID"`
	// className is the name of its InstanceClass.
	ClassName string `json:"className" protobuf:"bytes,3,opt,name=className"`
	// imageName is the name of its MacOSImage.
	ImageName string `json:"imageName" protobuf:"bytes,4,opt,name=imageName"`
	// machineID is the machine identifier of its virtual machine.
	// +optional
	MachineID string `json:"machineID,omitempty" protobuf:"bytes,5,opt,name=machineID"`
	// macAddress is the MAC address of its virtual machine.
	// +optional
	MACAddress string `json:"macAddress,omitempty" protobuf:"bytes,6,opt,name=macAddress"`
	// startGrantedAt is the time at which the server granted its start.
	// +optional
	StartGrantedAt *metav1.Time `json:"startGrantedAt,omitempty" protobuf:"bytes,7,opt,name=startGrantedAt"`
}
