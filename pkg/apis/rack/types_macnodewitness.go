package rack

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ChainPosition identifies a record of the chain of a Mac.
type ChainPosition struct {
	Sequence  int64
	Hash      string
	Namespace string
}

// MacNodeLedger is the state of the chain of a Mac. The server sets it.
type MacNodeLedger struct {
	Head        ChainPosition
	Accepted    *ChainPosition
	Unconfirmed bool
	// LastRecordAt is the time of the last record when the Mac was marked as unconfirmed.
	LastRecordAt *metav1.Time
	Loss         *LedgerLoss
}

// LedgerLoss is a loss of history that the witness of a Mac has revealed.
type LedgerLoss struct {
	// Witness is the witness that has revealed the loss. Later reports do not change it.
	Witness MacNodeWitness
	// LastRecordAt is the time of the last record that the server has from before the loss, if it
	// is known.
	LastRecordAt *metav1.Time
	// Quarantine is the quarantine that the Mac has for another reason.
	Quarantine *Quarantine
}

// MacNodeWitness is what the Mac has seen of its chain, and what it serves.
type MacNodeWitness struct {
	Head              ChainPosition
	LeaseRef          *LeaseReference
	EarliestReleaseAt *metav1.Time
	Instances         []WitnessedInstance
	Caches            []LeaseCache
}

// WitnessedInstance is an instance that the Mac serves.
type WitnessedInstance struct {
	Name           string
	UID            types.UID
	ClassName      string
	ImageName      string
	MachineID      string
	MACAddress     string
	StartGrantedAt *metav1.Time
}
