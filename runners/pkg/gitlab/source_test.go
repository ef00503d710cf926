package gitlab

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/runners/pkg/config"
	"macrack.io/macrack/runners/pkg/sets"
)

// A claim expires when its job stops to renew it, whatever the clock of gitlab-runner shows.
func TestClaimsExpire(t *testing.T) {
	for name, skew := range map[string]time.Duration{"same clock": 0, "slow clock": -time.Hour, "fast clock": time.Hour} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(time.Now())
			core := kubernetesfake.NewClientset()
			s := New(sets.Environment{Namespace: namespace, Clock: clock}, &config.Set{Name: "ios"}, core)
			claims := core.CoordinationV1().Leases(namespace)
			claim := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "gitlab-1"}}
			renew := func() {
				claim = claim.DeepCopy()
				claim.Spec.RenewTime = &metav1.MicroTime{Time: clock.Now().Add(skew)}
				s.keep(func() {})(claim)
			}
			waiting := func() []string {
				jobs, _ := s.Waiting(sets.Capacity{})
				return jobs
			}
			_, err := claims.Create(t.Context(), claim, metav1.CreateOptions{})
			require.NoError(t, err)
			for range 10 {
				renew()
				clock.Step(claimDuration / 4)
				require.Equal(t, []string{"gitlab-1"}, waiting())
			}
			clock.Step(claimDuration)
			s.keep(func() {})(claim) // as after a new list
			assert.Empty(t, waiting())
			s.expire(t.Context())
			list, err := claims.List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			assert.Empty(t, list.Items)
			s.drop(func() {})(claim)
			assert.Empty(t, s.claims)
		})
	}
}
