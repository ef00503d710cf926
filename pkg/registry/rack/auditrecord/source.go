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

// pageSize is how many records are read from etcd at a time.
const pageSize = 500

// Source returns all records, those of each chassis in sequence, as of one revision. It holds one page for
// each namespace in memory.
func (r *REST) Source() ledger.RecordSource {
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		sources, err := r.sources(ctx)
		if err != nil {
			return err
		}
		return ledger.Merge(sources...)(ctx, yield)
	}
}

// sources returns the records of each namespace, all of one revision. It goes by the keys, as what a record
// says of its namespace may have been tampered with.
func (r *REST) sources(ctx context.Context) (sources []ledger.RecordSource, err error) {
	prefix := r.prefix()
	predicate := everything(1)
	revision := ""
	for {
		list := &rack.AuditRecordList{}
		if err := r.store.Storage.GetList(ctx, prefix, storage.ListOptions{Recursive: true, Predicate: predicate}, list); err != nil {
			return nil, err
		}
		if len(list.Items) == 0 {
			return sources, nil
		}
		if list.Continue == "" {
			return append(sources, ledger.Records(&list.Items[0])), nil
		}
		if revision == "" {
			revision = list.ResourceVersion
		}
		next, number, err := storage.DecodeContinue(list.Continue, "")
		if err != nil {
			return nil, err
		}
		namespace, _, _ := strings.Cut(next, "/")
		sources = append(sources, r.namespaceSource(namespace, revision))
		// The next key that can exist behind those of a namespace, which all begin with "<namespace>/".
		if predicate.Continue, err = storage.EncodeContinue(prefix+namespace+"0", prefix, number); err != nil {
			return nil, err
		}
	}
}

func (r *REST) namespaceSource(namespace, revision string) ledger.RecordSource {
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		predicate := everything(pageSize)
		for {
			list := &rack.AuditRecordList{}
			options := storage.ListOptions{Recursive: true, Predicate: predicate}
			if predicate.Continue == "" {
				options.ResourceVersion, options.ResourceVersionMatch = revision, metav1.ResourceVersionMatchExact
			}
			if err := r.store.Storage.GetList(ctx, r.prefix()+namespace+"/", options, list); err != nil {
				return err
			}
			for i := range list.Items {
				if err := yield(&list.Items[i]); err != nil {
					return err
				}
			}
			if list.Continue == "" {
				return nil
			}
			predicate.Continue = list.Continue
		}
	}
}

func (r *REST) prefix() string {
	return strings.TrimSuffix(r.store.KeyRootFunc(context.Background()), "/") + "/"
}

func everything(limit int64) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), GetAttrs: GetAttrs, Limit: limit}
}
