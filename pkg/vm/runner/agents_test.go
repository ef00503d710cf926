package runner

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
)

// answering is an agent whose Info waits for an answer.
type answering struct {
	guest.Agent
	version string
	answers chan error
}

func newAnswering(version string) *answering {
	return &answering{version: version, answers: make(chan error, 1)}
}

func (a *answering) Info(ctx context.Context) (*guest.Info, error) {
	select {
	case err := <-a.answers:
		return &guest.Info{Version: a.version}, err
	case <-ctx.Done():
		return nil, guest.ErrSilent
	}
}

func TestGuestAgentIsFoundAndRemembered(t *testing.T) {
	errSilent := errors.New("silent")
	for name, test := range map[string]struct {
		answer func(ours, tart *answering, clk *clocktesting.FakeClock)
		want   contract.GuestAgent
	}{
		"MacRack's": {want: contract.GuestAgentMacRack, answer: func(ours, _ *answering, _ *clocktesting.FakeClock) {
			ours.answers <- nil
		}},
		"MacRack's, although tart's is first": {want: contract.GuestAgentMacRack, answer: func(ours, tart *answering, clk *clocktesting.FakeClock) {
			tart.answers <- nil
			waitFor(t, clk.HasWaiters)
			ours.answers <- nil
		}},
		"tart's, as MacRack's is refused": {want: contract.GuestAgentTart, answer: func(ours, tart *answering, _ *clocktesting.FakeClock) {
			tart.answers <- nil
			ours.answers <- errSilent
		}},
		"tart's, as MacRack's is silent": {want: contract.GuestAgentTart, answer: func(_, tart *answering, clk *clocktesting.FakeClock) {
			tart.answers <- nil
			waitFor(t, clk.HasWaiters)
			clk.Step(preferenceTime)
		}},
		"none": {answer: func(ours, tart *answering, _ *clocktesting.FakeClock) {
			ours.answers <- errSilent
			tart.answers <- errSilent
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ours, tart, clk := newAnswering("ours"), newAnswering("tart"), clocktesting.NewFakeClock(time.Now())
			a := &agents{clock: clk, clients: []guest.Agent{ours, tart}, known: make(chan struct{})}
			go test.answer(ours, tart, clk)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			info, err := a.info(ctx)
			assert.Equal(t, test.want, a.kind())
			if test.want == "" {
				require.ErrorIs(t, err, errSilent)
				ended, end := context.WithCancel(ctx)
				end()
				_, err := a.wait(ended)
				require.ErrorIs(t, err, guest.ErrSilent)
				return
			}
			require.NoError(t, err)
			chosen := map[contract.GuestAgent]*answering{contract.GuestAgentMacRack: ours, contract.GuestAgentTart: tart}[test.want]
			assert.Equal(t, chosen.version, info.Version)
			client, err := a.wait(ctx)
			require.NoError(t, err)
			assert.Equal(t, guest.Agent(chosen), client)

			// The other agent is not asked again.
			other := map[*answering]*answering{ours: tart, tart: ours}[chosen]
			other.answers <- nil
			chosen.answers <- errSilent
			_, err = a.info(ctx)
			require.ErrorIs(t, err, errSilent)
			assert.Equal(t, test.want, a.kind())
		})
	}
}

func waitFor(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error("timed out")
			return
		}
	}
}
