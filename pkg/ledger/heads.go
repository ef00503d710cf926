package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"macrack.io/macrack/pkg/apis/rack"
)

// Heads are the ends of all chains at the time of an audit. A later export must continue them.
type Heads struct {
	// Written is the time of the heads by the auditor's clock, in seconds.
	Written time.Time
	// Chains are the chains by their names.
	Chains map[string]KnownChain
}

// A KnownChain is the state of a chain at the time of an audit.
type KnownChain struct {
	// First is the sequence number of the first record that was there, and FirstTime is its time.
	First     int64
	FirstTime time.Time
	// Head is the last record.
	Head
}

// headsTitle is the beginning of a file of heads.
const headsTitle = "macrack-ledger heads, version 1, written "

// NewHeads returns heads without a chain.
func NewHeads(written time.Time) *Heads {
	return &Heads{Written: written.UTC().Truncate(time.Second), Chains: map[string]KnownChain{}}
}

// Add adds the next record of an export.
func (h *Heads) Add(record *rack.AuditRecord) {
	name, _, _ := SplitName(record.Name)
	chain, ok := h.Chains[name]
	if !ok {
		chain.First, chain.FirstTime = record.Sequence, record.Time.UTC()
	}
	chain.Head = Head{Sequence: record.Sequence, Hash: record.Hash, Time: record.Time.UTC()}
	h.Chains[name] = chain
}

// Encode returns the heads as a file: a title, a line for each chain (its name, the sequence
// numbers and times of its first and its last record, and the hash of the last), and a line with
// the number of chains and the SHA-256 of all lines before.
func (h *Heads) Encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s%s\n", headsTitle, h.Written.UTC().Format(time.RFC3339))
	for _, name := range slices.Sorted(maps.Keys(h.Chains)) {
		c := h.Chains[name]
		fmt.Fprintf(&b, "%s %d %s %d %s %s\n", name, c.First, formatMicros(c.FirstTime.UnixMicro()),
			c.Sequence, formatMicros(c.Time.UnixMicro()), c.Hash)
	}
	sum := sha256.Sum256(b.Bytes())
	fmt.Fprintf(&b, "end chains=%d sha256=%s\n", len(h.Chains), hex.EncodeToString(sum[:]))
	return b.Bytes()
}

// DecodeHeads returns the heads in the output of Encode. Any other file, such as a truncated one,
// is an error.
func DecodeHeads(file []byte) (*Heads, error) {
	lines := strings.Split(string(file), "\n")
	written, err := time.Parse(time.RFC3339, strings.TrimPrefix(lines[0], headsTitle))
	if err != nil {
		return nil, errors.New("not a file of heads; use one that macrack-ledger verify --heads has written")
	}
	h := NewHeads(written)
	for number, line := range lines[1:max(1, len(lines)-2)] {
		var name, firstTime, lastTime string
		var chain KnownChain
		_, err := fmt.Sscanf(line, "%s %d %s %d %s %s", &name, &chain.First, &firstTime, &chain.Sequence, &lastTime, &chain.Hash)
		chain.FirstTime, _ = time.Parse(time.RFC3339Nano, firstTime) // Differences from the output of Encode are refused below.
		chain.Time, _ = time.Parse(time.RFC3339Nano, lastTime)
		if err != nil || chain.First < 1 || chain.Sequence < chain.First || !isHash(chain.Hash) {
			return nil, fmt.Errorf("line %d is not the head of a chain", number+2)
		}
		h.Chains[name] = chain
	}
	if !bytes.Equal(h.Encode(), file) {
		return nil, errors.New("the file of heads was truncated or edited; restore it from a copy")
	}
	return h, nil
}

// Anchors returns the anchors for an export at now: every head, and the records up to it that
// retention has not expired. New chains must begin with record 1.
func (h *Heads) Anchors(now time.Time, retention time.Duration) Anchors {
	expired := now.Add(-retention)
	anchors := Anchors{}
	for name, c := range h.Chains {
		anchor := Anchor{Head: &c.Head, Since: c.First, Audited: true}
		if c.FirstTime.Before(expired) {
			anchor.Since = c.Sequence
		}
		if c.Time.Before(expired) {
			anchor.Checkpoint = &c.Head
		}
		anchors[name] = anchor
	}
	return anchors
}
