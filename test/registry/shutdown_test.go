package registry

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/test/registrytest"
)

// A server that terminates serves until balancers have noticed that it is not ready.
func TestServerThatTerminatesStillServes(t *testing.T) {
	etcd := registrytest.StartEtcd(t)
	server := registrytest.StartServer(t, etcd, clock.RealClock{}, func(o *apiserver.Options) { o.ShutdownDelay = 5 * time.Second })
	client := server.HTTPClient(t, "prober")
	ready := func() int {
		resp, err := client.Get(server.Config("prober").Host + "/readyz")
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.Stop()
	}()
	require.Eventually(t, func() bool { return ready() == http.StatusInternalServerError }, time.Minute, time.Millisecond)

	macs := server.Client(t, "hardware", "system:masters").RackV1alpha1()
	_, err := macs.MacNodeClasses().Create(t.Context(), &rackv1alpha1.MacNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: baseClass()}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	assert.NoError(t, err, "a new connection during the delay")
	<-stopped
	assert.Zero(t, ready(), "the server is gone after the delay")
}
