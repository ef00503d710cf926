package sets

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/observe"
)

const agent = "script: {script: run-agent, env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: ci, key: token}}}]}"

// configure replaces the settings of the set, as the Manager does.
func (w *world) configure(settings, source string) {
	w.Helper()
	set := parse(w.T, settings, source)
	w.Set = New(w.Environment, set, NewScript(set), w.history)
}

// newScripts returns a set whose machines run a script.
func newScripts(t *testing.T, settings string) *world {
	t.Helper()
	w := newWorld(t, "")
	w.configure(settings, agent)
	return w
}

// turn binds the leases, boots the machines, and notes their scripts.
func (w *world) turn() {
	w.Helper()
	w.step()
	w.bind()
	w.step()
	w.boot()
	w.step()
	w.step()
}

func TestScripts(t *testing.T) {
	w := newScripts(t, ", warm: 2")
	for range 5 {
		w.turn()
	}
	assert.Len(t, w.allLeases(), 1, "the slots of one lease are enough")
	require.Len(t, w.busy(), 2)
	first := w.busy()[0]
	assert.Equal(t, "run-agent", first.Spec.StartupScript)
	assert.Equal(t, "token", first.Spec.Env[0].ValueFrom.SecretKeyRef.Key)
	w.ends(first, 0)
	w.turn()
	require.Len(t, w.busy(), 2, "another machine runs the script")
	assert.NotContains(t, []string{w.busy()[0].Name, w.busy()[1].Name}, first.Name)
	w.eventsContain("JobEnded")
	assert.Equal(t, 1.0, testutil.ToFloat64(w.Metrics.Finished().WithLabelValues("ios", "Succeeded")))
}

func TestAScriptSetShrinks(t *testing.T) {
	w := newScripts(t, ", warm: 4")
	w.turn()
	require.Len(t, w.busy(), 4)
	w.configure(", warm: 2", agent)
	w.turn()
	require.Len(t, w.busy(), 4, "the Mac is paid")
	w.clock.Step(23*time.Hour + 50*time.Minute)
	for _, instance := range w.busy() {
		w.ends(instance, 0)
	}
	for range 2 {
		w.turn()
		assert.Len(t, w.busy(), 2)
	}
	w.clock.Step(time.Hour)
	w.turn()
	assert.Len(t, w.allLeases(), 1)
	assert.Len(t, w.busy(), 2)
}

// A script with a wrong token fails at once, on each machine.
func TestAScriptThatFails(t *testing.T) {
	for name, noted := range map[string]bool{"after the set has noted its start": true, "before": false} {
		t.Run(name, func(t *testing.T) {
			w := newScripts(t, "")
			created := 0
			w.client.PrependReactor("create", "macosinstances", func(clienttesting.Action) (bool, runtime.Object, error) {
				created++
				return false, nil, nil
			})
			for range 150 { // ten minutes
				if !noted {
					w.step()
					w.bind()
					w.step()
				} else {
					w.turn()
				}
				for _, instance := range w.all() {
					if !noted || instance.Annotations[observe.AnnotationJob] != "" {
						w.ends(instance, 1)
					}
				}
			}
			assert.Less(t, created, 20)
			w.eventsContain("ScriptFailed")
			assert.NotZero(t, testutil.ToFloat64(w.Metrics.Finished().WithLabelValues("ios", "Failed")))
		})
	}
}

func TestAScriptThatFailsLaterIsNotDelayed(t *testing.T) {
	w := newScripts(t, "")
	w.turn()
	require.Len(t, w.busy(), 2)
	w.clock.Step(earlyEnd)
	for _, instance := range w.busy() {
		w.ends(instance, 1)
	}
	w.turn()
	assert.Len(t, w.busy(), 2)
}

func TestASetThatWasRemovedDrains(t *testing.T) {
	w := newScripts(t, "")
	w.turn()
	require.Len(t, w.busy(), 2)
	w.Set = New(w.Environment, parse(t, "", "gitlab: {}"), None{}, &floor.History{})
	w.turn()
	require.Len(t, w.busy(), 2, "no script is ended")
	for _, instance := range w.busy() {
		w.ends(instance, 0)
	}
	w.turn()
	w.turn()
	assert.Empty(t, w.all())
	w.clock.Step(24 * time.Hour)
	w.step()
	assert.Empty(t, w.allLeases())
}

// A machine that waits for an image or a Secret that does not exist would wait for ever.
func TestAMachineThatCannotStartIsReplacedByAChange(t *testing.T) {
	w := newScripts(t, "")
	w.step()
	w.bind()
	w.step()
	require.Len(t, w.all(), 2)
	old := w.all()
	w.step()
	require.Equal(t, old, w.all(), "the settings are the same")
	w.configure("", "script: {script: run-agent, env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: ci-2, key: token}}}]}")
	w.step()
	w.step()
	require.Len(t, w.all(), 2)
	for _, instance := range w.all() {
		assert.Equal(t, "ci-2", instance.Spec.Env[0].ValueFrom.SecretKeyRef.Name)
	}
	w.eventsContain("Outdated")
}

// A running script is not ended by a change.
func TestAChangeEndsNoScript(t *testing.T) {
	w := newScripts(t, "")
	w.turn()
	busy := w.busy()
	require.Len(t, busy, 2)
	w.configure("", "script: {script: other}")
	w.turn()
	assert.ElementsMatch(t, names(busy), names(w.busy()))
}

func names(instances []*instancev1alpha1.MacOSInstance) (names []string) {
	for _, instance := range instances {
		names = append(names, instance.Name)
	}
	return names
}
