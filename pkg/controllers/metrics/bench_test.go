package metrics

import (
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"
)

// leasedFleet returns the metrics of leased Macs with two running instances each.
func leasedFleet(t testing.TB, macs int) *Collector {
	t.Helper()
	deps, err := shared.New(fake.NewSimpleClientset(), kubefake.NewClientset(), clocktesting.NewFakeClock(now), record.NewFakeRecorder(1))
	require.NoError(t, err)
	c := New(deps)
	c.SetLeading(true)
	add := func(informer cache.SharedIndexInformer, obj runtime.Object) {
		require.NoError(t, informer.GetStore().Add(obj))
	}
	add(deps.MacNodeClasses.Informer(), class("base"))
	for i := range macs {
		name := fmt.Sprintf("mac-%d", i)
		l := lease(name, "base", rackv1alpha1.MacNodeLeaseBound, func(s *rackv1alpha1.MacNodeLeaseStatus) {
			s.Instances = []rackv1alpha1.LeaseSlot{{Name: name + "-a"}, {Name: name + "-b"}}
		})
		add(deps.MacNodeLeases.Informer(), l)
		add(deps.MacNodes.Informer(), mac(name, rackv1alpha1.MacNodeLeased, leasedTo(l), func(s *rackv1alpha1.MacNodeStatus) {
			s.RunningVMs = 2
			s.Hardware = &rackv1alpha1.MacNodeHardware{Storage: scalar.MustParse("256Gi"), FreeStorage: scalar.MustParse("100Gi"), MacOSVersion: "26.1", AgentVersion: "v1"}
		}))
		for _, slot := range l.Status.Instances {
			add(deps.MacOSInstances.Informer(), instance(slot.Name, instancev1alpha1.MacOSInstanceRunning))
		}
		beat(c, name, now, false)
	}
	return c
}

// cpuTime returns the CPU time of this process, which other processes do not affect.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// The cost of a scrape of 5,000 Macs and 10,000 instances: the computation alone, and with the
// response.
func BenchmarkScrape(b *testing.B) {
	collector := leasedFleet(b, 5000)
	registry := register(collector)
	b.Run("gather", func(b *testing.B) {
		series, began := 0, cpuTime(b)
		for b.Loop() {
			families, err := registry.Gather()
			require.NoError(b, err)
			series = 0
			for _, family := range families {
				series += len(family.GetMetric())
			}
		}
		b.ReportMetric((cpuTime(b)-began).Seconds()*1000/float64(b.N), "cpu-ms/op")
		b.ReportMetric(float64(series), "series")
	})
	b.Run("respond", func(b *testing.B) {
		size, began := countingWriter(0), cpuTime(b)
		for b.Loop() {
			families, err := registry.Gather()
			require.NoError(b, err)
			size = 0
			encoder := expfmt.NewEncoder(&size, expfmt.NewFormat(expfmt.TypeTextPlain))
			for _, family := range families {
				require.NoError(b, encoder.Encode(family))
			}
		}
		b.ReportMetric((cpuTime(b)-began).Seconds()*1000/float64(b.N), "cpu-ms/op")
		b.ReportMetric(float64(size), "bytes")
	})
}

type countingWriter int

func (w *countingWriter) Write(p []byte) (int, error) {
	*w += countingWriter(len(p))
	return io.Discard.Write(p)
}

// The number of series grows with the Macs only.
func TestSeriesPerMac(t *testing.T) {
	series := func(macs int) (n int) {
		families, err := register(leasedFleet(t, macs)).Gather()
		require.NoError(t, err)
		for _, family := range families {
			n += len(family.GetMetric())
		}
		return n
	}
	require.Equal(t, 100*5, series(101)-series(1), "info, heartbeat, floor, free and total storage")
}
