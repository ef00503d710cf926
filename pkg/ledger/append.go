package ledger

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/audit"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/printable"
)

const (
	// SystemNamespace is the namespace of the records that do not belong to a single tenant.
	SystemNamespace = "macrack-system"

	// HeadKind is the kind of the index keys with the heads of the chains; their IDs are the names
	// of the chains.
	HeadKind = "ledger-head"

	tenantPrefix   = "tenant-"
	sequenceDigits = 12

	// maxText is the maximum number of bytes of a text in a record, and maxTexts the maximum number
	// of texts in a list.
	maxText  = 4096
	maxTexts = 64

	// maxRequestID is the maximum number of bytes of the ID of a request.
	maxRequestID = 64
)

var auditRecords = schema.GroupResource{Group: rack.GroupName, Resource: "auditrecords"}

// Tx has the methods of a transaction that the ledger needs. Their errors are returned unchanged.
type Tx interface {
	// GetKey reads an index key and makes the transaction depend on it.
	GetKey(ctx context.Context, kind, id string) (value []byte, exists bool, err error)
	// PutKey makes the transaction write an index key that GetKey has read.
	PutKey(kind, id string, value []byte) error
	// Create makes the transaction create an object.
	Create(ctx context.Context, resource schema.GroupResource, obj runtime.Object) error
}

// Head is the end of a chain.
type Head struct {
	Sequence int64
	Hash     string
	Time     time.Time
}

// Encode returns the value of the head's index key: sequence, hash and microseconds since 1970.
func (h Head) Encode() []byte {
	return fmt.Appendf(nil, "%d %s %d", h.Sequence, h.Hash, h.Time.UnixMicro())
}

// ErrNotHead is the error of a value that is not the head of a chain.
var ErrNotHead = errors.New("is not the head of a chain")

// DecodeHead is the inverse of Encode. Any other value is an error.
func DecodeHead(value []byte) (Head, error) {
	var head Head
	var micros int64
	_, err := fmt.Sscanf(string(value), "%d %s %d", &head.Sequence, &head.Hash, &micros)
	head.Time = time.UnixMicro(micros).UTC()
	if err != nil || head.Sequence < 1 || !isHash(head.Hash) || !bytes.Equal(head.Encode(), value) {
		return Head{}, fmt.Errorf("ledger: %q %w", value, ErrNotHead)
	}
	return head, nil
}

func isHash(s string) bool {
	sum, err := hex.DecodeString(s)
	return err == nil && len(sum) == sha256.Size && strings.ToLower(s) == s
}

// Chain returns the chain of a record: that of its Mac, or that of its tenant for a record without
// a Mac.
func Chain(record *rack.AuditRecord) string {
	if serial := record.Chassis.SerialNumber; serial != "" {
		return ChassisChain(serial)
	}
	if record.Tenant != "" {
		return tenantPrefix + record.Tenant
	}
	return tenantPrefix + SystemNamespace
}

// ChassisChain returns the chain of the Mac with a serial number.
func ChassisChain(serialNumber string) string { return strings.ToLower(serialNumber) }

// Namespace returns the namespace in which a record is stored.
func Namespace(record *rack.AuditRecord) string {
	if record.Tenant == "" || record.Type == rack.CrossTenantRejected {
		return SystemNamespace
	}
	return record.Tenant
}

// Name returns the name of the record of a chain with a sequence number.
func Name(chain string, sequence int64) string {
	return fmt.Sprintf("%s-%0*d", chain, sequenceDigits, sequence)
}

// Now returns the time of the next record of a Mac: the current time, but not before the last
// record of the Mac. A decision by this time agrees with its record if both are in one transaction
// and the record is appended with the clock At this time.
func Now(ctx context.Context, tx Tx, clock clock.PassiveClock, serialNumber string) (time.Time, error) {
	head, err := readHead(ctx, tx, ChassisChain(serialNumber))
	if err != nil {
		return time.Time{}, err
	}
	return head.next(clock), nil
}

// At returns a clock that is stopped at a time. A record that is appended with it has the time of
// the decision, as returned by Now, and not a later one.
func At(t time.Time) clock.PassiveClock { return standing(t) }

