package auditrecord

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
)

// Records are read from etcd in pages: two of each namespace are in memory at a time, in all about
// recordsInMemory, unless there are so many namespaces that the pages would get too small.
const (
	recordsInMemory = 20_000
	maxPage         = 500
	minPage         = 20
)

// Source returns all records, those of each chassis in sequence, as of one revision.
func (r *REST) Source() ledger.RecordSource {
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		namespaces, last, revision, err := r.namespaces(ctx)
		if err != nil {
			return err
		}
		size := int64(min(maxPage, max(minPage, recordsInMemory/2/(len(namespaces)+1))))
		sources := []ledger.RecordSource{ledger.Records(last...)}
		for _, namespace := range namespaces {
			sources = append(sources, r.namespaceSource(namespace, revision, size))
		}
		return ledger.Merge(sources...)(ctx, yield)
	}
}

// namespaces returns the namespaces that have records, and a revision at which they do. It goes by the keys, as what
// a record says of its namespace may have been tampered with. The very last record is returned itself, if it is
// the only one of its namespace.
func (r *REST) namespaces(ctx context.Context) (namespaces []string, last []*rack.AuditRecord, revision string, err error) {
	prefix := r.prefix()
	predicate := everything(1)
	for {
		list := &rack.AuditRecordList{}
		if err := r.store.Storage.GetList(ctx, prefix, storage.ListOptions{Recursive: true, Predicate: predicate}, list); err != nil {
			return nil, nil, "", err
		}
		if len(list.Items) == 0 {
			return namespaces, nil, revision, nil
		}
		if list.Continue == "" {
			return namespaces, []*rack.AuditRecord{&list.Items[0]}, revision, nil
		}
		if revision == "" {
			revision = list.ResourceVersion
		}
		next, number, err := storage.DecodeContinue(list.Continue, "")
		if err != nil {
			return nil, nil, "", err
		}
		namespace, _, _ := strings.Cut(next, "/")
		namespaces = append(namespaces, namespace)
		// The next key that can exist behind those of a namespace, which all begin with "<namespace>/".
		if predicate.Continue, err = storage.EncodeContinue(prefix+namespace+"0", prefix, number); err != nil {
			return nil, nil, "", err
		}
	}
}

// A page is records that were listed, or why they could not be.
type page struct {
	records []rack.AuditRecord
	err     error
}

// namespaceSource returns the records of a namespace. The next page is read while one is taken.
func (r *REST) namespaceSource(namespace, revision string, size int64) ledger.RecordSource {
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		pages := make(chan page)
		go func() {
			defer close(pages)
			r.readPages(ctx, namespace, revision, size, pages)
		}()
		for p := range pages {
			for i := range p.records {
				if err := yield(&p.records[i]); err != nil {
					return err
				}
			}
			if p.err != nil {
				return p.err
			}
		}
		return ctx.Err()
	}
}

// readPages sends the pages of a namespace until the last, an error, or the end of ctx.
func (r *REST) readPages(ctx context.Context, namespace, revision string, size int64, to chan<- page) {
	predicate := everything(size)
	for {
		list := &rack.AuditRecordList{}
		options := storage.ListOptions{Recursive: true, Predicate: predicate}
		if predicate.Continue == "" {
			options.ResourceVersion, options.ResourceVersionMatch = revision, metav1.ResourceVersionMatchExact
		}
		err := r.store.Storage.GetList(ctx, r.prefix()+namespace+"/", options, list)
		select {
		case to <- page{list.Items, err}:
		case <-ctx.Done():
			return
		}
		if err != nil || list.Continue == "" {
			return
		}
		predicate.Continue = list.Continue
	}
}

func (r *REST) prefix() string {
	return strings.TrimSuffix(r.store.KeyRootFunc(context.Background()), "/") + "/"
}

func everything(limit int64) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), GetAttrs: GetAttrs, Limit: limit}
}
