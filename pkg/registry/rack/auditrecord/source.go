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
		namespaces, revision, err := r.namespaces(ctx)
		if err != nil {
			return err
		}
		var sources []ledger.RecordSource
		for _, namespace := range namespaces {
			sources = append(sources, r.namespaceSource(namespace, revision))
		}
		return ledger.Merge(sources...)(ctx, yield)
	}
}

// namespaces returns the namespaces that have records, and the revision at which they do.
func (r *REST) namespaces(ctx context.Context) (namespaces []string, revision string, err error) {
	prefix := r.prefix()
	after := ""
	for {
		list := &rack.AuditRecordList{}
		predicate := everything(1)
		if after != "" {
			// The next key that can exist behind those of a namespace, which all begin with "<namespace>/".
			if predicate.Continue, err = storage.EncodeContinue(prefix+after+"0", prefix, revisionNumber(revision)); err != nil {
				return nil, "", err
			}
		}
		if err := r.store.Storage.GetList(ctx, prefix, storage.ListOptions{Recursive: true, Predicate: predicate}, list); err != nil {
			return nil, "", err
		}
		if revision == "" {
			revision = list.ResourceVersion
		}
		if len(list.Items) == 0 {
			return namespaces, revision, nil
		}
		after = list.Items[0].Namespace
		namespaces = append(namespaces, after)
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

func revisionNumber(revision string) int64 {
	n, err := storage.APIObjectVersioner{}.ParseResourceVersion(revision)
	if err != nil {
		return 0
	}
	return int64(n)
}