type standing time.Time

func (s standing) Now() time.Time                  { return time.Time(s) }
func (s standing) Since(t time.Time) time.Duration { return time.Time(s).Sub(t) }

// Append makes the transaction create record as the next of its chain. It sets the time, the actor,
// the ID of the request, the place in the chain and the metadata. The actor is kept if ctx has no
// user, and an existing UID is kept. A transaction can have one record.
func Append(ctx context.Context, tx Tx, clock clock.PassiveClock, record *rack.AuditRecord) error {
	head, err := readHead(ctx, tx, Chain(record))
	if err != nil {
		return err
	}
	now := head.next(clock)
	record.ObjectMeta = metav1.ObjectMeta{
		Namespace:         Namespace(record),
		Name:              Name(Chain(record), head.Sequence+1),
		UID:               cmp.Or(record.UID, uuid.NewUUID()),
		CreationTimestamp: metav1.NewTime(now.Truncate(time.Second)),
	}
	record.Time = metav1.NewMicroTime(now)
	identify(ctx, record)
	clean(record)
	record.Sequence = head.Sequence + 1
	record.PreviousHash = head.Hash
	record.Hash = Hash(record)
	if err := tx.PutKey(HeadKind, Chain(record), Head{record.Sequence, record.Hash, now}.Encode()); err != nil {
		return err
	}
	return tx.Create(ctx, auditRecords, record)
}

// A ReadingTx can also read objects.
type ReadingTx interface {
	Tx
	// Get reads an object and makes the transaction depend on it.
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string, into runtime.Object) error
}

// AppendOnce returns a plan that appends record, unless an earlier AppendOnce with an unknown
// outcome has appended it.
func AppendOnce(clock clock.PassiveClock, record *rack.AuditRecord) func(ctx context.Context, tx ReadingTx) error {
	earlier := record.ObjectMeta
	return func(ctx context.Context, tx ReadingTx) error {
		if earlier.UID != "" && earlier.Name != "" {
			stored := &rack.AuditRecord{}
			switch err := tx.Get(ctx, auditRecords, earlier.Namespace, earlier.Name, stored); {
			case err == nil && stored.UID == earlier.UID:
				return nil
			case err != nil && !apierrors.IsNotFound(err):
				return err
			}
		}
		return Append(ctx, tx, clock, record)
	}
}

// ReadHead returns the head of a chain; the zero value if the chain has no records.
func ReadHead(ctx context.Context, tx Tx, chain string) (Head, error) {
	return readHead(ctx, tx, chain)
}

// HashAt returns the hash of a record of a chain that is in one of some namespaces. It returns an
// empty string if the record has expired, and a text that is no hash if the record is missing.
func HashAt(ctx context.Context, tx ReadingTx, chain string, sequence int64, namespaces ...string) (string, error) {
	value, exists, err := tx.GetKey(ctx, CheckpointKind, chain)
	if err != nil {
		return "", err
	}
	if exists {
		checkpoint, err := DecodeHead(value)
		switch {
		case err != nil || sequence < checkpoint.Sequence:
			return "", err
		case sequence == checkpoint.Sequence:
			return checkpoint.Hash, nil
		}
	}
	record, err := FindRecord(ctx, tx, chain, sequence, namespaces...)
	if err != nil {
		return "", err
	}
	if record == nil {
		return "missing", nil
	}
	return record.Hash, nil
}

