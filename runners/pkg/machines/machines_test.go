package machines

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	now      = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	settings = Settings{PerLease: 2, MaxAge: 24 * time.Hour, Timeout: time.Hour}
)

// machine returns a machine on lease "a" that was created an hour ago.
func machine(name string, state State, changes ...func(*Machine)) Machine {
	m := Machine{Name: name, Lease: "a", State: state, CreatedAt: now.Add(-time.Hour)}
	for _, change := range changes {
		change(&m)
	}
	return m
}

func age(d time.Duration) func(*Machine)     { return func(m *Machine) { m.CreatedAt = now.Add(-d) } }
func busyFor(d time.Duration) func(*Machine) { return func(m *Machine) { m.BusySince = now.Add(-d) } }
func outdated(m *Machine)                    { m.Outdated = true }

func TestDecide(t *testing.T) {
	create := Decision{Action: Create, Reason: FreeSlot, Lease: "a"}
	end := func(name string, reason Reason) Decision { return Decision{Delete, reason, "a", name} }
	full := machine("full", Warm)
	for _, test := range []struct {
		name     string
		leases   []string
		machines []Machine
		want     []Decision
	}{
		{"each free slot takes a machine", []string{"a"}, nil, []Decision{create, create}},
		{"a booting machine has its slot", []string{"a"}, []Machine{machine("m", Booting)}, []Decision{create}},
		{"a deleted machine has its slot", []string{"a"}, []Machine{machine("m", Deleting)}, []Decision{create}},
		{"a lease that is not kept takes none", nil, []Machine{machine("m", Warm)}, nil},
		{"a warm machine waits", []string{"a"}, []Machine{machine("m", Warm), full}, nil},
		{"a job runs", []string{"a"}, []Machine{machine("m", Busy, busyFor(59*time.Minute)), full}, nil},
		{"a job that exceeds the timeout ends", []string{"a"}, []Machine{machine("m", Busy, busyFor(time.Hour)), full}, []Decision{end("m", TimedOut)}},
		{"a machine that had its job is deleted", []string{"a"}, []Machine{machine("m", Done), full}, []Decision{end("m", Ended)}},
		{"also on a lease that is not kept", nil, []Machine{machine("m", Done)}, []Decision{end("m", Ended)}},
		{"an old machine is replaced", []string{"a"}, []Machine{machine("m", Warm, age(24*time.Hour)), full}, []Decision{end("m", TooOld)}},
		{"a machine with older settings is replaced", []string{"a"}, []Machine{machine("m", Warm, outdated), full}, []Decision{end("m", Outdated)}},
		{"a busy one is not", []string{"a"}, []Machine{machine("m", Busy, outdated, age(48*time.Hour), busyFor(0)), full}, nil},
		{
			"one machine of a lease at a time", []string{"a"},
			[]Machine{machine("m", Warm, outdated), machine("n", Warm, outdated)}, []Decision{end("m", Outdated)},
		},
		{
			"all that boot at once, since none is ready", []string{"a"},
			[]Machine{machine("m", Booting, outdated), machine("n", Booting, outdated)}, []Decision{end("m", Outdated), end("n", Outdated)},
		},
		{"not while the other one boots", []string{"a"}, []Machine{machine("m", Warm, outdated), machine("n", Booting)}, nil},
		{"not while the other one stops", []string{"a"}, []Machine{machine("m", Warm, outdated), machine("n", Done)}, []Decision{end("n", Ended)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			assert.Equal(t, test.want, Decide(now, settings, test.leases, test.machines))
		})
	}
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		leases := []string{"a", "b"}
		slots := map[string]int{}
		byName := map[string]Machine{}
		var machines []Machine
		for i := range rapid.IntRange(0, 4).Draw(t, "machines") {
			m := machine(strconv.Itoa(i), rapid.SampledFrom([]State{Booting, Warm, Busy, Done, Deleting}).Draw(t, "state"))
			m.Lease = leases[i%2]
			m.Outdated = rapid.Bool().Draw(t, "outdated")
			m.CreatedAt = now.Add(-time.Duration(rapid.IntRange(0, 48).Draw(t, "age")) * time.Hour)
			m.BusySince = now.Add(-time.Duration(rapid.IntRange(0, 90).Draw(t, "busy")) * time.Minute)
			machines, byName[m.Name] = append(machines, m), m
			slots[m.Lease]++
		}
		deleted := map[string]bool{}
		for _, d := range Decide(now, settings, leases, machines) {
			if d.Action == Create {
				slots[d.Lease]++
				continue
			}
			m := byName[d.Machine]
			require.False(t, deleted[d.Machine], "no machine is deleted twice")
			deleted[d.Machine] = true
			require.True(t, m.State != Busy || now.Sub(m.BusySince) >= settings.Timeout, "no job is ended before the timeout")
			require.NotEqual(t, Deleting, m.State)
			require.True(t, m.State != Booting || m.Outdated)
		}
		for _, lease := range leases {
			require.Equal(t, settings.PerLease, slots[lease], "all slots are used, and none twice")
		}
	})
}
