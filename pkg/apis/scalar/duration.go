package scalar

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// maxText is the maximum length of a duration or a quantity, in bytes.
const maxText = 64

const day = 24 * time.Hour

// Duration is a length of time such as 24h, 1h30m or 3d. The units are d (24 hours), h, m and s.
//
// +protobuf.options.marshal=false
// +protobuf.as=ProtoDuration
// +protobuf.options.(gogoproto.goproto_stringer)=false
type Duration struct {
	// Text is the duration as it was written.
	Text string `json:"text" protobuf:"-"`
}

// NewDuration returns a Duration of d, without the units that are zero: 24h, not 24h0m0s.
func NewDuration(d time.Duration) *Duration {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return &Duration{Text: text}
}

// NewDays returns a Duration of d in whole days: 400d.
func NewDays(d time.Duration) *Duration { return &Duration{Text: strconv.Itoa(int(d/day)) + "d"} }

// Value returns the length of time. It is 0 for nil, and for a text that validation refuses.
func (d *Duration) Value() time.Duration {
	if d == nil {
		return 0
	}
	value, err := d.Parse()
	if err != nil {
		return 0
	}
	return value
}

// Parse returns the length of time, or an error that names the accepted units.
func (d *Duration) Parse() (time.Duration, error) {
	if len(d.Text) > maxText {
		return 0, errDuration
	}
	days, rest, found := strings.Cut(d.Text, "d")
	if !found {
		return parseHours(d.Text)
	}
	if strings.Trim(days, "+-.0123456789") != "" {
		return 0, errDuration
	}
	value, err := parseHours(days + "h")
	if err != nil || value > math.MaxInt64/24 || value < math.MinInt64/24 {
		return 0, errDuration
	}
	value *= 24
	if rest == "" {
		return value, nil
	}
	if strings.HasPrefix(rest, "+") || strings.HasPrefix(rest, "-") {
		return 0, errDuration
	}
	part, err := parseHours(rest)
	if err != nil {
		return 0, err
	}
	if strings.HasPrefix(days, "-") {
		part = -part
	}
	sum := value + part
	if (sum > value) != (part > 0) && part != 0 {
		return 0, errDuration
	}
	return sum, nil
}

func parseHours(text string) (time.Duration, error) {
	value, err := time.ParseDuration(text)
	if err != nil {
		return 0, errDuration
	}
	return value, nil
}

var errDuration = errors.New("must be a duration such as 90s, 24h, 1h30m or 3d; accepted units: d (days of 24 hours), h, m, s")

// String returns the text.
func (d Duration) String() string { return d.Text }

// UnmarshalJSON implements json.Unmarshaler. A value that is not a string is kept for validation to
// refuse.
func (d *Duration) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	if json.Unmarshal(data, &d.Text) != nil {
		d.Text = string(data)
	}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.Text) }

// ToUnstructured implements value.UnstructuredConverter.
func (d Duration) ToUnstructured() any { return d.Text }

// OpenAPISchemaType returns the type in the OpenAPI schema.
func (Duration) OpenAPISchemaType() []string { return []string{"string"} }

// OpenAPISchemaFormat returns the format in the OpenAPI schema: none.
func (Duration) OpenAPISchemaFormat() string { return "" }
