package scalar

import (
	"encoding/json"
	"errors"
	"regexp"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Quantity is an amount such as 4, 8Gi or 512G. Its suffixes are Ki, Mi, Gi, Ti and Pi for powers
// of 1024, and k, M, G, T and P for powers of 1000. A number without a suffix may also be given as
// a JSON number.
//
// +protobuf.options.marshal=false
// +protobuf.as=ProtoQuantity
// +protobuf.options.(gogoproto.goproto_stringer)=false
type Quantity struct {
	// Text is the amount as it was written. It is empty if unset.
	Text string `json:"text" protobuf:"-"`
	// Number is true if the amount was written as a JSON number.
	Number bool `json:"number" protobuf:"-"`
}

// NewQuantity returns a Quantity of the value, in the canonical form of the format.
func NewQuantity(value int64, format resource.Format) Quantity {
	return Quantity{Text: resource.NewQuantity(value, format).String()}
}

// MustParse returns a Quantity with the text, which must be an amount.
func MustParse(text string) Quantity {
	q := Quantity{Text: text}
	if _, err := q.Parse(); err != nil {
		panic(text + ": " + err.Error())
	}
	return q
}

// Value returns the amount. It is 0 if unset, and for a text that validation refuses.
func (q Quantity) Value() resource.Quantity {
	value, err := q.Parse()
	if err != nil {
		return resource.Quantity{}
	}
	return value
}

// Int64 returns the amount as a whole number, rounded up.
func (q Quantity) Int64() int64 {
	value := q.Value()
	return value.Value()
}

// amount has an exponent of two digits at most: arithmetic with more takes a long time.
var amount = regexp.MustCompile(`^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$`)

var errQuantity = errors.New("must be an amount such as 4, 8Gi or 512G; accepted suffixes: Ki, Mi, Gi, Ti, Pi (powers of 1024), k, M, G, T, P (powers of 1000)")

// Parse returns the amount, which is 0 if unset, or an error that names the accepted suffixes.
func (q Quantity) Parse() (resource.Quantity, error) {
	if q.Text == "" && !q.Number {
		return resource.Quantity{}, nil
	}
	if len(q.Text) > maxText || !amount.MatchString(q.Text) {
		return resource.Quantity{}, errQuantity
	}
	value, err := resource.ParseQuantity(q.Text)
	if err != nil {
		return resource.Quantity{}, errQuantity
	}
	return value, nil
}

// IsZero reports whether the amount is unset. JSON omits such a field.
func (q Quantity) IsZero() bool { return q == Quantity{} }

// String returns the text.
func (q Quantity) String() string { return q.Text }

// UnmarshalJSON implements json.Unmarshaler. A value that is neither a number nor a non-empty
// string is kept for validation to refuse.
func (q *Quantity) UnmarshalJSON(data []byte) error {
	*q = Quantity{}
	if string(data) == "null" {
		return nil
	}
	if json.Unmarshal(data, &q.Text) != nil || q.Text == "" {
		q.Text, q.Number = string(data), isNumber(string(data))
	}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (q Quantity) MarshalJSON() ([]byte, error) {
	if q.Number && isNumber(q.Text) {
		return []byte(q.Text), nil
	}
	return json.Marshal(q.Text)
}

// ToUnstructured implements value.UnstructuredConverter.
func (q Quantity) ToUnstructured() any {
	if !q.Number {
		return q.Text
	}
	if n, err := json.Number(q.Text).Int64(); err == nil {
		return n
	}
	n, err := json.Number(q.Text).Float64()
	if err != nil {
		return q.Text
	}
	return n
}

// isNumber reports whether the text is a JSON number that readers can represent.
func isNumber(text string) bool {
	var n json.Number
	if json.Unmarshal([]byte(text), &n) != nil || n.String() != text {
		return false
	}
	_, err := n.Float64()
	return err == nil
}

// OpenAPISchemaType returns the type in the OpenAPI schema.
func (Quantity) OpenAPISchemaType() []string { return []string{"string"} }

// OpenAPISchemaFormat returns the format in the OpenAPI schema. Clients accept a string or a
// number.
func (Quantity) OpenAPISchemaFormat() string { return "int-or-string" }

// OpenAPIV3OneOfTypes returns the types in the OpenAPI v3 schema.
func (Quantity) OpenAPIV3OneOfTypes() []string { return []string{"string", "number"} }
