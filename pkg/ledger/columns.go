package ledger

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
)

// A column is a field of a record in a CSV file. Unset fields are empty.
type column struct {
	name string
	get  func(*rack.AuditRecord) string
	set  func(*rack.AuditRecord, string) error
}

// oldestColumns is the number of columns of the first version, which older files still have.
const oldestColumns = 39

// allColumns are the columns of a CSV file. A new one goes to the end, so that files of earlier
// versions can be read.
var allColumns = []column{
	text("namespace", func(r *rack.AuditRecord) *string { return &r.Namespace }),
	text("name", func(r *rack.AuditRecord) *string { return &r.Name }),
	microTime("time", func(r *rack.AuditRecord) *metav1.MicroTime { return &r.Time }),
	text("type", func(r *rack.AuditRecord) *string { return (*string)(&r.Type) }),
	text("actor.username", func(r *rack.AuditRecord) *string { return &r.Actor.Username }),
	text("actor.uid", func(r *rack.AuditRecord) *string { return &r.Actor.UID }),
	texts("actor.groups", func(r *rack.AuditRecord) *[]string { return &r.Actor.Groups }),
	text("requestID", func(r *rack.AuditRecord) *string { return &r.RequestID }),
	text("claimedRequestID", func(r *rack.AuditRecord) *string { return &r.ClaimedRequestID }),
	text("chassis.nodeName", func(r *rack.AuditRecord) *string { return &r.Chassis.NodeName }),
	text("chassis.serialNumber", func(r *rack.AuditRecord) *string { return &r.Chassis.SerialNumber }),
	text("tenant", func(r *rack.AuditRecord) *string { return &r.Tenant }),
	ofReference("lease.namespace", lease, func(r *rack.AuditReference) *string { return &r.Namespace }),
	ofReference("lease.name", lease, func(r *rack.AuditReference) *string { return &r.Name }),
	ofReference("lease.uid", lease, func(r *rack.AuditReference) *string { return (*string)(&r.UID) }),
	ofReference("instance.namespace", vm, func(r *rack.AuditReference) *string { return &r.Namespace }),
	ofReference("instance.name", vm, func(r *rack.AuditReference) *string { return &r.Name }),
	ofReference("instance.uid", vm, func(r *rack.AuditReference) *string { return (*string)(&r.UID) }),
	integer("sequence", func(r *rack.AuditRecord) *int64 { return &r.Sequence }),
	text("previousHash", func(r *rack.AuditRecord) *string { return &r.PreviousHash }),
	text("hash", func(r *rack.AuditRecord) *string { return &r.Hash }),
	moment("details.boundAt", func(r *rack.AuditRecord) **metav1.Time { return &r.Details.BoundAt }),
	moment("details.earliestReleaseAt", func(r *rack.AuditRecord) **metav1.Time { return &r.Details.EarliestReleaseAt }),
	moment("details.attemptedAt", func(r *rack.AuditRecord) **metav1.Time { return &r.Details.AttemptedAt }),
	length("details.remaining", func(r *rack.AuditRecord) **metav1.Duration { return &r.Details.Remaining }),
	moment("details.releasedAt", func(r *rack.AuditRecord) **metav1.Time { return &r.Details.ReleasedAt }),
	length("details.duration", func(r *rack.AuditRecord) **metav1.Duration { return &r.Details.Duration }),
	texts("details.nodeTaints", func(r *rack.AuditRecord) *[]string { return &r.Details.NodeTaints }),
	{
		name: "details.localVMs",
		get: func(r *rack.AuditRecord) string {
			if r.Details.LocalVMs == nil {
				return ""
			}
			return strconv.Itoa(int(*r.Details.LocalVMs))
		},
		set: func(r *rack.AuditRecord, s string) error {
			if s == "" {
				return nil
			}
			n, err := strconv.ParseInt(s, 10, 32)
			n32 := int32(n)
			r.Details.LocalVMs = &n32
			return err
		},
	},
	text("details.machineID", func(r *rack.AuditRecord) *string { return &r.Details.MachineID }),
	text("details.macAddress", func(r *rack.AuditRecord) *string { return &r.Details.MACAddress }),
	text("details.layer", func(r *rack.AuditRecord) *string { return (*string)(&r.Details.Layer) }),
	text("details.sourceNamespace", func(r *rack.AuditRecord) *string { return &r.Details.SourceNamespace }),
	text("details.reason", func(r *rack.AuditRecord) *string { return &r.Details.Reason }),
	text("details.message", func(r *rack.AuditRecord) *string { return &r.Details.Message }),
	integer("details.count", func(r *rack.AuditRecord) *int64 { return &r.Details.Count }),
	moment("details.previousEarliestReleaseAt", func(r *rack.AuditRecord) **metav1.Time { return &r.Details.PreviousEarliestReleaseAt }),
	ofRequester("details.requestedBy.username", func(a *rack.AuditActor) *string { return &a.Username }),
	ofRequester("details.requestedBy.uid", func(a *rack.AuditActor) *string { return &a.UID }),
	text("details.className", func(r *rack.AuditRecord) *string { return &r.Details.ClassName }),
	text("details.sku", func(r *rack.AuditRecord) *string { return &r.Details.SKU }),
	integer("details.witnessedSequence", func(r *rack.AuditRecord) *int64 { return &r.Details.WitnessedSequence }),
	text("details.witnessedHash", func(r *rack.AuditRecord) *string { return &r.Details.WitnessedHash }),
	moment("details.startGrantedAt", func(r *rack.AuditRecord) **metav1.Time { return &r.Details.StartGrantedAt }),
	moment("details.lostAfter", func(r *rack.AuditRecord) **metav1.Time { return &r.Details.LostAfter }),
}

