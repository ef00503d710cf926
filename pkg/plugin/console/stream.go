package console

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"k8s.io/utils/clock"
)

const (
	// settle is the time in which several changes are sent at once.
	settle = 25 * time.Millisecond
	// keepAlive is the time after which an idle stream sends a comment, which shows whether the
	// page is still there.
	keepAlive = 10 * time.Second
	// patience is the time for which a write may block. A page that is slower loses its stream, and
	// begins again with all items.
	patience = 5 * time.Second
	// maxStreams is the number of pages that can be open at once.
	maxStreams = 16
)

// streams serves a model as server-sent events.
type streams struct {
	model *model
	clock clock.WithTicker
	// places has an element for each open stream.
	places chan struct{}
	// patience is the time for which a write may block.
	patience time.Duration
}

func newStreams(m *model, clock clock.WithTicker) *streams {
	return &streams{model: m, clock: clock, places: make(chan struct{}, maxStreams), patience: patience}
}

// ServeHTTP sends all items, and then the changes, until the page or the server goes away.
func (s *streams) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	default:
		http.Error(w, "too many pages are open; close some", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	r, all := s.model.follow()
	defer r.close()
	out := &sender{w: w, control: http.NewResponseController(w), clock: s.clock, patience: s.patience}
	if err := out.send("state", all); err != nil {
		return
	}
	for {
		select {
		case <-req.Context().Done():
			return
		case <-s.clock.After(keepAlive):
			if err := out.comment(); err != nil {
				return
			}
			continue
		case <-r.ready:
		}
		select {
		case <-req.Context().Done():
			return
		case <-s.clock.After(settle):
		}
		if err := out.send("change", r.take()); err != nil {
			return
		}
	}
}

// A sender writes server-sent events. It fails if a write takes too long.
type sender struct {
	w        http.ResponseWriter
	control  *http.ResponseController
	clock    clock.PassiveClock
	patience time.Duration
}

func (s *sender) send(event string, message Message) error {
	var b bytes.Buffer
	b.WriteString("event: " + event + "\ndata: ")
	if err := json.NewEncoder(&b).Encode(message); err != nil { // one line
		return err
	}
	b.WriteString("\n")
	return s.write(b.Bytes())
}

func (s *sender) comment() error { return s.write([]byte(":\n\n")) }

func (s *sender) write(data []byte) error {
	if err := s.control.SetWriteDeadline(s.clock.Now().Add(s.patience)); err != nil {
		return err
	}
	if _, err := s.w.Write(data); err != nil {
		return err
	}
	return s.control.Flush()
}
