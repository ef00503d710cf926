package scalar

import "time"

// ProtoDuration is the encoding of a Duration in protobuf. The value is in the field of
// metav1.Duration. Servers of earlier versions, which do not know the text, can therefore read it,
// and their objects can be read.
type ProtoDuration struct {
	// nanoseconds is the length of time, or 0 if the text is not a duration.
	Nanoseconds int64 `json:"nanoseconds" protobuf:"varint,1,opt,name=nanoseconds"`
	// text is the duration as it was written. If it is empty, nanoseconds is used.
	Text string `json:"text" protobuf:"bytes,2,opt,name=text"`
}

// ProtoQuantity is the encoding of a Quantity in protobuf. It adds a field to that of
// resource.Quantity.
type ProtoQuantity struct {
	// text is the amount as it was written.
	Text string `json:"text" protobuf:"bytes,1,opt,name=text"`
	// number is true if the amount was written as a JSON number.
	Number bool `json:"number" protobuf:"varint,2,opt,name=number"`
}

func (d *Duration) proto() *ProtoDuration {
	if d == nil {
		return &ProtoDuration{}
	}
	return &ProtoDuration{Nanoseconds: int64(d.Value()), Text: d.Text}
}

// Size implements the protobuf interface.
func (d *Duration) Size() int { return d.proto().Size() }

// Marshal implements the protobuf interface.
func (d *Duration) Marshal() ([]byte, error) { return d.proto().Marshal() }

// MarshalTo implements the protobuf interface.
func (d *Duration) MarshalTo(data []byte) (int, error) { return d.proto().MarshalTo(data) }

// MarshalToSizedBuffer implements the protobuf interface.
func (d *Duration) MarshalToSizedBuffer(data []byte) (int, error) {
	return d.proto().MarshalToSizedBuffer(data)
}

// Unmarshal implements the protobuf interface.
func (d *Duration) Unmarshal(data []byte) error {
	p := ProtoDuration{}
	if err := p.Unmarshal(data); err != nil {
		return err
	}
	*d = Duration{Text: p.Text}
	if p.Text == "" {
		*d = *NewDuration(time.Duration(p.Nanoseconds))
	}
	return nil
}

func (q *Quantity) proto() *ProtoQuantity {
	if q == nil {
		return &ProtoQuantity{}
	}
	return &ProtoQuantity{Text: q.Text, Number: q.Number}
}

// Size implements the protobuf interface.
func (q *Quantity) Size() int { return q.proto().Size() }

// Marshal implements the protobuf interface.
func (q *Quantity) Marshal() ([]byte, error) { return q.proto().Marshal() }

// MarshalTo implements the protobuf interface.
func (q *Quantity) MarshalTo(data []byte) (int, error) { return q.proto().MarshalTo(data) }

// MarshalToSizedBuffer implements the protobuf interface.
func (q *Quantity) MarshalToSizedBuffer(data []byte) (int, error) {
	return q.proto().MarshalToSizedBuffer(data)
}

// Unmarshal implements the protobuf interface. Only a text that is a number in JSON stays one.
func (q *Quantity) Unmarshal(data []byte) error {
	p := ProtoQuantity{}
	if err := p.Unmarshal(data); err != nil {
		return err
	}
	*q = Quantity{Text: p.Text, Number: p.Number && isNumber(p.Text)}
	return nil
}
