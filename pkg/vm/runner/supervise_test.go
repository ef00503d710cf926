package runner

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/vm/contract"
)

// immortal is a virtual machine that does not end.
type immortal struct {
	Machine
	kill func() error
}

func (i *immortal) Wait() error { select {} }
func (i *immortal) Kill() error { return i.kill() }

func TestForceThatDoesNotEndTheVM(t *testing.T) {
	for name, kill := range map[string]func() error{
		"blocks":        func() error { select {} },
		"has no effect": func() error { return nil },
		"fails":         func() error { return errors.New("invalid state") },
	} {
		t.Run(name, func(t *testing.T) {
			clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
			r := &runner{clock: clk, machine: &immortal{kill: kill}, changed: make(chan struct{}), stopping: make(chan struct{}, 1)}
			reason := make(chan contract.ExitReason, 1)
			go func() {
				why, err := r.supervise(t.Context())
				assert.NoError(t, err)
				reason <- why
			}()
			r.Kill()
			require.Eventually(t, func() bool { return clk.HasWaiters() || len(reason) > 0 }, 10*time.Second, time.Millisecond)
			clk.Step(killTimeout)
			select {
			case why := <-reason:
				assert.Equal(t, contract.ExitKilled, why, "the runner ends, and the VM with it")
			case <-time.After(10 * time.Second):
				require.FailNow(t, "the runner hangs")
			}
		})
	}
}
