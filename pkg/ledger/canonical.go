package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
)

// Hash returns the hexadecimal hash of a record. The hash field itself is not hashed.
func Hash(record *rack.AuditRecord) string {
	sum := sha256.Sum256(AppendCanonical(make([]byte, 0, 1024), record))
	return hex.EncodeToString(sum[:])
}

// AppendCanonical appends the hashed form of a record to b: canonical JSON, as described in the
// package comment.
func AppendCanonical(b []byte, r *rack.AuditRecord) []byte {
	b = appendActor(append(b, `{"actor":`...), &r.Actor)
	b = append(b, `,"chassis":{`...)
	first := true
	b = appendString(b, &first, "nodeName", r.Chassis.NodeName)
	b = appendString(b, &first, "serialNumber", r.Chassis.SerialNumber)

	b = append(b, '}')
	first = false
	b = appendString(b, &first, "claimedRequestID", r.ClaimedRequestID)
	b = append(b, `,"details":{`...)
	b = appendDetails(b, &r.Details)
	b = append(b, '}')

	b = appendReference(b, "instance", r.Instance)
	b = appendReference(b, "lease", r.Lease)
	b = appendString(b, &first, "previousHash", r.PreviousHash)
	b = appendString(b, &first, "requestID", r.RequestID)
	b = appendInt(b, &first, "sequence", r.Sequence)
	b = appendString(b, &first, "tenant", r.Tenant)
	b = append(b, `,"time":`...)
	if r.Time.IsZero() {
		b = append(b, "null"...)
	} else {
		b = appendTime(b, r.Time.Time, true)
	}
	b = append(b, `,"type":`...)
	b = appendQuoted(b, string(r.Type))
	return append(b, '}')
}

func appendDetails(b []byte, d *rack.AuditDetails) []byte {
	first := true
	b = appendSeconds(b, &first, "attemptedAt", d.AttemptedAt)
	b = appendSeconds(b, &first, "boundAt", d.BoundAt)
	b = appendString(b, &first, "className", d.ClassName)
	b = appendInt(b, &first, "count", d.Count)
	b = appendDuration(b, &first, "duration", d.Duration)
	b = appendSeconds(b, &first, "earliestReleaseAt", d.EarliestReleaseAt)
	b = appendString(b, &first, "layer", string(d.Layer))
	if d.LocalVMs != nil {
		b = strconv.AppendInt(appendKey(b, &first, "localVMs"), int64(*d.LocalVMs), 10)
	}
	b = appendSeconds(b, &first, "lostAfter", d.LostAfter)
	b = appendString(b, &first, "macAddress", d.MACAddress)
	b = appendString(b, &first, "machineID", d.MachineID)
	b = appendString(b, &first, "message", d.Message)
	b = appendStrings(b, &first, "nodeTaints", d.NodeTaints)
	b = appendSeconds(b, &first, "previousEarliestReleaseAt", d.PreviousEarliestReleaseAt)
	b = appendString(b, &first, "reason", d.Reason)
	b = appendSeconds(b, &first, "releasedAt", d.ReleasedAt)
	b = appendDuration(b, &first, "remaining", d.Remaining)
	if d.RequestedBy != nil {
		b = appendActor(appendKey(b, &first, "requestedBy"), d.RequestedBy)
	}
	b = appendString(b, &first, "sku", d.SKU)
	b = appendString(b, &first, "sourceNamespace", d.SourceNamespace)
	b = appendSeconds(b, &first, "startGrantedAt", d.StartGrantedAt)
	b = appendString(b, &first, "witnessedHash", d.WitnessedHash)
	return appendInt(b, &first, "witnessedSequence", d.WitnessedSequence)
}

func appendActor(b []byte, a *rack.AuditActor) []byte {
	first := true
	b = appendStrings(append(b, '{'), &first, "groups", a.Groups)
	b = appendString(b, &first, "uid", a.UID)
	return append(appendString(b, &first, "username", a.Username), '}')
}

func appendReference(b []byte, key string, r *rack.AuditReference) []byte {
	if r == nil {
		return b
	}
	first := false
	b = append(appendKey(b, &first, key), '{')
	first = true
	b = appendString(b, &first, "name", r.Name)
	b = appendString(b, &first, "namespace", r.Namespace)
	b = appendString(b, &first, "uid", string(r.UID))
	return append(b, '}')
}

func appendKey(b []byte, first *bool, key string) []byte {
	if !*first {
		b = append(b, ',')
	}
	*first = false
	b = append(b, '"')
	b = append(b, key...)
	return append(b, '"', ':')
}

func appendString(b []byte, first *bool, key, s string) []byte {
	if s == "" {
		return b
	}
	return appendQuoted(appendKey(b, first, key), s)
}

func appendStrings(b []byte, first *bool, key string, list []string) []byte {
	if len(list) == 0 {
		return b
	}
	b = append(appendKey(b, first, key), '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, s)
	}
	return append(b, ']')
}

func appendInt(b []byte, first *bool, key string, n int64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendInt(appendKey(b, first, key), n, 10)
}

func appendSeconds(b []byte, first *bool, key string, t *metav1.Time) []byte {
	if t == nil {
		return b
	}
	b = appendKey(b, first, key)
	if t.IsZero() {
		return append(b, "null"...)
	}
	return appendTime(b, t.Time, false)
}

func appendDuration(b []byte, first *bool, key string, d *metav1.Duration) []byte {
	if d == nil {
		return b
	}
	return appendQuoted(appendKey(b, first, key), d.Duration.String())
}

// appendTime appends t in RFC 3339 and UTC, with a fraction of six digits or none.
func appendTime(b []byte, t time.Time, micros bool) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	b = append(b, '"')
	if year < 0 || year > 9999 { // Not a record of the server. Its hash must not equal that of another year.
		b = strconv.AppendInt(b, int64(year), 10)
	} else {
		b = appendDigits(b, year, 4)
	}
	b = appendDigits(append(b, '-'), int(month), 2)
	b = appendDigits(append(b, '-'), day, 2)
	b = appendDigits(append(b, 'T'), hour, 2)
	b = appendDigits(append(b, ':'), minute, 2)
	b = appendDigits(append(b, ':'), second, 2)
	if micros {
		b = appendDigits(append(b, '.'), t.Nanosecond()/1000, 6)
	}
	return append(b, 'Z', '"')
}

func appendDigits(b []byte, n, width int) []byte {
	var digits [8]byte
	for i := width - 1; i >= 0; i-- {
		digits[i] = byte('0' + n%10)
		n /= 10
	}
	return append(b, digits[:width]...)
}

func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, `\b`...)
		case '\f':
			b = append(b, `\f`...)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			const hexDigits = "0123456789abcdef"
			b = append(b, `\u00`...)
			b = append(b, hexDigits[c>>4], hexDigits[c&15])
		}
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}
