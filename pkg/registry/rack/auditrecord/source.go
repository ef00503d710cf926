package auditrecord

import (
	"context"
	"iter"
	"strconv"
	"strings"

	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/txn"
)

// Records are read in parts of whole chains, with two parts in memory: about partSize records each,
// or a few of each namespace.
const (
	partSize = 10_000
	perSpace = 20
)

// Anchors returns the source of the anchors of all chains, which are stored under index keys.
func Anchors(backend *txn.Backend) func(context.Context) (ledger.Anchors, error) {
	return func(ctx context.Context) (ledger.Anchors, error) {
		heads, err := backend.Keys(ctx, ledger.HeadKind)
		if err != nil {
			return nil, err
		}
		checkpoints, err := backend.Keys(ctx, ledger.CheckpointKind)
		if err != nil {
			return nil, err
		}
		return ledger.NewAnchors(heads, checkpoints)
	}
}

// Source returns all records at one revision, those of each chassis in sequence. The anchors
// determine the parts in which they are read, but not which records are returned.
func Source(backend *txn.Backend) ledger.RecordSource {
	anchors := Anchors(backend)
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		known, err := anchors(ctx)
		if err != nil {
			return err
		}
		scan, err := backend.Scan(ctx, Resource)
		if err != nil {
			return err
		}
		return scanSource(scan, known)(ctx, yield)
	}
}

// scanSource is Source at the revision of a scan.
func scanSource(scan *txn.Scan, known ledger.Anchors) ledger.RecordSource {
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		namespaces, err := scan.Namespaces(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		from := ""
		open := func(to string) ledger.RecordSource {
			var sources []ledger.RecordSource
			for _, namespace := range namespaces {
				sources = append(sources, ledger.Ahead(ctx, namespaceSource(scan, namespace, from, to)))
			}
			from = to
			return ledger.Merge(sources...)
		}
		var part ledger.RecordSource
		for _, to := range append(known.Parts(max(partSize, perSpace*int64(len(namespaces)))), "") {
			next := open(to) // read while the previous part is consumed
			if part != nil {
				if err := part(ctx, yield); err != nil {
					return err
				}
			}
			part = next
		}
		return part(ctx, yield)
	}
}

// namespaceSource returns the records of a namespace with names from one up to, but not including,
// another, or to the end.
func namespaceSource(scan *txn.Scan, namespace, from, to string) ledger.RecordSource {
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		return decoded(scan, scan.Values(ctx, namespace, from, to), yield)
	}
}

// keySource returns the records with the given keys.
func keySource(scan *txn.Scan, keys []txn.ObjectKey) ledger.RecordSource {
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		return decoded(scan, scan.Get(ctx, keys), yield)
	}
}

// decoded calls yield with each value that the API could read. The namespace and the name are those
// of the key, so the report notices a record that was moved or copied to another key.
func decoded(scan *txn.Scan, values iter.Seq2[txn.Value, error], yield func(*rack.AuditRecord) error) error {
	var decoder Decoder
	for value, err := range values {
		if err != nil {
			return err
		}
		if strings.Contains(value.Key.Namespace, "/") {
			klog.InfoS("Audit record has a key that the API does not read; its chain has a gap", "key", value.Key)
			continue
		}
		record := &rack.AuditRecord{}
		if !decoder.Decode(value.Data, record) {
			if err := scan.Decode(value, record); err != nil {
				klog.ErrorS(err, "Audit record cannot be decoded; its chain has a gap")
				continue
			}
		}
		record.Namespace, record.Name = value.Key.Namespace, value.Key.Name
		record.ResourceVersion = strconv.FormatInt(value.Created, 10)
		if err := yield(record); err != nil {
			return err
		}
	}
	return nil
}