// FindRecord returns the record of a chain with a sequence number, or nil if it is in none of some
// namespaces.
func FindRecord(ctx context.Context, tx ReadingTx, chain string, sequence int64, namespaces ...string) (*rack.AuditRecord, error) {
	for i, namespace := range namespaces {
		if namespace == "" || slices.Contains(namespaces[:i], namespace) {
			continue
		}
		record := &rack.AuditRecord{}
		err := tx.Get(ctx, auditRecords, namespace, Name(chain, sequence), record)
		if err == nil {
			return record, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return nil, nil
}

func readHead(ctx context.Context, tx Tx, chain string) (Head, error) {
	value, exists, err := tx.GetKey(ctx, HeadKind, chain)
	if err != nil || !exists {
		return Head{}, err
	}
	return DecodeHead(value)
}

func (h Head) next(clock clock.PassiveClock) time.Time {
	now := clock.Now().UTC().Truncate(time.Microsecond)
	if now.Before(h.Time) {
		return h.Time
	}
	return now
}

// claimedRequestID is the context key of the request ID that a client has chosen.
type claimedRequestID struct{}

// WithClaimedRequestID returns a context in which records have the ID of the incoming request as
// claimed.
func WithClaimedRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, claimedRequestID{}, id)
}

// identify sets the actor and the request IDs of a record from the request of ctx, if there is one.
func identify(ctx context.Context, record *rack.AuditRecord) {
	if user, ok := genericapirequest.UserFrom(ctx); ok {
		record.Actor = rack.AuditActor{Username: user.GetName(), UID: user.GetUID(), Groups: user.GetGroups()}
	}
	if id := audit.GetAuditIDTruncated(ctx); id != "" {
		record.RequestID = id
	}
	if id, ok := ctx.Value(claimedRequestID{}).(string); ok {
		record.ClaimedRequestID = id
	}
}

// clean makes the texts of a record valid and visible, so that every encoding reads back the same
// and readers see every character.
func clean(record *rack.AuditRecord) {
	d := &record.Details
	for _, s := range []*string{
		&record.Chassis.NodeName, &record.Chassis.SerialNumber, &record.Tenant,
		&d.MachineID, &d.MACAddress, (*string)(&d.Layer), &d.SourceNamespace, &d.Reason, &d.ClassName, &d.SKU, &d.WitnessedHash,
	} {
		*s = printable.Line(*s, maxText)
	}
	record.RequestID = printable.ASCII(record.RequestID, maxRequestID)
	record.ClaimedRequestID = printable.ASCII(record.ClaimedRequestID, maxRequestID)
	record.Actor = cleanActor(record.Actor)
	d.RequestedBy = cleanRequester(d.RequestedBy)
	d.Message = printable.Lines(d.Message, maxText)
	d.NodeTaints = cleanTexts(d.NodeTaints)
	record.Lease = cleanReference(record.Lease)
	record.Instance = cleanReference(record.Instance)
}

func cleanActor(a rack.AuditActor) rack.AuditActor {
	return rack.AuditActor{Username: printable.Line(a.Username, maxText), UID: printable.Line(a.UID, maxText), Groups: cleanTexts(a.Groups)}
}

func cleanRequester(a *rack.AuditActor) *rack.AuditActor {
	if a == nil || a.Username == "" && a.UID == "" {
		return nil
	}
	return &rack.AuditActor{Username: printable.Line(a.Username, maxText), UID: printable.Line(a.UID, maxText)}
}

func cleanTexts(texts []string) []string {
	if len(texts) == 0 {
		return nil
	}
	cleaned := make([]string, 0, min(len(texts), maxTexts))
	for _, s := range texts[:min(len(texts), maxTexts)] {
		cleaned = append(cleaned, printable.Line(s, maxText))
	}
	return cleaned
}

func cleanReference(r *rack.AuditReference) *rack.AuditReference {
	if r == nil || *r == (rack.AuditReference{}) {
		return nil
	}
	return &rack.AuditReference{Namespace: printable.Line(r.Namespace, maxText), Name: printable.Line(r.Name, maxText), UID: types.UID(printable.Line(string(r.UID), maxText))}
}

// SplitName returns the chain and the sequence number in the name of a record, and whether the name
// is valid.
func SplitName(name string) (chain string, sequence int64, ok bool) {
	dash := len(name) - sequenceDigits - 1
	if dash < 1 || name[dash] != '-' {
		return "", 0, false
	}
	for _, digit := range []byte(name[dash+1:]) {
		if digit < '0' || digit > '9' {
			return "", 0, false
		}
		sequence = sequence*10 + int64(digit-'0')
	}
	return name[:dash], sequence, sequence > 0
}
