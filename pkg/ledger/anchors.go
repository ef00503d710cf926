package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"macrack.io/macrack/pkg/apis/rack"
)

// CheckpointKind is the kind of the index keys with the checkpoints of the chains; their IDs are
// the names of the chains.
const CheckpointKind = "ledger-checkpoint"

// An Anchor has the facts about a chain that are stored outside its records.
type Anchor struct {
	// Head is the end of the chain before the records were read. The records must reach it.
	Head *Head
	// Checkpoint is the last expired record. The remaining records must follow it.
	Checkpoint *Head
	// Since, if set, is the sequence number of the first record that must exist. Earlier records
	// may have been expired.
	Since int64
	// Audited means that an auditor has kept the head apart from the records. Records that the head
	// does not vouch for may then be forgeries, whatever times they have.
	Audited bool
}

// Anchors are the anchors of all chains. If nil, the first and the last existing record of a chain
// are taken for its ends.
type Anchors map[string]Anchor

// NewAnchors returns the anchors from the values of the index keys of HeadKind and CheckpointKind
// by ID. They must be read before the records.
func NewAnchors(heads, checkpoints map[string][]byte) (Anchors, error) {
	anchors := Anchors{}
	for chain, value := range heads {
		head, err := DecodeHead(value)
		if err != nil {
			return nil, fmt.Errorf("head of %s: %w", chain, err)
		}
		anchors[chain] = Anchor{Head: &head}
	}
	for chain, value := range checkpoints {
		checkpoint, err := DecodeHead(value)
		if err != nil {
			return nil, fmt.Errorf("checkpoint of %s: %w", chain, err)
		}
		anchors[chain] = Anchor{Head: anchors[chain].Head, Checkpoint: &checkpoint}
	}
	return anchors, nil
}

// Parts returns names of records, in order, that split all possible records by chains into parts of
// about size records or single chains.
func (a Anchors) Parts(size int64) []string {
	var names []string
	held := int64(0)
	for _, chain := range slices.Sorted(maps.Keys(a)) {
		anchor := a[chain]
		if anchor.Head == nil {
			continue
		}
		records := anchor.Head.Sequence
		if anchor.Checkpoint != nil {
			records -= anchor.Checkpoint.Sequence
		}
		if held > 0 && held+records > size {
			names = append(names, Name(chain, 0))
			held = 0
		}
		held += records
	}
	slices.Sort(names) // the name of one chain can be a prefix of another
	return names
}

// Checkpoint makes the transaction store that the records of a chain up to and including this one
// are expired. Only then may they be deleted, the oldest first. A checkpoint never moves backwards.
func Checkpoint(ctx context.Context, tx Tx, record *rack.AuditRecord) error {
	chain := Chain(record)
	value, exists, err := tx.GetKey(ctx, CheckpointKind, chain)
	if err != nil {
		return err
	}
	if exists {
		checkpoint, err := DecodeHead(value)
		if err != nil {
			return err
		}
		if record.Sequence <= checkpoint.Sequence {
			return nil
		}
	}
	if hash := Hash(record); hash != record.Hash {
		return fmt.Errorf("ledger: %s was edited; a checkpoint needs a record with a valid hash", nameIn(record))
	}
	return tx.PutKey(CheckpointKind, chain, Head{record.Sequence, record.Hash, record.Time.Time}.Encode())
}
