package ledger

import (
	"context"
	"errors"
	"slices"
)

// maxProof is the maximum number of bytes of the facts in a proof, for about six million records.
const maxProof = 128 << 20

// ErrProofOutdated is the error of a report whose records do not continue those of the proof.
var ErrProofOutdated = errors.New("ledger: the records do not continue those of an earlier report; read all records")

// A Proof has the facts that the records of an earlier report have proved, and the state of the
// verification of each chain after its last record. A later report continues with the next records.
//
// A Proof is of unbroken chains only; a recorded loss of history does not break a chain. It relies
// on its caller to check that all its records still exist unchanged.
type Proof struct {
	chains  map[string]*chain
	anchors Anchors
	records int64
	size    int // in bytes
}

// Records returns the number of records that the facts follow from.
func (p *Proof) Records() int64 { return p.records }

// FindAndProve is like Find, and returns a proof for the next report. The proof is nil if a chain
// is broken, or if it would be too large.
func FindAndProve(ctx context.Context, source RecordSource, anchors Anchors, windows ...Window) (*Findings, *Proof, error) {
	r, err := newReport(anchors, windows)
	if err != nil {
		return nil, nil, err
	}
	r.proof = newProof(anchors)
	findings, err := r.find(ctx, source)
	return findings, r.proof, err
}

// Find is like FindAndProve, for a source without the records of the proof. If the source or
// the anchors do not continue the proof without a break, it returns ErrProofOutdated, and only a
// report on all records has the answer.
func (p *Proof) Find(ctx context.Context, source RecordSource, anchors Anchors, windows ...Window) (*Findings, *Proof, error) {
	if !p.continues(anchors) {
		return nil, nil, ErrProofOutdated
	}
	r, err := newReport(anchors, windows)
	if err != nil {
		return nil, nil, err
	}
	r.proof = newProof(anchors)
	r.proof.records, r.proof.size = p.records, p.size
	for name, c := range p.chains {
		r.chains[name] = c.resume(r)
	}
	findings, err := r.find(ctx, source)
	if errors.Is(err, ErrNotInOrder) || r.broken {
		return nil, nil, ErrProofOutdated
	}
	return findings, r.proof, err
}

func newProof(anchors Anchors) *Proof {
	return &Proof{chains: map[string]*chain{}, anchors: anchors}
}

// continues reports whether no records of the proof have expired since.
func (p *Proof) continues(anchors Anchors) bool {
	for name := range p.chains {
		old, now := p.anchors[name], anchors[name]
		if !equalHeads(old.Checkpoint, now.Checkpoint) || old.Since != now.Since || old.Audited != now.Audited {
			return false
		}
	}
	return (p.anchors == nil) == (anchors == nil)
}

func equalHeads(a, b *Head) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Sequence == b.Sequence && a.Hash == b.Hash && a.Time.Equal(b.Time)
}

// resume returns a copy of a chain for another report, with the same facts.
func (c *chain) resume(r *report) *chain {
	resumed := c.clone()
	resumed.report = r
	resumed.broken, resumed.seen, resumed.lost, resumed.reportedWindows = 0, 0, 0, 0
	head := resumed.head()
	resumed.headSeen = head != nil && head.Hash == c.hashes[0]
	resumed.facts.each(resumed.tell)
	return resumed
}

// clone returns a copy of an unbroken chain that does not change with it.
func (c *chain) clone() *chain {
	clone := *c
	clone.hashes, clone.parents, clone.last = slices.Clone(c.hashes), slices.Clone(c.parents), slices.Clone(c.last)
	clone.facts = c.facts.clone()
	clone.leases = slices.Clip(c.leases)
	s := &clone.chassis
	s.chain = &clone
	s.leases, s.vms, s.open = slices.Clone(s.leases), slices.Clone(s.vms), slices.Clone(s.open)
	for i := range s.open {
		s.open[i].others = slices.Clone(s.open[i].others)
	}
	return &clone
}

// forget gives up the proof, because it would be of a broken chain or too large.
func (r *report) forget() {
	r.proof = nil
	for _, c := range r.chains {
		c.facts = factLog{}
	}
}
