package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/plugintest"
)

func mac(name string, phase rackv1alpha1.MacNodePhase) *rackv1alpha1.MacNode {
	return &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: "C0" + name}, Status: rackv1alpha1.MacNodeStatus{Phase: phase}}
}

func waiting(r *reader) bool { return len(r.ready) == 1 }

func phaseIn(t *testing.T, view json.RawMessage) string {
	t.Helper()
	var m Mac
	require.NoError(t, json.Unmarshal(view, &m))
	return m.Phase
}

func TestModel(t *testing.T) {
	m := newModel(clocktesting.NewFakeClock(plugintest.Now))
	m.put(Macs, mac("mac-1", rackv1alpha1.MacNodeAvailable))
	r, all := m.follow()
	defer r.close()
	assert.Len(t, all.Items[Macs], 1)
	assert.Len(t, all.Sources, 5)
	assert.False(t, waiting(r))

	m.put(Macs, mac("mac-1", rackv1alpha1.MacNodeAvailable))
	assert.False(t, waiting(r), "a change that the page does not show is no change")

	for _, phase := range []rackv1alpha1.MacNodePhase{rackv1alpha1.MacNodeLeased, rackv1alpha1.MacNodeReleasing, rackv1alpha1.MacNodeOffline} {
		m.put(Macs, mac("mac-1", phase))
	}
	assert.True(t, waiting(r))
	change := r.take()
	assert.Len(t, change.Items, 1)
	assert.Len(t, change.Items[Macs], 1)
	assert.Equal(t, "Offline", phaseIn(t, change.Items[Macs]["mac-1"]), "only the last of several changes is sent")
	assert.Nil(t, change.Sources)

	m.remove(Macs, mac("mac-1", ""))
	data, err := json.Marshal(r.take())
	require.NoError(t, err)
	assert.Contains(t, string(data), `"items":{"macs":{"mac-1":null}}`)
}

func TestModelReplace(t *testing.T) {
	m := newModel(clocktesting.NewFakeClock(plugintest.Now))
	m.replace(Macs, []any{mac("mac-1", rackv1alpha1.MacNodeLeased), mac("mac-2", rackv1alpha1.MacNodeLeased)})
	r, all := m.follow()
	assert.True(t, all.Sources[Macs].Loaded)
	assert.False(t, all.Sources[Leases].Loaded)
	m.replace(Macs, []any{mac("mac-2", rackv1alpha1.MacNodeLeased), mac("mac-3", rackv1alpha1.MacNodeLeased)})
	change := r.take()
	assert.Len(t, change.Items[Macs], 2, "mac-2 has not changed")
	assert.Nil(t, change.Items[Macs]["mac-1"])
	assert.NotNil(t, change.Items[Macs]["mac-3"])

	m.deny(Macs, "Macs are not shown")
	change = r.take()
	assert.Len(t, change.Items[Macs], 2)
	assert.Equal(t, Source{Loaded: true, Denied: true, Notice: "Macs are not shown"}, change.Sources[Macs])
	r.close()
	m.put(Macs, mac("mac-4", rackv1alpha1.MacNodeLeased))
	assert.Empty(t, r.changed, "a closed reader gets nothing")
}

func TestModelProblem(t *testing.T) {
	clock := clocktesting.NewFakeClock(plugintest.Now)
	m := newModel(clock)
	r, _ := m.follow()
	m.failed(Macs, errors.New("connection refused"))
	clock.Step(time.Minute)
	m.failed(Macs, errors.New("no route to host"))
	got := r.take().Sources[Macs]
	assert.Equal(t, "no route to host", got.Problem)
	assert.Equal(t, "2026-11-30T12:00:00Z", got.Since, "the time of the first failure")
	m.answered(Macs, "")
	assert.Empty(t, r.take().Sources[Macs].Problem)
}

// A page that takes nothing needs no more memory than the names of the objects.
func TestSlowReaderIsBounded(t *testing.T) {
	m := newModel(clocktesting.NewFakeClock(plugintest.Now))
	r, _ := m.follow()
	for n := range 10000 {
		m.put(Macs, mac(fmt.Sprintf("mac-%d", n%10), rackv1alpha1.MacNodePhase(fmt.Sprint(n))))
	}
	assert.Len(t, r.changed[Macs], 10)
	assert.Len(t, r.ready, 1)
}
