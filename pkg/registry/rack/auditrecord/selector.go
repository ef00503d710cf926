package auditrecord

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/fields"

	"macrack.io/macrack/pkg/apis/rack"
)

// foldedLate is the maximum delay of the count of identical rejections after the first: a minute,
// and the time for the write.
const foldedLate = 2 * time.Minute

// Fields of records for selectors of the server. The scheme does not accept them from clients.
const (
	fieldRevision  = "revision"
	fieldWrittenAt = "writtenAt" // empty unless the record has the count of identical rejections
)

// attributes returns the fields of a record that selectors of clients and of the server can use.
func attributes(record *rack.AuditRecord) fields.Set {
	set := SelectableFields(record)
	set[fieldRevision] = record.ResourceVersion
	if record.Details.Count != 0 {
		set[fieldWrittenAt] = strconv.FormatInt(record.Time.UnixMicro(), 10)
	}
	return set
}

// SelectSince returns the selector of the records of a namespace whose first lease was created at a
// revision and a time.
func SelectSince(revision int64, at time.Time) fields.Selector {
	return sinceSelector{fields.Everything(), revision, at}
}

// IsSelected reports whether a selector of the server selects a record by the revision at which it
// was created. A nil selector selects all records.
func IsSelected(selector fields.Selector, created int64) bool {
	return selector == nil || selector.Matches(fields.Set{fieldRevision: strconv.FormatInt(created, 10)})
}

// sinceSelector selects by comparison, which the selectors of the fields package cannot.
type sinceSelector struct {
	fields.Selector
	revision int64
	at       time.Time
}

func (s sinceSelector) Empty() bool { return false }

func (s sinceSelector) DeepCopySelector() fields.Selector { return s }

func (s sinceSelector) Matches(f fields.Fields) bool {
	revision, err := strconv.ParseInt(f.Get(fieldRevision), 10, 64)
	if err != nil || revision < s.revision {
		return false
	}
	// The first of identical rejections is written at once, and the number of the others later.
	if !f.Has(fieldWrittenAt) {
		return true
	}
	micros, err := strconv.ParseInt(f.Get(fieldWrittenAt), 10, 64)
	return err == nil && time.UnixMicro(micros).After(s.at.Add(foldedLate))
}
