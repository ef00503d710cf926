package metrics

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/rules"
)

func body(m *Metrics) string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

func TestMac(t *testing.T) {
	for range 2 { // two agents in a process
		m := New()
		listed := func() ([]images.Cached, error) {
			return []images.Cached{{Name: "a", Bytes: 100}, {Name: "b", Bytes: 50}}, nil
		}
		m.Register(Sources{
			Slots: func() [rules.MaxVMsPerMac]slots.Status {
				return [rules.MaxVMsPerMac]slots.Status{{Phase: slots.Attached}, {Phase: slots.Free}}
			},
			Images: func() ([]images.Cached, error) { return listed() }, Dir: t.TempDir(),
		})
		text := body(m)
		for _, line := range []string{
			`macrack_agent_slots{phase="Attached"} 1`, `macrack_agent_slots{phase="Free"} 1`, `macrack_agent_slots{phase="Corrupt"} 0`,
			"macrack_agent_images 2", "macrack_agent_images_bytes 150",
			"macrack_agent_storage_free_bytes ", "macrack_agent_storage_size_bytes ", "process_resident_memory_bytes ",
			`macrack_agent_image_pull_duration_seconds_count{result="Success"} 0`,
		} {
			assert.Contains(t, text, "\n"+line)
		}
		listed = func() ([]images.Cached, error) { return nil, errors.New("the disk is gone") }
		text = body(m)
		assert.NotContains(t, text, "\nmacrack_agent_images ")
		assert.Contains(t, text, "\nmacrack_agent_slots{", "the others are still there")
	}
}

// pulls is a store whose Ensure takes 40 seconds.
type pulls struct {
	images.Store
	clock *testingclock.FakeClock
	pull  bool
	err   error
}

func (p *pulls) Ensure(_ context.Context, _ images.Image, needs images.Needs) (images.Cached, error) {
	if p.pull {
		needs.OnEvent(images.Event{Reason: images.EventPulling})
	}
	p.clock.Step(40 * time.Second)
	return images.Cached{}, p.err
}

func TestPulls(t *testing.T) {
	m := New()
	fake := &pulls{clock: testingclock.NewFakeClock(time.Unix(1, 0))}
	store := m.Store(fake, fake.clock)
	var events []images.Event
	needs := images.Needs{OnEvent: func(e images.Event) { events = append(events, e) }}

	_, err := store.Ensure(t.Context(), images.Image{}, needs)
	require.NoError(t, err)
	assert.Contains(t, body(m), `image_pull_duration_seconds_count{result="Success"} 0`, "the image was on the disk")

	fake.pull = true
	_, err = store.Ensure(t.Context(), images.Image{}, needs)
	require.NoError(t, err)
	_, err = store.Ensure(t.Context(), images.Image{}, images.Needs{})
	require.NoError(t, err)
	assert.Len(t, events, 1, "events are passed on")
	assert.Contains(t, body(m), `image_pull_duration_seconds_count{result="Success"} 2`)
	assert.Contains(t, body(m), `image_pull_duration_seconds_sum{result="Success"} 80`)

	fake.err = errors.New("registry down")
	_, err = store.Ensure(t.Context(), images.Image{}, needs)
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = store.Ensure(ctx, images.Image{}, needs)
	require.Error(t, err)
	assert.Contains(t, body(m), `image_pull_duration_seconds_count{result="Failure"} 1`, "a stop is no failure")
}
