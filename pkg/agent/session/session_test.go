package session

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/node"
	"macrack.io/macrack/pkg/agent/slots"
)

func TestSessionsAreLimited(t *testing.T) {
	var s counter
	var releases []func()
	for range node.MaxSessions {
		release, err := s.acquire("a")
		require.NoError(t, err)
		releases = append(releases, release)
	}
	_, err := s.acquire("a")
	require.ErrorContains(t, err, "the limit is 16; close one first")
	other, err := s.acquire("b")
	require.NoError(t, err, "each machine has a limit of its own")
	other()
	for _, release := range releases {
		release()
	}
	release, err := s.acquire("a")
	require.NoError(t, err)
	release()
	assert.Empty(t, s.open)
}

// skipping is a clock whose waits end at once.
type skipping struct{ *clocktesting.FakeClock }

func (c skipping) After(d time.Duration) <-chan time.Time {
	after := c.FakeClock.After(d)
	if d == guestRetry {
		c.Step(d)
	}
	return after
}

func TestSessionsWaitForTheGuest(t *testing.T) {
	refused := errors.New("connection refused")
	tests := map[string]struct {
		answers []error // the last one is repeated
		want    error
		tries   int
	}{
		"answers":        {[]error{nil}, nil, 1},
		"answers soon":   {[]error{refused, refused, nil}, nil, 3},
		"never answers":  {[]error{refused}, refused, int(guestPatience / guestRetry)},
		"is not here":    {[]error{slots.ErrNotHere}, slots.ErrNotHere, 1},
		"stops meantime": {[]error{refused, slots.ErrNotHere}, slots.ErrNotHere, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tries := 0
			_, err := connectGuest(t.Context(), skipping{clocktesting.NewFakeClock(time.Now())}, func(context.Context) (net.Conn, error) {
				tries++
				return nil, tt.answers[min(tries, len(tt.answers))-1]
			})
			assert.Equal(t, tt.want, err)
			if tt.want == refused { // the end and a retry may be due at once
				assert.GreaterOrEqual(t, tries, tt.tries)
				return
			}
			assert.Equal(t, tt.tries, tries)
		})
	}

	ctx, cancel := context.WithCancel(t.Context())
	_, err := connectGuest(ctx, clocktesting.NewFakeClock(time.Now()), func(context.Context) (net.Conn, error) {
		cancel()
		return nil, refused
	})
	assert.Equal(t, refused, err, "the client is gone")
}
