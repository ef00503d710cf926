package auditrecord

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/txn"
)

const (
	// maxProofAge is the time after which a report reads all records again.
	maxProofAge = 6 * time.Hour

	// checkedPart is the number of keys that etcd compares in one request, which bounds its memory.
	checkedPart  = 200_000
	checksAtOnce = 2

	// maxAdded is the number of new records, apart from a tenth of the old ones, that are faster to
	// read by their keys than together with all others.
	maxAdded = 10_000
)

// A Reporter reports on all records. It reads and proves the records that an earlier report has
// proved only if etcd cannot confirm that they are unchanged.
type Reporter struct {
	backend *txn.Backend
	clock   clock.PassiveClock

	mu       sync.Mutex
	proof    *ledger.Proof // of an earlier report; may be nil
	revision int64         // at which the proof has all records
	history  txn.History
	read     time.Time // when all records were read
}

// NewReporter returns a reporter on the records of a backend.
func NewReporter(backend *txn.Backend, clock clock.PassiveClock) *Reporter {
	return &Reporter{backend: backend, clock: clock}
}

// Report reports on all records at the current revision.
func (r *Reporter) Report(ctx context.Context, windows ...ledger.Window) ([]rack.ComplianceReportStatus, error) {
	findings, err := r.find(ctx, windows...)
	if err != nil {
		return nil, err
	}
	return findings.Reports, nil
}

// Leases returns the histories of all leases in the records at the current revision, and a report
// on all records.
func (r *Reporter) Leases(ctx context.Context) ([]ledger.Lease, rack.ComplianceReportStatus, error) {
	findings, err := r.find(ctx, ledger.Everything(r.clock.Now()))
	if err != nil {
		return nil, rack.ComplianceReportStatus{}, err
	}
	return findings.Leases, findings.Reports[0], nil
}

func (r *Reporter) find(ctx context.Context, windows ...ledger.Window) (*ledger.Findings, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	anchors, err := Anchors(r.backend)(ctx) // before the records
	if err != nil {
		return nil, err
	}
	scan, err := r.backend.Scan(ctx, Resource)
	if err != nil {
		return nil, err
	}
	findings, err := r.findInChanges(ctx, scan, anchors, windows)
	if !errors.Is(err, ledger.ErrProofOutdated) {
		return findings, err
	}
	return r.findInAll(ctx, scan, anchors, windows)
}

// findInAll reads and proves all records.
func (r *Reporter) findInAll(ctx context.Context, scan *txn.Scan, anchors ledger.Anchors, windows []ledger.Window) (*ledger.Findings, error) {
	r.proof = nil
	now := r.clock.Now()
	stored, err := scan.Count(ctx)
	if err != nil {
		return nil, err
	}
	findings, proof, err := ledger.FindAndProve(ctx, scanSource(scan, anchors), anchors, windows...)
	if err != nil {
		return nil, err
	}
	countReported(stored, 0)
	if proof != nil && proof.Records() == stored {
		r.remember(proof, scan)
		r.read = now
	}
	return findings, nil
}

// findInChanges reads and proves only the records since the proof. If the proof does not hold any
// more, it returns ErrProofOutdated.
func (r *Reporter) findInChanges(ctx context.Context, scan *txn.Scan, anchors ledger.Anchors, windows []ledger.Window) (*ledger.Findings, error) {
	if r.proof == nil || r.clock.Since(r.read).Abs() >= maxProofAge {
		return nil, ledger.ErrProofOutdated
	}
	if revision, history := scan.Revision(); history != r.history || revision < r.revision {
		return nil, ledger.ErrProofOutdated
	}
	added, unchanged, err := r.changes(ctx, scan, anchors)
	if err != nil {
		return nil, err
	}
	if unchanged != r.proof.Records() || int64(len(added)) > maxAdded+unchanged/10 {
		return nil, ledger.ErrProofOutdated
	}
	findings, proof, err := r.proof.Find(ctx, keySource(scan, added), anchors, windows...)
	if err != nil {
		return nil, err
	}
	if proof == nil || proof.Records() != r.proof.Records()+int64(len(added)) || !scan.Continues() {
		return nil, ledger.ErrProofOutdated
	}
	countReported(int64(len(added)), unchanged)
	r.remember(proof, scan)
	return findings, nil
}

// changes returns the keys of the records that were written since the proof, sorted by name, and
// the number of the other records. If that number is the number of the records of the proof, each
// of these is unchanged, because a record that was changed or deleted is not among the others.
func (r *Reporter) changes(ctx context.Context, scan *txn.Scan, anchors ledger.Anchors) (changed []txn.ObjectKey, others int64, err error) {
	namespaces, err := scan.Namespaces(ctx)
	if err != nil {
		return nil, 0, err
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(checksAtOnce)
	for _, namespace := range namespaces {
		from := ""
		for _, to := range append(anchors.Parts(checkedPart), "") {
			first := from
			group.Go(func() error {
				keys, rest, err := scan.Changes(ctx, namespace, first, to, r.revision)
				mu.Lock()
				defer mu.Unlock()
				changed, others = append(changed, keys...), others+rest
				return err
			})
			from = to
		}
	}
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	slices.SortFunc(changed, func(a, b txn.ObjectKey) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
	})
	return changed, others, nil
}

func (r *Reporter) remember(proof *ledger.Proof, scan *txn.Scan) {
	r.proof = proof
	r.revision, r.history = scan.Revision()
}