func lease(r *rack.AuditRecord) **rack.AuditReference { return &r.Lease }
func vm(r *rack.AuditRecord) **rack.AuditReference    { return &r.Instance }

func text(name string, field func(*rack.AuditRecord) *string) column {
	return column{
		name: name,
		get:  func(r *rack.AuditRecord) string { return *field(r) },
		set:  func(r *rack.AuditRecord, s string) error { *field(r) = strings.Clone(s); return nil },
	}
}

func ofReference(name string, reference func(*rack.AuditRecord) **rack.AuditReference, field func(*rack.AuditReference) *string) column {
	return column{
		name: name,
		get: func(r *rack.AuditRecord) string {
			if *reference(r) == nil {
				return ""
			}
			return *field(*reference(r))
		},
		set: func(r *rack.AuditRecord, s string) error {
			if *reference(r) == nil {
				*reference(r) = &rack.AuditReference{}
			}
			*field(*reference(r)) = strings.Clone(s)
			return nil
		},
	}
}

func ofRequester(name string, field func(*rack.AuditActor) *string) column {
	return column{
		name: name,
		get: func(r *rack.AuditRecord) string {
			if r.Details.RequestedBy == nil {
				return ""
			}
			return *field(r.Details.RequestedBy)
		},
		set: func(r *rack.AuditRecord, s string) error {
			if s == "" {
				return nil
			}
			if r.Details.RequestedBy == nil {
				r.Details.RequestedBy = &rack.AuditActor{}
			}
			*field(r.Details.RequestedBy) = strings.Clone(s)
			return nil
		},
	}
}

func texts(name string, field func(*rack.AuditRecord) *[]string) column {
	return column{
		name: name,
		get: func(r *rack.AuditRecord) string {
			if len(*field(r)) == 0 {
				return ""
			}
			var b strings.Builder
			encoder := json.NewEncoder(&b)
			encoder.SetEscapeHTML(false)
			_ = encoder.Encode(*field(r)) // Neither encoding strings nor writing to a builder can fail.
			return strings.TrimSuffix(b.String(), "\n")
		},
		set: func(r *rack.AuditRecord, s string) error {
			if s == "" {
				return nil
			}
			return json.Unmarshal([]byte(s), field(r))
		},
	}
}

func integer(name string, field func(*rack.AuditRecord) *int64) column {
	return column{
		name: name,
		get: func(r *rack.AuditRecord) string {
			if *field(r) == 0 {
				return ""
			}
			return strconv.FormatInt(*field(r), 10)
		},
		set: func(r *rack.AuditRecord, s string) (err error) {
			if s != "" {
				*field(r), err = strconv.ParseInt(s, 10, 64)
			}
			return err
		},
	}
}

func microTime(name string, field func(*rack.AuditRecord) *metav1.MicroTime) column {
	return column{
		name: name,
		get: func(r *rack.AuditRecord) string {
			if field(r).IsZero() {
				return ""
			}
			return field(r).UTC().Format(metav1.RFC3339Micro)
		},
		set: func(r *rack.AuditRecord, s string) (err error) {
			if s != "" {
				field(r).Time, err = time.Parse(metav1.RFC3339Micro, s)
			}
			return err
		},
	}
}

func moment(name string, field func(*rack.AuditRecord) **metav1.Time) column {
	return column{
		name: name,
		get: func(r *rack.AuditRecord) string {
			if *field(r) == nil {
				return ""
			}
			return (*field(r)).UTC().Format(time.RFC3339)
		},
		set: func(r *rack.AuditRecord, s string) error {
			if s == "" {
				return nil
			}
			t, err := time.Parse(time.RFC3339, s)
			*field(r) = &metav1.Time{Time: t}
			return err
		},
	}
}

func length(name string, field func(*rack.AuditRecord) **metav1.Duration) column {
	return column{
		name: name,
		get: func(r *rack.AuditRecord) string {
			if *field(r) == nil {
				return ""
			}
			return (*field(r)).Duration.String()
		},
		set: func(r *rack.AuditRecord, s string) error {
			if s == "" {
				return nil
			}
			d, err := time.ParseDuration(s)
			*field(r) = &metav1.Duration{Duration: d}
			return err
		},
	}
}

// GuardCell prevents spreadsheets from interpreting a text as a formula; unguard is its inverse.
func GuardCell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r'", rune(s[0])) {
		return "'" + s
	}
	return s
}

func unguard(s string) string { return strings.TrimPrefix(s, "'") }
